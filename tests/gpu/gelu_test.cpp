#include "penstock/gpu/gelu.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class Gelu : public GpuTest {};
class GeluBackwardTest : public GpuTest {};

constexpr double kRootTwoOverPi = 0.7978845608028654;

double gelu_reference(double x) {
  return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x)));
}

double slope_reference(double x) {
  const double tanh = std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x));
  const double inner = kRootTwoOverPi * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner;
}

std::vector<double> gelu_references(const std::vector<float>& x) {
  std::vector<double> y;
  for (const float value : x) {
    y.push_back(gelu_reference(static_cast<double>(value)));
  }
  return y;
}

TEST_F(Gelu, MatchesFloat64ForAnyCountAndAlignment) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t count : {1, 7, 8, 768, 4100, 513 * 1024 + 3}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(std::string(name_of(type)) + " x " + std::to_string(count));
        const std::vector<float> x = rounded(type, random.normal(count, 2));
        const DeviceBuffer in(type, x, offset);
        const DeviceBuffer out(type, count, offset);
        gelu(type, in.data(), out.data(), count, nullptr);
        EXPECT_LT(relative_error(out.download(), gelu_references(x)), tolerance(type));
        EXPECT_TRUE(out.is_guard_intact());
      }
    }
  }
}

TEST_F(Gelu, WorksInPlaceWithTheSameBits) {
  Random random;
  for (const Type type : kAllTypes) {
    const int64_t count = 10007;
    const DeviceBuffer in(type, random.normal(count, 2));
    const DeviceBuffer out(type, count);
    gelu(type, in.data(), out.data(), count, nullptr);
    gelu(type, in.data(), in.data(), count, nullptr);
    EXPECT_EQ(in.bits(), out.bits()) << name_of(type);
  }
}

// Element by element: the tail of small results has its digits too, and nothing overflows.
TEST_F(Gelu, KeepsItsDigitsFarFromZero) {
  for (const Type type : kAllTypes) {
    const std::vector<float> x =
        rounded(type, {-30000, -20, -8, -5, -4, -3, -1, -1e-3f, 0, 1e-3f, 1, 3, 5, 20, 30000});
    const DeviceBuffer buffer(type, x);
    gelu(type, buffer.data(), buffer.data(), buffer.count(), nullptr);
    const std::vector<float> out = buffer.download();
    // Units of the type's last place, and the smallest number it has.
    const double relative = type == Type::Float32 ? 2e-5 : type == Type::Float16 ? 1e-3 : 5e-3;
    const double absolute = type == Type::Float16 ? 6e-8 : 1e-37;
    for (size_t i = 0; i < x.size(); ++i) {
      const double reference = gelu_reference(static_cast<double>(x[i]));
      EXPECT_NEAR(
          out[i], reference, std::abs(reference) * relative + 2e-16 * std::abs(x[i]) + absolute)
          << name_of(type) << " at " << x[i];
    }
  }
}

struct Case {
  int64_t rows, width;
  int64_t offset = 0;
  bool is_in_place = false;
  bool has_bias = true;
};

