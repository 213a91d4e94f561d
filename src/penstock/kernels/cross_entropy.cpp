#include "penstock/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace penstock::kernels {

namespace {

constexpr int kLanes = 16;

// e^x for x <= 0, to about two units in the last place; a loop over it vectorises, one over
// std::exp does not. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial; 2^n by the exponent
// bits.
inline float exp_of_negative(float x) {
  x = std::max(x, -87.0f);
  // Adding 1.5 * 2^23 leaves no room for a fraction: rounds to nearest without a call.
  constexpr float rounder = 12582912.0f;
  const float n = (x * 1.44269504088896341f + rounder) - rounder;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = static_cast<int32_t>(n) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

[[gnu::always_inline]] inline float largest(const float* values, int64_t count) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  float result = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) {
    result = std::max(result, values[i]);
  }
  return result;
}

// Sum of e^(value - shift); with `write` each value is replaced by its term. Lanes are summed in a
// fixed order.
template <bool write>
[[gnu::always_inline]] inline double sum_of_exponentials(float* values,
                                                         int64_t count,
                                                         float shift) {
  double total = 0;
  constexpr int64_t block = 64 * kLanes;  // float sums stay short, so their rounding does
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = std::min(count, begin + block);
    float lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float term = exp_of_negative(values[i + lane] - shift);
        lanes[lane] += term;
        if constexpr (write) {
          values[i + lane] = term;
        }
      }
    }
    for (; i < end; ++i) {
      const float term = exp_of_negative(values[i] - shift);
      lanes[0] += term;
      if constexpr (write) {
        values[i] = term;
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      total += static_cast<double>(lanes[lane]);
    }
  }
  return total;
}

}  // namespace

PENSTOCK_CPU_CLONES float cross_entropy(const float* logits, int64_t vocabulary, int64_t target) {
  const float shift = largest(logits, vocabulary);
  const double sum = sum_of_exponentials<false>(const_cast<float*>(logits), vocabulary, shift);
  return static_cast<float>(std::log(sum) + static_cast<double>(shift) -
                            static_cast<double>(logits[target]));
}

PENSTOCK_CPU_CLONES float cross_entropy_backward(float* logits,
                                                 int64_t vocabulary,
                                                 int64_t target,
                                                 float scale) {
  const float shift = largest(logits, vocabulary);
  const float target_logit = logits[target];
  const double sum = sum_of_exponentials<true>(logits, vocabulary, shift);
  const float factor = static_cast<float>(static_cast<double>(scale) / sum);
  for (int64_t i = 0; i < vocabulary; ++i) {
    logits[i] *= factor;
  }
  logits[target] -= scale;
  return static_cast<float>(std::log(sum) + static_cast<double>(shift) -
                            static_cast<double>(target_logit));
}

}  // namespace penstock::kernels
