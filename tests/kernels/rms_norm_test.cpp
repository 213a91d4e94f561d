#include "penstock/kernels/rms_norm.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kRows = 5;
constexpr float kEpsilon = 1e-3f;

template <typename T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::vector<T> values;
  for (const float value : random_floats(static_cast<size_t>(count), seed)) {
    values.push_back(from_float<T>(value));
  }
  return values;
}

template <typename T>
class RmsNorm : public testing::Test {
 protected:
  static double tolerance() { return std::is_same_v<T, float> ? 2e-6 : 1e-2; }

  // In float64; the row's 1 / rms.
  static double inverse(const std::vector<T>& x, int64_t row, int64_t width) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += std::pow(to_float(x[static_cast<size_t>(row * width + i)]), 2);
    }
    return 1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon);
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RmsNorm, Types);

// Widths below, at and above the lanes of its sums.
TYPED_TEST(RmsNorm, MatchesFloat64ForwardAndBackward) {
  using T = TypeParam;
  for (const int64_t width : {1, 31, 32, 77, 256}) {
    SCOPED_TRACE(width);
    const auto x = random_values<T>(kRows * width, 1);
    const auto dy = random_values<T>(kRows * width, 2);
    const auto residual = random_values<T>(kRows * width, 3);
    const std::vector<float> scale = random_floats(static_cast<size_t>(width), 4);
    std::vector<T> out(x.size()), dx(x.size());
    std::vector<float> inverse(kRows);
    const RmsNormForward<T> forward{
        x.data(), scale.data(), out.data(), inverse.data(), width, kEpsilon};
    rms_norm(forward, 0, 2);
    rms_norm(forward, 2, kRows);
    std::vector<float> scale_gradient(static_cast<size_t>(width), 0.5f);
    const RmsNormScale<T> sums{
        dy.data(), x.data(), inverse.data(), scale_gradient.data(), kRows, width};
    add_rms_scale_gradient(sums, 0, width / 2);
    add_rms_scale_gradient(sums, width / 2, width);
    for (const bool has_residual : {false, true}) {
      const RmsNormBackward<T> backward{dy.data(),
                                        x.data(),
                                        scale.data(),
                                        inverse.data(),
                                        has_residual ? residual.data() : nullptr,
                                        dx.data(),
                                        width};
      rms_norm_backward(backward, 0, kRows);
      for (int64_t row = 0; row < kRows; ++row) {
        const double r = this->inverse(x, row, width);
        double along = 0;
        for (int64_t i = 0; i < width; ++i) {
          const size_t at = static_cast<size_t>(row * width + i);
          along += to_float(dy[at]) * scale[static_cast<size_t>(i)] * to_float(x[at]);
        }
        for (int64_t i = 0; i < width; ++i) {
          const size_t at = static_cast<size_t>(row * width + i);
          const double s = scale[static_cast<size_t>(i)];
          const double normed = to_float(x[at]) * r * s;
          EXPECT_NEAR(to_float(out[at]), normed, this->tolerance() * (1 + std::abs(normed)));
          const double expected = r * (to_float(dy[at]) * s - to_float(x[at]) * along * r * r /
                                                                  static_cast<double>(width)) +
                                  (has_residual ? to_float(residual[at]) : 0);
          EXPECT_NEAR(to_float(dx[at]), expected, 4 * this->tolerance() * (1 + std::abs(expected)));
        }
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0.5;
      for (int64_t row = 0; row < kRows; ++row) {
        const size_t at = static_cast<size_t>(row * width + i);
        sum += to_float(dy[at]) * to_float(x[at]) * this->inverse(x, row, width);
      }
      EXPECT_NEAR(scale_gradient[static_cast<size_t>(i)], sum, 2e-5);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
