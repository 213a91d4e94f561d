// Random inputs for the kernels, the same in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace penstock::kernels {

inline std::vector<float> random_floats(size_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

}  // namespace penstock::kernels
