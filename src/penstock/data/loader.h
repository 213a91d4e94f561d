// Training batches, read by a background thread ahead of the step that takes them.
//
// A batch is a pure function of the dataset, the seed and its first sample, so a loader that starts
// at sample k continues exactly what another one left there, and loaders of different rows of a
// batch agree on it without a word. Only the rows and fields that are asked for are read and kept.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/data/sample_order.h"

namespace penstock::data {

struct LoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;  // samples per batch
  int64_t first_sample = 0;
  int64_t ahead = 4;                     // batches kept ready
  std::vector<std::string> fields = {};  // empty: all
  int64_t first_row = 0, rows = -1;  // of each batch: those of this replica; -1: all that follow
};

class Loader {
 public:
  // Throws ConfigError when the data lacks a field.
  Loader(DatasetPtr dataset, LoaderOptions options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Of samples [first, first + batch) of the shuffled order the rows that were asked for; the next
  // call goes on from first + batch, through epoch after epoch without end. Rethrows what reading
  // threw, once the batches before are taken, and again on each later call.
  Batch next();

  // What the batches that are kept ready take at most, the one being read included: for the
  // account. A batch that next() has given is the caller's.
  int64_t bytes() const;

  // Of files, what is read ahead included.
  int64_t read_bytes() const { return read_bytes_; }

 private:
  void run(const std::stop_token& stop);
  void read_ahead(const std::stop_token& stop);

  const DatasetPtr dataset_;
  const LoaderOptions options_;
  const std::vector<size_t> fields_;
  const SampleOrder order_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  std::atomic<int64_t> read_bytes_ = 0;

  // Last, so that it is stopped and joined before anything it uses goes.
  std::jthread thread_;
};

}  // namespace penstock::data
