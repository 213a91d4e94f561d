// Fields as vectors of their elements, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"

namespace penstock::test {

template <typename T>
std::vector<T> values_in(std::span<const std::byte> bytes) {
  EXPECT_EQ(bytes.size() % sizeof(T), 0);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  }
  return values;
}

template <typename T>
std::vector<T> values_of(const data::Batch& batch, const std::string& name) {
  const data::BatchField* found = batch.find(name);
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? std::vector<T>() : values_in<T>(found->bytes);
}

template <typename T>
std::vector<T> read_values(const data::Dataset& dataset, int64_t sample, const std::string& name) {
  const size_t field = static_cast<size_t>(dataset.find(name));
  std::vector<std::byte> bytes(static_cast<size_t>(dataset.fields().at(field).bytes()));
  dataset.read(sample, field, bytes);
  return values_in<T>(bytes);
}

inline std::vector<std::string> names_in(const data::Batch& batch) {
  std::vector<std::string> names;
  for (const data::BatchField& have : batch.fields) {
    names.push_back(have.field.name);
  }
  return names;
}

}  // namespace penstock::test
