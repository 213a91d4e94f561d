#include "penstock/kernels/optimizers.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr size_t kCount = 103;  // no multiple of a vector
constexpr int kSteps = 10;

std::vector<float> gradients_of(int step) {
  return random_floats(kCount, 100 + static_cast<uint32_t>(step), 2);
}

std::vector<double> as_doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 2e-6 * (1 + std::abs(expected[i]))) << i;
  }
}

UpdateRange range_of(std::vector<float>& weights,
                     const std::vector<float>& gradients,
                     float scale) {
  return {weights.data(), gradients.data(), static_cast<int64_t>(weights.size()), scale};
}

AdamSettings at_step(AdamSettings settings, int step) {
  settings.one_minus_beta1 = 1 - settings.beta1;
  settings.one_minus_beta2 = 1 - settings.beta2;
  settings.bias_correction1 =
      static_cast<float>(1 - std::pow(static_cast<double>(settings.beta1), step));
  settings.bias_correction2 =
      static_cast<float>(1 - std::pow(static_cast<double>(settings.beta2), step));
  return settings;
}

// The moments of Adam in double precision.
class AdamReference {
 public:
  AdamReference(const AdamSettings& settings, double gradient_scale)
      : settings_(settings), gradient_scale_(gradient_scale) {}

  // m̂ / (√v̂ + ε) after the gradients of step `t`, which counts from 1.
  std::vector<double> direction(const std::vector<float>& gradients, int t) {
    const double beta1 = settings_.beta1, beta2 = settings_.beta2;
    std::vector<double> out;
    for (size_t i = 0; i < kCount; ++i) {
      const double gradient = static_cast<double>(gradients[i]) * gradient_scale_;
      mean_[i] = beta1 * mean_[i] + (1 - beta1) * gradient;
      square_[i] = beta2 * square_[i] + (1 - beta2) * gradient * gradient;
      const double mean = mean_[i] / (1 - std::pow(beta1, t));
      const double square = square_[i] / (1 - std::pow(beta2, t));
      out.push_back(mean / (std::sqrt(square) + static_cast<double>(settings_.epsilon)));
    }
    return out;
  }

 private:
  AdamSettings settings_;
  double gradient_scale_;
  std::vector<double> mean_ = std::vector<double>(kCount);
  std::vector<double> square_ = std::vector<double>(kCount);
};

struct AdamCase {
  AdamSettings settings;
  float gradient_scale;
};

class Adam : public testing::TestWithParam<AdamCase> {};

TEST_P(Adam, AdamWMatchesTheFormulaOfPyTorch) {
  const auto& [settings, scale] = GetParam();
  std::vector<float> weights = random_floats(kCount, 1), mean(kCount), square(kCount);
  std::vector<double> expected = as_doubles(weights);
  AdamReference reference(settings, scale);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients = gradients_of(step);
    adamw_update(
        range_of(weights, gradients, scale), mean.data(), square.data(), at_step(settings, step));
    const std::vector<double> direction = reference.direction(gradients, step);
    const double lr = settings.lr, decay = settings.weight_decay;
    for (size_t i = 0; i < kCount; ++i) {
      expected[i] -= lr * decay * expected[i];
      expected[i] -= lr * direction[i];
    }
    ASSERT_NO_FATAL_FAILURE(expect_near(weights, expected)) << "step " << step;
  }
}

