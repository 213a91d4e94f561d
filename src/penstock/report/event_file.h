// Scalars for TensorBoard: an event file of TFRecords, each one a serialised tensorflow.Event. Only
// the few protobuf fields that scalars need are written, by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "penstock/report/log_file.h"

namespace penstock::report {

class EventFile {
 public:
  // A new file in `folder`, which exists: events.out.tfevents.<unix seconds>.<hostname>.<pid>.
  explicit EventFile(const std::filesystem::path& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // TensorBoard keeps scalars as 32-bit floats.
  void add_scalar(const std::string& tag, double value, int64_t step);

  // Tells TensorBoard to forget what was recorded before, here and in earlier files of the folder,
  // for `step` and later steps. A resumed run says so first, so that its steps are not shown twice.
  void forget_from(int64_t step);

  // Events are collected until they are flushed or the file is closed.
  void flush();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void add_record(const std::string& data);

  LogFile file_;
  std::string pending_;
};

}  // namespace penstock::report
