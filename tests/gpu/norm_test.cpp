#include "penstock/gpu/norm.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class LayerNorm : public GpuTest {};
class LayerNormBackward : public GpuTest {};

constexpr double kEpsilon = static_cast<double>(1e-5f);

struct Statistics {
  std::vector<double> mean, inverse;
};

Statistics statistics_of(const std::vector<float>& x, int64_t rows, int64_t width) {
  Statistics statistics;
  for (int64_t row = 0; row < rows; ++row) {
    const float* values = x.data() + row * width;
    double mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += static_cast<double>(values[i]);
    }
    mean /= static_cast<double>(width);
    double variance = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double centred = static_cast<double>(values[i]) - mean;
      variance += centred * centred;
    }
    variance /= static_cast<double>(width);
    statistics.mean.push_back(mean);
    statistics.inverse.push_back(1 / std::sqrt(variance + kEpsilon));
  }
  return statistics;
}

std::vector<float> to_floats(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

struct ForwardCase {
  int64_t rows, width;
  int64_t offset = 0;
  bool has_statistics = true;
};

void expect_forward(Type type, const ForwardCase& test, Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(test.rows) + " x " +
               std::to_string(test.width) + " at " + std::to_string(test.offset));
  const int64_t count = test.rows * test.width;
  // A row's mean far from zero, for near zero it has no relative error to speak of.
  const std::vector<float> x = rounded(type, random.normal(count, 1, 2));
  const std::vector<float> scale = random.normal(test.width, 0.5f, 1);
  const std::vector<float> shift = random.normal(test.width);
  const DeviceBuffer x_buffer(type, x, test.offset);
  const DeviceBuffer scale_buffer(Type::Float32, scale);
  const DeviceBuffer shift_buffer(Type::Float32, shift);
  const DeviceBuffer out(type, count, test.offset);
  const DeviceBuffer mean(Type::Float32, test.rows);
  const DeviceBuffer inverse(Type::Float32, test.rows);
  layer_norm({.type = type,
              .x = x_buffer.data(),
              .scale = scale_buffer.floats(),
              .shift = shift_buffer.floats(),
              .out = out.data(),
              .mean = test.has_statistics ? mean.floats() : nullptr,
              .inverse_deviation = test.has_statistics ? inverse.floats() : nullptr,
              .rows = test.rows,
              .width = test.width},
             nullptr);
  const Statistics statistics = statistics_of(x, test.rows, test.width);
  std::vector<double> reference;
  for (int64_t i = 0; i < count; ++i) {
    const size_t row = static_cast<size_t>(i / test.width);
    const size_t column = static_cast<size_t>(i % test.width);
    const double y = (static_cast<double>(x[static_cast<size_t>(i)]) - statistics.mean[row]) *
                     statistics.inverse[row];
    reference.push_back(y * static_cast<double>(scale[column]) +
                        static_cast<double>(shift[column]));
  }
  EXPECT_LT(relative_error(out.download(), reference), tolerance(type));
  EXPECT_TRUE(out.is_guard_intact());
  if (test.has_statistics) {
    EXPECT_LT(relative_error(mean.download(), statistics.mean), 1e-5);
    EXPECT_LT(relative_error(inverse.download(), statistics.inverse), 1e-5);
    EXPECT_TRUE(mean.is_guard_intact());
    EXPECT_TRUE(inverse.is_guard_intact());
  }
}

TEST_F(LayerNorm, MatchesFloat64ForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {7, 8, 264, 768, 1000, 1024, 1280, 1600, 1792, 2048, 2056, 4100}) {
      for (const int64_t rows : {1, 3, 34}) {
        expect_forward(type, {.rows = rows, .width = width}, random);
      }
    }
    expect_forward(type, {.rows = 513, .width = 768}, random);
    expect_forward(type, {.rows = 4096, .width = 24}, random);
    expect_forward(type, {.rows = 10, .width = 768, .offset = 1}, random);
  }
}

TEST_F(LayerNorm, GoesWithoutStatistics) {
  Random random;
  for (const Type type : kAllTypes) {
    expect_forward(type, {.rows = 5, .width = 768, .has_statistics = false}, random);
    expect_forward(type, {.rows = 5, .width = 33, .has_statistics = false}, random);
  }
}

TEST_F(LayerNorm, GivesTheShiftForAWidthOfOne) {
  Random random;
  for (const Type type : kAllTypes) {
    expect_forward(type, {.rows = 50, .width = 1}, random);
  }
}

