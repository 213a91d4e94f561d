// What the CPU kernels share. Kernels are plain loops over raw pointers, free of LibTorch: a caller
// splits the range over threads. They are compiled with -O3 for several instruction sets; the
// processor's best is chosen when the program starts.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "penstock/base/cpu_clones.h"

namespace penstock::kernels {

// bfloat16 as its bits.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(float value) {
  return value;
}
inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
// Rounds to nearest, ties to even; a NaN stays a NaN.
template <>
inline Bf16 from_float<Bf16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return {static_cast<uint16_t>(is_nan ? 0x7FC0 : rounded)};
}

}  // namespace penstock::kernels
