#include "penstock/kernels/onebit.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kCounts[] = {1, 7, 8, 9, 63, 255, kSignBlock};

bool bit_of(const std::vector<uint8_t>& bits, int64_t element) {
  return ((bits[static_cast<size_t>(element / 8)] >> (element % 8)) & 1) != 0;
}

std::vector<uint8_t> random_bits(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bits(static_cast<size_t>(bit_bytes(count)));
  std::generate(bits.begin(), bits.end(), [&] { return static_cast<uint8_t>(random()); });
  return bits;
}

// 0.3 * values + error as doubles, 0 where dead.
std::vector<double> wanted_of(const std::vector<float>& values,
                              const std::vector<float>& error,
                              const std::vector<uint8_t>& alive) {
  std::vector<double> wanted(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (bit_of(alive, static_cast<int64_t>(i))) {
      wanted[i] = static_cast<double>(error[i]) +
                  static_cast<double>(0.3f) * static_cast<double>(values[i]);
    }
  }
  return wanted;
}

double scale_of(const std::vector<double>& wanted, const std::vector<uint8_t>& alive) {
  double squares = 0, living = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    squares += wanted[i] * wanted[i];
    living += bit_of(alive, static_cast<int64_t>(i)) ? 1 : 0;
  }
  return living == 0 ? 0 : std::sqrt(squares / living);
}

void expect_compressed(int64_t count, const std::vector<uint8_t>& alive, bool has_mask) {
  const std::vector<float> values = random_floats(static_cast<size_t>(count), 1);
  const std::vector<float> before = random_floats(static_cast<size_t>(count), 2, 0.1f);
  const std::vector<double> wanted = wanted_of(values, before, alive);
  const double expected_scale = scale_of(wanted, alive);
  std::vector<float> error = before;
  std::vector<uint8_t> signs(static_cast<size_t>(bit_bytes(count)), 0xAA);
  const float scale = compress_signs(
      values.data(), 0.3f, has_mask ? alive.data() : nullptr, count, error.data(), signs.data());
  EXPECT_NEAR(scale, expected_scale, 1e-6 * expected_scale);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!bit_of(alive, i)) {
      EXPECT_EQ(error[at], 0) << i;
      continue;
    }
    EXPECT_EQ(bit_of(signs, i), wanted[at] >= 0) << i;
    const double sent = wanted[at] >= 0 ? expected_scale : -expected_scale;
    EXPECT_NEAR(error[at], wanted[at] - sent, 1e-6) << i;
  }
}

TEST(CompressSigns, SendsSignsAndTheRootMeanSquareAndKeepsTheRest) {
  for (const int64_t count : kCounts) {
    expect_compressed(
        count, std::vector<uint8_t>(static_cast<size_t>(bit_bytes(count)), 255), false);
  }
}

TEST(CompressSigns, LeavesOutWhatIsDead) {
  for (const int64_t count : kCounts) {
    expect_compressed(count, random_bits(count, 5), true);
    expect_compressed(count, std::vector<uint8_t>(static_cast<size_t>(bit_bytes(count))), true);
  }
}

TEST(CompressSigns, TakesZeroAsPositive) {
  const std::vector<float> values{0, -0.0f, -1, 1};
  std::vector<float> error(4);
  uint8_t signs = 0;
  compress_signs(values.data(), 1, nullptr, 4, error.data(), &signs);
  EXPECT_EQ(signs & 15, 0b1011);
}

TEST(Signs, AreAddedAndExpanded) {
  for (const int64_t count : kCounts) {
    const std::vector<uint8_t> signs = random_bits(count, 3), alive = random_bits(count, 4);
    const std::vector<float> before = random_floats(static_cast<size_t>(count), 6);
    std::vector<float> sum = before, all(before), living(before);
    add_signs(signs.data(), 0.7f, count, sum.data());
    expand_signs(signs.data(), 0.7f, nullptr, count, all.data());
    expand_signs(signs.data(), 0.7f, alive.data(), count, living.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      const float value = bit_of(signs, i) ? 0.7f : -0.7f;
      EXPECT_EQ(sum[at], before[at] + value) << i;
      EXPECT_EQ(all[at], value) << i;
      EXPECT_EQ(living[at], bit_of(alive, i) ? value : 0) << i;
    }
  }
}

TEST(TakeErrors, LeavesNone) {
  std::vector<float> values{1, 2, 3}, error{10, 20, 30}, other{100, 200, 300};
  const uint8_t alive = 0b101;
  take_errors(values.data(), error.data(), other.data(), &alive, 3);
  EXPECT_EQ(values, (std::vector<float>{111, 0, 333}));
  EXPECT_EQ(error, std::vector<float>(3));
  EXPECT_EQ(other, std::vector<float>(3));
}

TEST(MarkAlive, SetsTheBitsOfWhatHasAVariance) {
  std::vector<uint8_t> bits{1, 0, 0};
  const std::vector<float> mean_square{0, 1e-40f, 0, 2, 0};
  mark_alive(mean_square.data(), 5, bits.data(), 14);
  EXPECT_EQ(bits, (std::vector<uint8_t>{1, 0b10000000, 0b10}));
}