// The variance about the mean: that of the squares would have no digit left.
TEST_F(LayerNorm, KeepsItsDigitsWhenTheMeanIsLarge) {
  Random random;
  for (const int64_t width : {768, 1001}) {
    const std::vector<float> x = random.normal(width, 1, 4000);
    const DeviceBuffer in(Type::Float32, x);
    const DeviceBuffer scale(Type::Float32, std::vector<float>(static_cast<size_t>(width), 1.0f));
    const DeviceBuffer shift(Type::Float32, std::vector<float>(static_cast<size_t>(width), 0.0f));
    const DeviceBuffer out(Type::Float32, width);
    const DeviceBuffer inverse(Type::Float32, 1);
    layer_norm({.type = Type::Float32,
                .x = in.data(),
                .scale = scale.floats(),
                .shift = shift.floats(),
                .out = out.data(),
                .mean = nullptr,
                .inverse_deviation = inverse.floats(),
                .rows = 1,
                .width = width},
               nullptr);
    // The mean itself is off by up to a few units of 4000's last place, 2.4e-4 each.
    const Statistics statistics = statistics_of(x, 1, width);
    EXPECT_LT(relative_error(inverse.download(), statistics.inverse), 1e-4);
    std::vector<double> reference;
    for (const float value : x) {
      reference.push_back((static_cast<double>(value) - statistics.mean[0]) *
                          statistics.inverse[0]);
    }
    EXPECT_LT(relative_error(out.download(), reference), 3e-3);
  }
}

enum class Target { Own, Dy, Residual };

struct BackwardCase {
  int64_t rows, width;
  int64_t offset = 0;
  Target dx = Target::Own;
  bool has_residual = true;
  bool has_sums = true;
};

struct Inputs {
  Inputs(Type type, const BackwardCase& test, Random& random) {
    const int64_t count = test.rows * test.width;
    x = rounded(type, random.normal(count, 2, 0.5f));
    dy = rounded(type, random.normal(count, 1, 0.3f));
    residual = rounded(type, random.normal(count, 1, 0.2f));
    scale = random.normal(test.width, 0.5f, 1);
    scale_gradient = random.normal(test.width);
    shift_gradient = random.normal(test.width);
    sums = random.normal(test.width);
    statistics = statistics_of(x, test.rows, test.width);
  }

  std::vector<float> x, dy, residual, scale, scale_gradient, shift_gradient, sums;
  Statistics statistics;
};

struct Expected {
  Expected(const BackwardCase& test, const Inputs& in)
      : scale_gradient(in.scale_gradient.begin(), in.scale_gradient.end()),
        shift_gradient(in.shift_gradient.begin(), in.shift_gradient.end()) {
    for (int64_t row = 0; row < test.rows; ++row) {
      add_row(test, in, row);
    }
  }

  std::vector<double> dx, scale_gradient, shift_gradient;

 private:
  void add_row(const BackwardCase& test, const Inputs& in, int64_t row) {
    const size_t width = static_cast<size_t>(test.width);
    const size_t first = static_cast<size_t>(row) * width;
    const double mean = in.statistics.mean[static_cast<size_t>(row)];
    const double inverse = in.statistics.inverse[static_cast<size_t>(row)];
    std::vector<double> y(width);
    std::vector<double> g(width);
    double mean_g = 0;
    double mean_gy = 0;
    for (size_t i = 0; i < width; ++i) {
      const double dy = static_cast<double>(in.dy[first + i]);
      y[i] = (static_cast<double>(in.x[first + i]) - mean) * inverse;
      g[i] = dy * static_cast<double>(in.scale[i]);
      mean_g += g[i] / static_cast<double>(width);
      mean_gy += g[i] * y[i] / static_cast<double>(width);
      scale_gradient[i] += dy * y[i];
      shift_gradient[i] += dy;
    }
    for (size_t i = 0; i < width; ++i) {
      const double residual = test.has_residual ? static_cast<double>(in.residual[first + i]) : 0;
      dx.push_back(inverse * (g[i] - mean_g - y[i] * mean_gy) + residual);
    }
  }
};

struct Computed {
  Computed(Type type, const BackwardCase& test, const Inputs& in)
      : x(type, in.x, test.offset),
        dy(type, in.dy, test.offset),
        residual(type, in.residual, test.offset),
        own_dx(type, test.rows * test.width, test.offset),
        scale(Type::Float32, in.scale),
        mean(Type::Float32, to_floats(in.statistics.mean)),
        inverse(Type::Float32, to_floats(in.statistics.inverse)),
        scale_gradient(Type::Float32, in.scale_gradient),
        shift_gradient(Type::Float32, in.shift_gradient),
        sums(Type::Float32, in.sums),
        workspace(Type::Float32, norm_backward_workspace_floats(test.width)),
        dx(test.dx == Target::Own  ? own_dx
           : test.dx == Target::Dy ? dy
                                   : residual) {
    layer_norm_backward({.type = type,
                         .dy = dy.data(),
                         .x = x.data(),
                         .scale = scale.floats(),
                         .mean = mean.floats(),
                         .inverse_deviation = inverse.floats(),
                         .residual_gradient = test.has_residual ? residual.data() : nullptr,
                         .dx = dx.data(),
                         .scale_gradient = scale_gradient.floats(),
                         .shift_gradient = shift_gradient.floats(),
                         .dx_column_sums = test.has_sums ? sums.floats() : nullptr,
                         .workspace = workspace.floats(),
                         .rows = test.rows,
                         .width = test.width},
                        nullptr);
  }

