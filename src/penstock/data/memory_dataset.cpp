#include "penstock/data/memory_dataset.h"

#include <cstdio>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock::data {

namespace {

int64_t samples_in(const Field& field, size_t bytes) {
  const int64_t size = static_cast<int64_t>(bytes);
  if (size == 0) {
    throw ConfigError(cat("field ", in_quotes(field.name), " of the data has no samples"));
  }
  if (size % field.bytes() != 0) {
    throw ConfigError(cat("field ",
                          in_quotes(field.name),
                          " of the data has ",
                          size,
                          " bytes, which is not a multiple of ",
                          field.bytes(),
                          ", those of one sample of ",
                          type_and_shape(field)));
  }
  return size / field.bytes();
}

}  // namespace

MemoryDataset& MemoryDataset::add(std::string name,
                                  FieldType type,
                                  std::vector<int64_t> sample_shape,
                                  std::vector<std::byte> values) {
  // Nothing is changed before everything is checked.
  std::vector<Field> fields = fields_;
  fields.push_back({std::move(name), type, std::move(sample_shape)});
  const Field& field = fields.back();
  check_fields(fields);
  const int64_t samples = samples_in(field, values.size());
  if (!fields_.empty() && samples != samples_) {
    throw ConfigError(cat("field ",
                          in_quotes(field.name),
                          " of the data has ",
                          samples,
                          " samples but ",
                          in_quotes(fields_.front().name),
                          " has ",
                          samples_,
                          "; give all fields the same number"));
  }
  const std::string description = cat(field.name, " ", type_and_shape(field));
  checksum_ = crc32c(description.data(), description.size(), checksum_);
  checksum_ = crc32c(values.data(), values.size(), checksum_);
  samples_ = samples;
  fields_ = std::move(fields);
  values_.push_back(std::move(values));
  return *this;
}

int64_t MemoryDataset::read(int64_t sample, size_t field, std::span<std::byte> into) const {
  check_read(sample, field, into);
  std::memcpy(
      into.data(), values_[field].data() + static_cast<size_t>(sample) * into.size(), into.size());
  return 0;
}

std::string MemoryDataset::fingerprint() const {
  char text[64];
  std::snprintf(text,
                sizeof text,
                "%lld samples, checksum %08x",
                static_cast<long long>(samples_),
                checksum_);
  return text;
}

FunctionDataset::FunctionDataset(int64_t samples,
                                 std::vector<Field> fields,
                                 Read read,
                                 std::string fingerprint)
    : samples_(samples),
      fields_(std::move(fields)),
      read_(std::move(read)),
      fingerprint_(std::move(fingerprint)) {
  check_fields(fields_);
  PENSTOCK_CHECK(read_ != nullptr, "no function to read with");
}

int64_t FunctionDataset::read(int64_t sample, size_t field, std::span<std::byte> into) const {
  check_read(sample, field, into);
  read_(sample, field, into);
  return 0;
}

}  // namespace penstock::data
