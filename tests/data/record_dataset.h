// Records of a fixed size in a binary file: eight floats, then a label of 64 bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/data/dataset.h"

class RecordDataset final : public penstock::data::Dataset {
 public:
  explicit RecordDataset(const std::string& path) : file_(path) {
    if (file_.size() == 0 || file_.size() % kRecordBytes != 0) {
      throw penstock::ConfigError(penstock::cat(path,
                                                " has ",
                                                file_.size(),
                                                " bytes, which is no whole number of records of ",
                                                kRecordBytes,
                                                " bytes; write or copy it again"));
    }
  }

  int64_t samples() const override { return file_.size() / kRecordBytes; }

  const std::vector<penstock::data::Field>& fields() const override { return fields_; }

  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override {
    check_read(sample, field, into);
    // The label follows the features.
    const int64_t offset = field == 0 ? 0 : fields_[0].bytes();
    file_.read(sample * kRecordBytes + offset, into);
    return static_cast<int64_t>(into.size());
  }

  // A change in the middle goes unseen: that is the price of not reading the whole file.
  std::string fingerprint() const override {
    uint32_t checksum = 0;
    for (const int64_t sample : {int64_t{0}, samples() - 1}) {
      std::array<std::byte, kRecordBytes> record;
      file_.read(sample * kRecordBytes, record);
      checksum = penstock::crc32c(record.data(), record.size(), checksum);
    }
    return penstock::cat(samples(), " records, checksum ", checksum);
  }

 private:
  static constexpr int64_t kRecordBytes = 8 * sizeof(float) + sizeof(int64_t);

  penstock::OffsetReader file_;
  std::vector<penstock::data::Field> fields_ = {
      {"features", penstock::data::FieldType::Float32, {8}},
      {"label", penstock::data::FieldType::Int64, {}}};
};