void expect_backward(Type type, const Case& test, Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(test.rows) + " x " +
               std::to_string(test.width) + " at " + std::to_string(test.offset));
  const int64_t count = test.rows * test.width;
  const std::vector<float> x = rounded(type, random.normal(count, 2));
  const std::vector<float> dy = rounded(type, random.normal(count));
  const std::vector<float> before = random.normal(test.width);
  const DeviceBuffer x_buffer(type, x, test.offset);
  const DeviceBuffer dy_buffer(type, dy, test.offset);
  const DeviceBuffer own_dx(type, count, test.offset);
  const DeviceBuffer& dx = test.is_in_place ? dy_buffer : own_dx;
  const DeviceBuffer bias(Type::Float32, before);
  const DeviceBuffer workspace(Type::Float32, gelu_backward_workspace_floats(test.width));
  gelu_backward({.type = type,
                 .dy = dy_buffer.data(),
                 .x = x_buffer.data(),
                 .dx = dx.data(),
                 .bias_gradient = test.has_bias ? bias.floats() : nullptr,
                 .workspace = test.has_bias ? workspace.floats() : nullptr,
                 .rows = test.rows,
                 .width = test.width},
                nullptr);
  const std::vector<float> out = dx.download();
  std::vector<double> reference;
  std::vector<double> sums(before.begin(), before.end());
  std::vector<double> magnitudes;
  for (const double sum : sums) {
    magnitudes.push_back(std::abs(sum));
  }
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i);
    reference.push_back(static_cast<double>(dy[at]) * slope_reference(static_cast<double>(x[at])));
    if (test.has_bias) {
      const size_t column = static_cast<size_t>(i % test.width);
      sums[column] += static_cast<double>(out[at]);
      magnitudes[column] += std::abs(static_cast<double>(out[at]));
    }
  }
  EXPECT_LT(relative_error(out, reference, smallest_step(type)), tolerance(type));
  // Of dx as rounded: float32 sums, whatever the type.
  EXPECT_LT(error_of_sums(bias.download(), sums, magnitudes), 1e-6);
  EXPECT_TRUE(dx.is_guard_intact());
  EXPECT_TRUE(bias.is_guard_intact());
  EXPECT_TRUE(workspace.is_guard_intact());
}

TEST_F(GeluBackwardTest, MatchesFloat64ForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {1, 7, 768, 1000, 4100}) {
      for (const int64_t rows : {1, 3, 33}) {
        expect_backward(type, {.rows = rows, .width = width}, random);
      }
    }
    expect_backward(type, {.rows = 513, .width = 1600}, random);
    expect_backward(type, {.rows = 4096, .width = 40}, random);
    expect_backward(type, {.rows = 4096, .width = 3}, random);
    expect_backward(type, {.rows = 65, .width = 1024, .offset = 1}, random);
  }
}

TEST_F(GeluBackwardTest, MayOverwriteDyAndGoWithoutBias) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {7, 3072}) {
      expect_backward(type, {.rows = 100, .width = width, .is_in_place = true}, random);
      expect_backward(type, {.rows = 100, .width = width, .has_bias = false}, random);
    }
  }
}

TEST_F(GeluBackwardTest, GivesTheSameBitsAgain) {
  Random random;
  const int64_t rows = 2000;
  const int64_t width = 768;
  const DeviceBuffer x(Type::BFloat16, random.normal(rows * width));
  const DeviceBuffer dy(Type::BFloat16, random.normal(rows * width));
  std::vector<std::vector<unsigned char>> bits;
  for (int run = 0; run < 2; ++run) {
    const DeviceBuffer dx(Type::BFloat16, rows * width);
    const DeviceBuffer bias(Type::Float32, std::vector<float>(width, 1.0f));
    const DeviceBuffer workspace(Type::Float32, gelu_backward_workspace_floats(width));
    gelu_backward({.type = Type::BFloat16,
                   .dy = dy.data(),
                   .x = x.data(),
                   .dx = dx.data(),
                   .bias_gradient = bias.floats(),
                   .workspace = workspace.floats(),
                   .rows = rows,
                   .width = width},
                  nullptr);
    bits.push_back(dx.bits());
    bits.push_back(bias.bits());
  }
  EXPECT_EQ(bits[0], bits[2]);
  EXPECT_EQ(bits[1], bits[3]);
}

TEST_F(GeluBackwardTest, NothingIsDoneForNoRows) {
  gelu(Type::Float32, nullptr, nullptr, 0, nullptr);
  gelu_backward({.type = Type::Float16,
                 .dy = nullptr,
                 .x = nullptr,
                 .dx = nullptr,
                 .bias_gradient = nullptr,
                 .workspace = nullptr,
                 .rows = 0,
                 .width = 8},
                nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace penstock::gpu
