#include "penstock/kernels/onebit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "penstock/base/philox.h"
#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

namespace {

using EightFloats = std::array<float, 8>;

// What the eight bits of a byte stand for.
constexpr std::array<EightFloats, 256> make_table(float set, float clear) {
  std::array<EightFloats, 256> table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    for (size_t bit = 0; bit < 8; ++bit) {
      table[byte][bit] = ((byte >> bit) & 1) != 0 ? set : clear;
    }
  }
  return table;
}

constexpr std::array<EightFloats, 256> kSigns = make_table(1, -1);
constexpr std::array<EightFloats, 256> kKeeps = make_table(1, 0);

// 1 where alive, 0 where dead; returns how many are alive. `keeps` has room for whole bytes.
int64_t find_keeps(Alive alive, int64_t count, float* keeps) {
  if (alive == nullptr) {
    std::fill_n(keeps, count, 1.0f);
    return count;
  }
  const int64_t whole = count / 8;
  int64_t living = 0;
  for (int64_t byte = 0; byte < whole; ++byte) {
    std::memcpy(keeps + 8 * byte, kKeeps[alive[byte]].data(), sizeof(EightFloats));
    living += std::popcount(alive[byte]);
  }
  if (count % 8 != 0) {
    const auto rest = static_cast<uint8_t>(alive[whole] & ((1 << (count % 8)) - 1));
    std::memcpy(keeps + 8 * whole, kKeeps[rest].data(), sizeof(EightFloats));
    living += std::popcount(rest);
  }
  return living;
}

// Eight bytes that are 0 or 1, as the bits of one.
uint8_t gather_bits(const uint8_t* flags) {
  uint64_t word = 0;
  std::memcpy(&word, flags, 8);
  return static_cast<uint8_t>((word * 0x0102040810204080u) >> 56);
}

}  // namespace

PENSTOCK_CPU_CLONES float compress_signs(
    const float* values, float factor, Alive alive, int64_t count, float* error, uint8_t* signs) {
  float keeps[kSignBlock];
  uint8_t flags[kSignBlock] = {};
  float* __restrict wanted = error;
  const int64_t living = find_keeps(alive, count, keeps);
  for (int64_t i = 0; i < count; ++i) {
    wanted[i] = keeps[i] * (wanted[i] + factor * values[i]);
  }
  const double squares = sum_of_squares(wanted, count);
  const float scale =
      living == 0 ? 0 : static_cast<float>(std::sqrt(squares / static_cast<double>(living)));
  for (int64_t i = 0; i < count; ++i) {
    flags[i] = wanted[i] >= 0 ? 1 : 0;
  }
  for (int64_t i = 0; i < count; ++i) {
    wanted[i] -= keeps[i] * (wanted[i] >= 0 ? scale : -scale);
  }
  for (int64_t byte = 0; byte < bit_bytes(count); ++byte) {
    signs[byte] = gather_bits(flags + 8 * byte);
  }
  return scale;
}

PENSTOCK_CPU_CLONES void add_signs(const uint8_t* signs, float scale, int64_t count, float* sum) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const EightFloats& eight = kSigns[signs[i / 8]];
    for (size_t bit = 0; bit < 8; ++bit) {
      sum[static_cast<size_t>(i) + bit] += scale * eight[bit];
    }
  }
  for (; i < count; ++i) {
    sum[i] += scale * kSigns[signs[i / 8]][static_cast<size_t>(i % 8)];
  }
}

PENSTOCK_CPU_CLONES void expand_signs(
    const uint8_t* signs, float scale, Alive alive, int64_t count, float* values) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const EightFloats& eight = kSigns[signs[i / 8]];
    const EightFloats& keep = kKeeps[alive == nullptr ? 255 : alive[i / 8]];
    for (size_t bit = 0; bit < 8; ++bit) {
      values[static_cast<size_t>(i) + bit] = scale * eight[bit] * keep[bit];
    }
  }
  for (; i < count; ++i) {
    const auto bit = static_cast<size_t>(i % 8);
    const float keep = kKeeps[alive == nullptr ? 255 : alive[i / 8]][bit];
    values[i] = scale * kSigns[signs[i / 8]][bit] * keep;
  }
}

PENSTOCK_CPU_CLONES void take_errors(
    float* values, float* error, float* other_error, Alive alive, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const bool is_alive = alive == nullptr || ((alive[i / 8] >> (i % 8)) & 1) != 0;
    values[i] = is_alive ? values[i] + error[i] + other_error[i] : 0;
    error[i] = 0;
    other_error[i] = 0;
  }
}

