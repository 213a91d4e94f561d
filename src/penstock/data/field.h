// What a sample is made of: named tensors, each of one type and shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::data {

enum class FieldType : uint8_t { Int64, Int32, UInt8, Bool, Float32 };

int64_t bytes_of(FieldType type);     // of one element
std::string name_of(FieldType type);  // "Float32"

struct Field {
  std::string name;
  FieldType type = FieldType::Int64;
  std::vector<int64_t> shape;  // of one sample; {} for a single number

  int64_t elements() const;  // of one sample
  int64_t bytes() const;     // of one sample

  bool operator==(const Field&) const = default;
};

// "Float32 [8]", for messages.
std::string type_and_shape(const Field& field);

// Throws ConfigError unless there are fields, each has a name of its own and no size below 1.
void check_fields(const std::vector<Field>& fields);

}  // namespace penstock::data
