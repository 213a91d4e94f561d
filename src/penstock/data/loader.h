// Training batches, read by a background thread ahead of the step that takes them.
//
// A batch is a pure function of the dataset, the seed and its first sample, so a loader that starts
// at sample k continues exactly what another one left there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/data/sample_order.h"

namespace penstock::data {

struct LoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;  // samples per batch
  int64_t first_sample = 0;
  int64_t ahead = 4;  // batches kept ready
};

class Loader {
 public:
  // Shares the dataset's tokens, so `dataset` may go before the loader.
  Loader(const Dataset& dataset, LoaderOptions options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Samples [first, first + batch) of the shuffled order; the next call goes on from there, through
  // epoch after epoch without end. Rethrows what reading threw, once the batches before are taken,
  // and again on each later call.
  Batch next();

 private:
  void run(const std::stop_token& stop);
  void read_ahead(const std::stop_token& stop);

  const Dataset dataset_;
  const LoaderOptions options_;
  const SampleOrder order_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;

  // Last, so that it is stopped and joined before anything it uses goes.
  std::jthread thread_;
};

}  // namespace penstock::data
