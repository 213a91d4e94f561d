// Root-mean-square norm against float64, both ways. Layer norm, of the same kernels: norm_test.cpp.
#include "penstock/base/text.h"
#include "penstock/gpu/norm.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class RmsNorm : public GpuTest {};

constexpr double kEpsilon = 1e-5;

struct Case {
  int64_t rows, width;
  int64_t offset = 0;  // 1: no pack is aligned
  bool has_residual = true;
  bool is_in_place = true;
};

std::string text_of(Type type, const Case& test) {
  return cat(name_of(type), " ", test.rows, " x ", test.width, " at ", test.offset);
}

// Inputs, what forward and backward must give, and what they gave.
struct Bench {
  Bench(Type type, const Case& given, Random& random)
      : test(given),
        count(given.rows * given.width),
        x(rounded(type, random.normal(count, 2, 0.5f))),
        dy(rounded(type, random.normal(count, 1, 0.3f))),
        residual(rounded(type, random.normal(count))),
        scale(random.normal(given.width, 0.5f, 1)),
        before(random.normal(given.width)),
        x_buffer(type, x, given.offset),
        dy_buffer(type, dy, given.offset),
        residual_buffer(type, residual, given.offset),
        out(type, count, given.offset),
        own_dx(type, count, given.offset),
        scale_buffer(Type::Float32, scale),
        inverse(Type::Float32, given.rows),
        scale_gradient(Type::Float32, before),
        workspace(Type::Float32, norm_backward_workspace_floats(given.width)),
        dx(given.is_in_place ? dy_buffer : own_dx) {
    rms_norm({.type = type,
              .x = x_buffer.data(),
              .scale = scale_buffer.floats(),
              .shift = nullptr,
              .out = out.data(),
              .mean = nullptr,
              .inverse_deviation = inverse.floats(),
              .rows = test.rows,
              .width = test.width,
              .epsilon = static_cast<float>(kEpsilon)},
             nullptr);
    rms_norm_backward({.type = type,
                       .dy = dy_buffer.data(),
                       .x = x_buffer.data(),
                       .scale = scale_buffer.floats(),
                       .mean = nullptr,
                       .inverse_deviation = inverse.floats(),
                       .residual_gradient = test.has_residual ? residual_buffer.data() : nullptr,
                       .dx = dx.data(),
                       .scale_gradient = scale_gradient.floats(),
                       .shift_gradient = nullptr,
                       .dx_column_sums = nullptr,
                       .workspace = workspace.floats(),
                       .rows = test.rows,
                       .width = test.width},
                      nullptr);
    work_out();
  }

  Case test;
  int64_t count;
  std::vector<float> x, dy, residual, scale, before;
  DeviceBuffer x_buffer, dy_buffer, residual_buffer, out, own_dx, scale_buffer, inverse;
  DeviceBuffer scale_gradient, workspace;
  const DeviceBuffer& dx;
  std::vector<double> expected_out, expected_inverse, expected_dx, expected_scale_gradient;

 private:
  void work_out() {
    expected_scale_gradient.assign(before.begin(), before.end());
    const size_t width = static_cast<size_t>(test.width);
    const auto number = [](float value) { return static_cast<double>(value); };
    for (size_t first = 0; first < static_cast<size_t>(count); first += width) {
      double squares = 0, along = 0;
      for (size_t i = 0; i < width; ++i) {
        squares += number(x[first + i]) * number(x[first + i]);
        along += number(dy[first + i]) * number(scale[i]) * number(x[first + i]);
      }
      const double size = static_cast<double>(width);
      const double factor = 1 / std::sqrt(squares / size + kEpsilon);
      expected_inverse.push_back(factor);
      for (size_t i = 0; i < width; ++i) {
        const double value = number(x[first + i]);
        const double gradient = number(dy[first + i]);
        expected_out.push_back(value * factor * number(scale[i]));
        expected_scale_gradient[i] += gradient * value * factor;
        expected_dx.push_back(
            factor * (gradient * number(scale[i]) - value * factor * factor * along / size) +
            (test.has_residual ? number(residual[first + i]) : 0));
      }
    }
  }
};

void expect_right(Type type, const Case& test, Random& random) {
  SCOPED_TRACE(text_of(type, test));
  const Bench run(type, test, random);
  EXPECT_LT(relative_error(run.out.download(), run.expected_out), tolerance(type));
  EXPECT_LT(relative_error(run.inverse.download(), run.expected_inverse), 1e-6);
  EXPECT_LT(relative_error(run.dx.download(), run.expected_dx), tolerance(type));
  EXPECT_LT(relative_error(run.scale_gradient.download(), run.expected_scale_gradient), 1e-5);
  for (const DeviceBuffer* buffer :
       {&run.out, &run.inverse, &run.dx, &run.scale_gradient, &run.workspace}) {
    EXPECT_TRUE(buffer->is_guard_intact());
  }
}

}  // namespace

TEST_F(RmsNorm, MatchesFloat64BothWaysForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {1, 7, 8, 264, 768, 1000, 2048, 2056, 4096, 4100, 6152, 8200}) {
      for (const int64_t rows : {1, 3, 34}) {
        expect_right(type, {.rows = rows, .width = width}, random);
      }
    }
    expect_right(type, {.rows = 1500, .width = 768}, random);
    expect_right(type, {.rows = 9001, .width = 16}, random);
    expect_right(type, {.rows = 40, .width = 768, .offset = 1}, random);
  }
}

TEST_F(RmsNorm, GoesWithoutAResidualAndBesideItsInput) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {33, 768, 8200}) {
      expect_right(type, {.rows = 5, .width = width, .has_residual = false}, random);
      expect_right(type, {.rows = 5, .width = width, .is_in_place = false}, random);
    }
  }
}

TEST_F(RmsNorm, GivesTheSameBitsAgain) {
  for (const int64_t width : {2048, 8200}) {
    Random one(5), other(5);
    const Case test{.rows = 3000, .width = width};
    const Bench first(Type::BFloat16, test, one), second(Type::BFloat16, test, other);
    EXPECT_EQ(first.out.bits(), second.out.bits());
    EXPECT_EQ(first.dx.bits(), second.dx.bits());
    EXPECT_EQ(first.scale_gradient.bits(), second.scale_gradient.bits());
  }
}

}  // namespace penstock::gpu