TEST(SumWithSigns, HasTheSumOfSquaresAsItsMeanSquare) {
  const std::vector<float> values = random_floats(1003, 8, 3);
  const auto count = static_cast<int64_t>(values.size());
  const double squares = sum_of_squares(values.data(), count);
  double mean = 0, sum = 0;
  constexpr int kSeeds = 4000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const double value = sum_with_signs(values.data(), count, seed * seed << 20);
    mean += value * value / kSeeds;
    sum += value / kSeeds;
  }
  EXPECT_NEAR(mean / squares, 1, 4 * std::sqrt(2.0 / kSeeds));
  EXPECT_NEAR(sum / std::sqrt(squares), 0, 4 / std::sqrt(1.0 * kSeeds));
}

// So that replicas' sums add up to that of their gradient.
TEST(SumWithSigns, IsLinear) {
  for (const size_t count : {1, 15, 64, 100, 4096}) {
    const std::vector<float> a = random_floats(count, 1), b = random_floats(count, 2);
    std::vector<float> both(count);
    for (size_t i = 0; i < count; ++i) {
      both[i] = a[i] + b[i];
    }
    const auto sum = [&](const std::vector<float>& values) {
      return sum_with_signs(values.data(), static_cast<int64_t>(count), 77);
    };
    EXPECT_NEAR(sum(both), sum(a) + sum(b), 1e-4);
  }
}

constexpr size_t kCount = 103;
constexpr AdamSettings kSettings{.lr = 0.1f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.99f,
                                 .epsilon = 1e-3f,
                                 .weight_decay = 0.2f,
                                 .one_minus_beta1 = 0.1f,
                                 .one_minus_beta2 = 0.01f,
                                 .bias_correction1 = 0.8f,
                                 .bias_correction2 = 0.7f};

std::vector<float> squares(uint32_t seed) {
  std::vector<float> values = random_floats(kCount, seed);
  for (float& value : values) {
    value *= value;
  }
  return values;
}

double denominator(float mean_square) {
  return std::sqrt(static_cast<double>(mean_square) / 0.7) + 1e-3;
}

TEST(BlendMean, MovesTheMean) {
  const std::vector<float> before = random_floats(kCount, 1), gradients = random_floats(kCount, 2);
  std::vector<float> mean = before;
  blend_mean(mean.data(), gradients.data(), kCount, 3, 0.1f);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(mean[i], 0.9 * before[i] + 0.1 * 3 * gradients[i], 1e-6);
  }
}

// One more step of AdamW with a variance that stays gives the same bits.
TEST(FrozenAdam, IsAdamWWithAVarianceThatStays) {
  const std::vector<float> gradients = random_floats(kCount, 2);
  std::vector<float> weights = random_floats(kCount, 1), mean = random_floats(kCount, 3);
  std::vector<float> square = squares(4);
  std::vector<float> frozen_weights = weights, frozen_mean = mean;
  adamw_update(
      {weights.data(), gradients.data(), kCount, 0.5f}, mean.data(), square.data(), kSettings);
  blend_mean(frozen_mean.data(), gradients.data(), kCount, 0.5f, kSettings.one_minus_beta1);
  frozen_adam_update(frozen_weights.data(), frozen_mean.data(), square.data(), kCount, kSettings);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(frozen_mean[i], mean[i], 1e-6);
    EXPECT_NEAR(frozen_weights[i], weights[i], 1e-6);
  }
}

TEST(LocalSteps, BecomeTheirMeanMomentumAndAMoveOfAll) {
  const std::vector<float> start = random_floats(kCount, 1), first = random_floats(kCount, 2),
                           second = random_floats(kCount, 3), square = squares(4);
  AdamSettings settings = kSettings;
  settings.weight_decay = 0;
  std::vector<float> weights = start;
  frozen_adam_update(weights.data(), first.data(), square.data(), kCount, settings);
  settings.lr = 0.3f;
  frozen_adam_update(weights.data(), second.data(), square.data(), kCount, settings);
  const LocalSteps steps{.rate = 0.4f / 0.8f, .keep = 0.9f};
  momentum_of_local_steps(weights.data(), start.data(), square.data(), kCount, settings, steps);
  std::vector<float> moved = weights, mean(kCount);
  move_together(moved.data(), mean.data(), start.data(), square.data(), kCount, settings, steps);
  EXPECT_EQ(mean, weights);
  for (size_t i = 0; i < kCount; ++i) {
    const double average = 0.25 * first[i] + 0.75 * second[i];
    EXPECT_NEAR(weights[i], average, 1e-5);
    EXPECT_NEAR(moved[i],
                0.9 * start[i] - 0.5 * average / denominator(square[i]),
                1e-5 * (1 + std::abs(moved[i])));
  }
}

// The same direction as LAMB's own first pass.
TEST(LambMove, MovesByTheDirection) {
  const std::vector<float> gradients = random_floats(kCount, 2);
  std::vector<float> weights = random_floats(kCount, 1), mean = random_floats(kCount, 3);
  std::vector<float> square = squares(4), update(kCount);
  lamb_direction({weights.data(), gradients.data(), kCount, 0.5f},
                 mean.data(),
                 square.data(),
                 update.data(),
                 kSettings);
  std::vector<float> moved = weights;
  lamb_move(moved.data(), mean.data(), square.data(), kCount, kSettings, 0.3f);
  lamb_apply(weights.data(), update.data(), kCount, 0.3f);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(moved[i], weights[i], 1e-5 * (1 + std::abs(weights[i])));
  }
}

}  // namespace
}  // namespace penstock::kernels
