// Rotary position embedding: each pair of features (i, i + width / 2) of a head is turned by an
// angle that grows with the position. The pairs are those of Hugging Face's files.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// Slow rotations are stretched to longer sequences; factor 1: none.
struct RotaryScaling {
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int64_t original_context = 8192;
};

// Radians a position for each pair of a head: theta^(-2i / width), stretched.
std::vector<double> rotary_frequencies(int64_t head_width,
                                       double theta,
                                       const RotaryScaling& scaling);

// Cosines and sines, [positions, width / 2] each.
struct RotaryTable {
  RotaryTable(int64_t positions, const std::vector<double>& frequencies);

  int64_t half_width;
  std::vector<float> cosines, sines;
};

// Turns `heads` heads of each row in place; row r stands at position r % context. Backward turns
// the other way.
template <typename T>
struct Rotation {
  T* rows;
  int64_t heads;
  int64_t context;
  const RotaryTable* table;
  bool is_backward = false;
};
void rotate(const Rotation<float>& work, int64_t first_row, int64_t last_row);
void rotate(const Rotation<Bf16>& work, int64_t first_row, int64_t last_row);

}  // namespace penstock::kernels