  bool are_guards_intact() const {
    return dx.is_guard_intact() && scale_gradient.is_guard_intact() &&
           shift_gradient.is_guard_intact() && sums.is_guard_intact() &&
           workspace.is_guard_intact();
  }

  DeviceBuffer x, dy, residual, own_dx, scale, mean, inverse;
  DeviceBuffer scale_gradient, shift_gradient, sums, workspace;
  const DeviceBuffer& dx;
};

void expect_backward(Type type, const BackwardCase& test, Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(test.rows) + " x " +
               std::to_string(test.width) + " at " + std::to_string(test.offset));
  const Inputs in(type, test, random);
  const Expected expected(test, in);
  const Computed run(type, test, in);
  const std::vector<float> dx = run.dx.download();
  EXPECT_LT(relative_error(dx, expected.dx), tolerance(type));
  EXPECT_LT(relative_error(run.scale_gradient.download(), expected.scale_gradient), 1e-5);
  EXPECT_LT(relative_error(run.shift_gradient.download(), expected.shift_gradient), 1e-5);
  // Of dx as rounded: float32 sums, whatever the type.
  std::vector<double> sums(in.sums.begin(), in.sums.end());
  for (size_t i = 0; test.has_sums && i < dx.size(); ++i) {
    sums[i % static_cast<size_t>(test.width)] += static_cast<double>(dx[i]);
  }
  EXPECT_LT(relative_error(run.sums.download(), sums), 1e-5);
  EXPECT_TRUE(run.are_guards_intact());
}

TEST_F(LayerNormBackward, MatchesFloat64ForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width :
         {7, 8, 256, 264, 768, 1000, 1024, 1280, 1600, 2048, 2056, 4096, 4100, 6152, 8200}) {
      for (const int64_t rows : {1, 3, 34}) {
        expect_backward(type, {.rows = rows, .width = width}, random);
      }
    }
    expect_backward(type, {.rows = 40, .width = 768, .offset = 1}, random);
  }
}

// Several rows a team, with a last round that not every team has.
TEST_F(LayerNormBackward, MatchesFloat64ForManyRows) {
  Random random;
  for (const Type type : kAllTypes) {
    expect_backward(type, {.rows = 4099, .width = 24}, random);
    expect_backward(type, {.rows = 9001, .width = 16}, random);
    expect_backward(type, {.rows = 4096, .width = 13}, random);
    expect_backward(type, {.rows = 1500, .width = 768}, random);
    expect_backward(type, {.rows = 500, .width = 1600}, random);
    expect_backward(type, {.rows = 300, .width = 2056}, random);
  }
}

TEST_F(LayerNormBackward, MayOverwriteDyOrTheResidual) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const Target target : {Target::Dy, Target::Residual}) {
      expect_backward(type, {.rows = 1200, .width = 520, .dx = target}, random);
      expect_backward(type, {.rows = 300, .width = 1001, .dx = target}, random);
    }
  }
}

TEST_F(LayerNormBackward, GoesWithoutResidualAndSums) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {77, 1280}) {
      expect_backward(type, {.rows = 50, .width = width, .has_residual = false}, random);
      expect_backward(type, {.rows = 50, .width = width, .has_sums = false}, random);
      expect_backward(
          type,
          {.rows = 50, .width = width, .dx = Target::Dy, .has_residual = false, .has_sums = false},
          random);
    }
  }
}

TEST_F(LayerNormBackward, GivesTheSameBitsAgain) {
  Random random;
  for (const int64_t width : {768, 770}) {
    const BackwardCase test{.rows = 3000, .width = width};
    const Inputs in(Type::BFloat16, test, random);
    const Computed first(Type::BFloat16, test, in);
    const Computed second(Type::BFloat16, test, in);
    EXPECT_EQ(first.dx.bits(), second.dx.bits());
    EXPECT_EQ(first.scale_gradient.bits(), second.scale_gradient.bits());
    EXPECT_EQ(first.shift_gradient.bits(), second.shift_gradient.bits());
    EXPECT_EQ(first.sums.bits(), second.sums.bits());
  }
}

TEST_F(LayerNormBackward, NothingIsDoneForNoRows) {
  layer_norm({.type = Type::Float32,
              .x = nullptr,
              .scale = nullptr,
              .shift = nullptr,
              .out = nullptr,
              .mean = nullptr,
              .inverse_deviation = nullptr,
              .rows = 0,
              .width = 8},
             nullptr);
  Random random;
  const BackwardCase test{.rows = 0, .width = 8};
  const Inputs in(Type::Float16, test, random);
  const Computed run(Type::Float16, test, in);
  EXPECT_EQ(run.scale_gradient.download(), in.scale_gradient);
  EXPECT_EQ(run.shift_gradient.download(), in.shift_gradient);
}

}  // namespace
}  // namespace penstock::gpu
