// Datasets that need no class of their own: arrays in memory, and a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/data/dataset.h"

namespace penstock::data {

// The type of a field whose elements are T in C++.
template <typename T>
constexpr FieldType field_type() {
  if constexpr (std::is_same_v<T, int64_t>) {
    return FieldType::Int64;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return FieldType::Int32;
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return FieldType::UInt8;
  } else if constexpr (std::is_same_v<T, bool>) {
    return FieldType::Bool;
  } else {
    static_assert(std::is_same_v<T, float>, "int64_t, int32_t, uint8_t, bool or float");
    return FieldType::Float32;
  }
}

// Arrays in memory, one for each field: [samples, shape of one sample...], row-major.
class MemoryDataset final : public Dataset {
 public:
  // The first field says how many samples there are. Throws ConfigError when the array is no whole
  // number of samples, has another number of them than the fields before, or when the name is
  // taken.
  MemoryDataset& add(std::string name,
                     FieldType type,
                     std::vector<int64_t> sample_shape,
                     std::vector<std::byte> values);

  template <typename T>
  MemoryDataset& add(std::string name,
                     std::vector<int64_t> sample_shape,
                     const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    // One by one: a vector of bool has no array to copy.
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = values[i];
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
    return add(std::move(name), field_type<T>(), std::move(sample_shape), std::move(bytes));
  }

  int64_t samples() const override { return samples_; }
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override;
  std::string fingerprint() const override;  // a checksum of all fields and their bytes

 private:
  int64_t samples_ = 0;
  std::vector<Field> fields_;
  std::vector<std::vector<std::byte>> values_;  // of each field
  uint32_t checksum_ = 0;
};

// Samples that a function makes, from several threads at once.
class FunctionDataset final : public Dataset {
 public:
  using Read = std::function<void(int64_t sample, size_t field, std::span<std::byte> into)>;

  FunctionDataset(int64_t samples, std::vector<Field> fields, Read read, std::string fingerprint);

  int64_t samples() const override { return samples_; }
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override;
  std::string fingerprint() const override { return fingerprint_; }

 private:
  int64_t samples_;
  std::vector<Field> fields_;
  Read read_;
  std::string fingerprint_;
};

}  // namespace penstock::data