void mark_alive(const float* mean_square, int64_t count, uint8_t* bits, int64_t first) {
  const auto set = [&](int64_t at, int value) {
    bits[at / 8] = static_cast<uint8_t>(bits[at / 8] | value);
  };
  int64_t i = 0;
  for (; i < count && (first + i) % 8 != 0; ++i) {
    set(first + i, (mean_square[i] != 0 ? 1 : 0) << ((first + i) % 8));
  }
  for (; i + 8 <= count; i += 8) {
    uint8_t flags[8];
    for (int64_t bit = 0; bit < 8; ++bit) {
      flags[bit] = mean_square[i + bit] != 0 ? 1 : 0;
    }
    set(first + i, gather_bits(flags));
  }
  for (; i < count; ++i) {
    set(first + i, (mean_square[i] != 0 ? 1 : 0) << ((first + i) % 8));
  }
}

PENSTOCK_CPU_CLONES double sum_with_signs(const float* values, int64_t count, uint64_t seed) {
  constexpr int64_t kBits = 64;
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  for (int64_t first = 0; first < count; first += kBits) {
    const uint64_t bits = mix_bits(seed + static_cast<uint64_t>(first / kBits));
    const int64_t size = std::min(kBits, count - first);
    float signs[kBits];
    for (size_t byte = 0; byte < kBits / 8; ++byte) {
      std::memcpy(
          signs + 8 * byte, kSigns[(bits >> (8 * byte)) & 0xFF].data(), sizeof(EightFloats));
    }
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += static_cast<double>(signs[i + lane] * values[first + i + lane]);
      }
    }
    for (; i < size; ++i) {
      lanes[0] += static_cast<double>(signs[i] * values[first + i]);
    }
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

PENSTOCK_CPU_CLONES void blend_mean(float* mean,
                                    const float* gradients,
                                    int64_t count,
                                    float gradient_scale,
                                    float one_minus_beta1) {
  float* __restrict m = mean;
  for (int64_t i = 0; i < count; ++i) {
    m[i] += one_minus_beta1 * (gradients[i] * gradient_scale - m[i]);
  }
}

PENSTOCK_CPU_CLONES void frozen_adam_update(float* weights,
                                            const float* mean,
                                            const float* mean_square,
                                            int64_t count,
                                            const AdamSettings& settings) {
  float* __restrict w = weights;
  const float epsilon = settings.epsilon;
  const float keep = 1.0f - settings.lr * settings.weight_decay;
  const float rate = settings.lr / settings.bias_correction1;
  const float root_correction2 = std::sqrt(settings.bias_correction2);
  for (int64_t i = 0; i < count; ++i) {
    const float denominator = std::sqrt(mean_square[i]) / root_correction2 + epsilon;
    const float move = rate * mean[i] / denominator;
    w[i] = w[i] * keep - (mean_square[i] == 0 ? 0 : move);
  }
}

PENSTOCK_CPU_CLONES void momentum_of_local_steps(float* weights,
                                                 const float* start,
                                                 const float* mean_square,
                                                 int64_t count,
                                                 const AdamSettings& settings,
                                                 const LocalSteps& steps) {
  float* __restrict w = weights;
  const float epsilon = settings.epsilon;
  const float root_correction2 = std::sqrt(settings.bias_correction2);
  for (int64_t i = 0; i < count; ++i) {
    const float denominator = std::sqrt(mean_square[i]) / root_correction2 + epsilon;
    w[i] = (start[i] - w[i]) * denominator / steps.rate;
  }
}

PENSTOCK_CPU_CLONES void move_together(float* weights,
                                       float* mean,
                                       const float* start,
                                       const float* mean_square,
                                       int64_t count,
                                       const AdamSettings& settings,
                                       const LocalSteps& steps) {
  float* __restrict w = weights;
  float* __restrict m = mean;
  const float epsilon = settings.epsilon;
  const float root_correction2 = std::sqrt(settings.bias_correction2);
  for (int64_t i = 0; i < count; ++i) {
    const float denominator = std::sqrt(mean_square[i]) / root_correction2 + epsilon;
    m[i] = w[i];
    w[i] = start[i] * steps.keep - steps.rate * m[i] / denominator;
  }
}

PENSTOCK_CPU_CLONES void lamb_move(float* weights,
                                   const float* mean,
                                   const float* mean_square,
                                   int64_t count,
                                   const AdamSettings& settings,
                                   float rate) {
  float* __restrict w = weights;
  for (int64_t i = 0; i < count; ++i) {
    const float adam = (mean[i] / settings.bias_correction1) /
                       (std::sqrt(mean_square[i] / settings.bias_correction2) + settings.epsilon);
    w[i] -= rate * (adam + settings.weight_decay * w[i]);
  }
}

}  // namespace penstock::kernels