TEST_P(Adam, LambMatchesThePaper) {
  const auto& [settings, scale] = GetParam();
  std::vector<float> weights = random_floats(kCount, 2), mean(kCount), square(kCount),
                     update(kCount);
  std::vector<double> expected = as_doubles(weights);
  AdamReference reference(settings, scale);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients = gradients_of(step);
    const LambNorms norms = lamb_direction(range_of(weights, gradients, scale),
                                           mean.data(),
                                           square.data(),
                                           update.data(),
                                           at_step(settings, step));
    lamb_apply(weights.data(),
               update.data(),
               kCount,
               settings.lr * static_cast<float>(std::sqrt(norms.weights / norms.update)));

    std::vector<double> direction = reference.direction(gradients, step);
    double weight_norm = 0, update_norm = 0;
    for (size_t i = 0; i < kCount; ++i) {
      direction[i] += static_cast<double>(settings.weight_decay) * expected[i];
      weight_norm += expected[i] * expected[i];
      update_norm += direction[i] * direction[i];
    }
    ASSERT_NEAR(norms.weights, weight_norm, 1e-5 * weight_norm) << "step " << step;
    ASSERT_NEAR(norms.update, update_norm, 1e-5 * update_norm) << "step " << step;
    for (size_t i = 0; i < kCount; ++i) {
      expected[i] -=
          static_cast<double>(settings.lr) * std::sqrt(weight_norm / update_norm) * direction[i];
    }
    ASSERT_NO_FATAL_FAILURE(expect_near(weights, expected)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    Adam,
    testing::Values(
        AdamCase{
            {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f},
            1},
        AdamCase{{.lr = 0.05f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 0.1f, .weight_decay = 0},
                 0.25f},
        AdamCase{{.lr = 0.1f, .beta1 = 0, .beta2 = 0, .epsilon = 1e-3f, .weight_decay = 0.5f}, 3}));

struct SgdCase {
  SgdSettings settings;
  float gradient_scale;
};

class Sgd : public testing::TestWithParam<SgdCase> {};

TEST_P(Sgd, MatchesTheFormulaOfPyTorch) {
  const auto& [settings, scale] = GetParam();
  std::vector<float> weights = random_floats(kCount, 3);
  std::vector<float> buffer(kCount, 123);  // what is there before the first step does not count
  std::vector<double> expected = as_doubles(weights), momentum(kCount);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients = gradients_of(step);
    SgdSettings now = settings;
    now.is_first_step = step == 1;
    sgd_update(range_of(weights, gradients, scale), buffer.data(), now);
    const double mu = settings.momentum;
    for (size_t i = 0; i < kCount; ++i) {
      double gradient = static_cast<double>(gradients[i]) * static_cast<double>(scale);
      gradient += static_cast<double>(settings.weight_decay) * expected[i];
      if (mu != 0) {
        momentum[i] = step == 1 ? gradient : mu * momentum[i] + gradient;
        gradient = settings.nesterov ? gradient + mu * momentum[i] : momentum[i];
      }
      expected[i] -= static_cast<double>(settings.lr) * gradient;
    }
    ASSERT_NO_FATAL_FAILURE(expect_near(weights, expected)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    Sgd,
    testing::Values(SgdCase{{.lr = 0.01f, .momentum = 0, .weight_decay = 0}, 1},
                    SgdCase{{.lr = 0.01f, .momentum = 0, .weight_decay = 0.1f}, 0.5f},
                    SgdCase{{.lr = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f}, 1},
                    SgdCase{{.lr = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true},
                            0.5f}));

TEST(SgdUpdate, WithoutMomentumNeedsNoBuffer) {
  std::vector<float> weights = {1, 2};
  const std::vector<float> gradients = {4, 8};
  sgd_update(
      range_of(weights, gradients, 1), nullptr, {.lr = 0.25f, .momentum = 0, .weight_decay = 0});
  EXPECT_EQ(weights, (std::vector<float>{0, 0}));
}

// Threads take a range each; where it is cut must not show.
TEST(Optimizers, AnyCutOfTheRangeGivesTheSameBits) {
  const AdamSettings adam = at_step(
      {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f}, 3);
  const SgdSettings sgd{.lr = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true};
  const std::vector<float> gradients = gradients_of(1);
  // Weights and both buffers after AdamW, SGD and the first pass of LAMB, one after the other.
  const auto updated = [&](size_t cut) {
    std::vector<float> weights = random_floats(kCount, 4), first = random_floats(kCount, 5);
    std::vector<float> second(kCount, 0.5f), update(kCount);
    for (const auto& [begin, end] : {std::pair{size_t{0}, cut}, std::pair{cut, kCount}}) {
      const UpdateRange range{weights.data() + begin,
                              gradients.data() + begin,
                              static_cast<int64_t>(end - begin),
                              0.7f};
      adamw_update(range, first.data() + begin, second.data() + begin, adam);
      sgd_update(range, first.data() + begin, sgd);
      lamb_direction(
          range, first.data() + begin, second.data() + begin, update.data() + begin, adam);
      lamb_apply(
          weights.data() + begin, update.data() + begin, static_cast<int64_t>(end - begin), 0.1f);
    }
    std::vector<float> all = weights;
    all.insert(all.end(), first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    return all;
  };
  const std::vector<float> whole = updated(0);
  for (size_t cut = 1; cut < kCount; ++cut) {
    ASSERT_EQ(updated(cut), whole) << "cut at " << cut;
  }
}

TEST(SumOfSquares, MatchesDoublePrecision) {
  for (size_t count = 0; count <= 70; ++count) {
    const std::vector<float> values = random_floats(count, static_cast<uint32_t>(count));
    double expected = 0;
    for (const float value : values) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(
        sum_of_squares(values.data(), static_cast<int64_t>(count)), expected, 1e-14 * expected);
  }
}

TEST(SumOfSquares, NeitherOverflowsNorLosesSmallValues) {
  const std::vector<float> huge(100, 1e30f);
  EXPECT_NEAR(sum_of_squares(huge.data(), 100) / 1e62, 1, 1e-6);
  std::vector<float> mixed(1'000'001, 1e-4f);
  mixed[500'000] = 100;
  EXPECT_NEAR(sum_of_squares(mixed.data(), 1'000'001) - 1e4, 0.01, 1e-6);
}

}  // namespace
}  // namespace penstock::kernels
