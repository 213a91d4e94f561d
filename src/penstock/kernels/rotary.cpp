#include "penstock/kernels/rotary.h"

#include <cmath>
#include <numbers>

namespace penstock::kernels {

namespace {

// Waves that are short next to the original context stay, long ones are stretched by the factor,
// and those between are mixed.
double stretched(double frequency, const RotaryScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = static_cast<double>(scaling.original_context) / wavelength;
  if (turns > scaling.high_frequency_factor) {
    return frequency;
  }
  if (turns < scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  const double kept = (turns - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

template <typename T>
[[gnu::always_inline]] inline void turn(const Rotation<T>& work,
                                        int64_t first_row,
                                        int64_t last_row) {
  const int64_t half = work.table->half_width;
  const float direction = work.is_backward ? -1.0f : 1.0f;
  for (int64_t row = first_row; row < last_row; ++row) {
    const int64_t position = row % work.context;
    const float* __restrict cosines = work.table->cosines.data() + position * half;
    const float* __restrict sines = work.table->sines.data() + position * half;
    for (int64_t head = 0; head < work.heads; ++head) {
      T* __restrict one = work.rows + (row * work.heads + head) * 2 * half;
      T* __restrict other = one + half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = to_float(one[i]), b = to_float(other[i]);
        const float sine = direction * sines[i];
        one[i] = from_float<T>(a * cosines[i] - b * sine);
        other[i] = from_float<T>(b * cosines[i] + a * sine);
      }
    }
  }
}

}  // namespace

std::vector<double> rotary_frequencies(int64_t head_width,
                                       double theta,
                                       const RotaryScaling& scaling) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_width / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_width);
    const double frequency = std::pow(theta, exponent);
    frequencies.push_back(scaling.factor == 1 ? frequency : stretched(frequency, scaling));
  }
  return frequencies;
}

RotaryTable::RotaryTable(int64_t positions, const std::vector<double>& frequencies)
    : half_width(static_cast<int64_t>(frequencies.size())) {
  cosines.reserve(static_cast<size_t>(positions) * frequencies.size());
  sines.reserve(cosines.capacity());
  for (int64_t position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

PENSTOCK_CPU_CLONES void rotate(const Rotation<float>& work, int64_t first, int64_t last) {
  turn(work, first, last);
}
PENSTOCK_CPU_CLONES void rotate(const Rotation<Bf16>& work, int64_t first, int64_t last) {
  turn(work, first, last);
}

}  // namespace penstock::kernels
