// Rotary position embedding: each pair of features (i, i + head_width / 2) of a head is turned by an
// angle that grows with the position. The GPU's kernels/rotary.h: angles are worked out as they are
// needed, in double as there, so no table takes memory.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

// Radians a position for each pair of a head. Handed to the kernel by value.
struct RotaryFrequencies {
  static constexpr int64_t kMost = 256;

  explicit RotaryFrequencies(std::span<const double> given);

  int64_t half_width;
  double radians[kMost] = {};  // an array that device code can index
};

// Turns the first `heads` heads of each row, in place; row r stands at position r % context.
// Backward turns the other way.
struct Rotation {
  Type type;
  void* x;  // [rows, stride]
  int64_t rows;
  int64_t stride;  // elements between rows
  int64_t heads;
  int64_t context;
  bool is_backward;
};
void rotate(const Rotation& work, const RotaryFrequencies& frequencies, Stream stream);

}  // namespace penstock::gpu
