// Element types a safetensors file can hold, by the names the format gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace penstock::checkpoint {

enum class Dtype {
  Bool,
  U8,
  I8,
  F8_E4M3,
  F8_E5M2,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  F64,
  I64,
  U64
};

int64_t dtype_bytes(Dtype dtype);          // of one element
std::string_view dtype_name(Dtype dtype);  // "BOOL", "F8_E4M3", "BF16", ...
std::optional<Dtype> find_dtype(std::string_view name);

// Size of a dense tensor; nothing when a dim is negative or the size does not fit into 63 bits.
// Dims of 0 count as 1 for the second test: [0, 2^40, 2^40] is empty, but its strides would
// overflow in whoever computes them.
std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

}  // namespace penstock::checkpoint
