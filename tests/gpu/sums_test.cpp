#include "penstock/gpu/sums.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class Sums : public GpuTest {};

struct Case {
  int64_t rows, width, stride;
  int64_t offset = 0;
};

// Columns from width to stride are NaN: they must not count.
void expect_column_sums(Type type, const Case& test, Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(test.rows) + " x " +
               std::to_string(test.width) + " of " + std::to_string(test.stride));
  // A mean beside zero, for sums near zero have no relative error to speak of.
  std::vector<float> x = rounded(type, random.normal(test.rows * test.stride, 1, 0.5f));
  const std::vector<float> before = random.normal(test.width);
  std::vector<double> reference(before.begin(), before.end());
  for (int64_t row = 0; row < test.rows; ++row) {
    for (int64_t column = 0; column < test.stride; ++column) {
      float& value = x[static_cast<size_t>(row * test.stride + column)];
      if (column < test.width) {
        reference[static_cast<size_t>(column)] += static_cast<double>(value);
      } else {
        value = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  const DeviceBuffer in(type, x, test.offset);
  const DeviceBuffer out(Type::Float32, before);
  const DeviceBuffer workspace(Type::Float32, column_sums_workspace_floats(test.width));
  add_column_sums({.type = type,
                   .x = in.data(),
                   .rows = test.rows,
                   .width = test.width,
                   .stride = test.stride,
                   .out = out.floats(),
                   .workspace = workspace.floats()},
                  nullptr);
  EXPECT_LT(relative_error(out.download(), reference), 1e-5);
  EXPECT_TRUE(out.is_guard_intact());
  EXPECT_TRUE(workspace.is_guard_intact());
}

TEST_F(Sums, ColumnsMatchFloat64ForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t width : {1, 7, 768, 1000, 2056, 4100}) {
      for (const int64_t rows : {1, 3, 130}) {
        expect_column_sums(type, {.rows = rows, .width = width, .stride = width}, random);
      }
    }
    expect_column_sums(type, {.rows = 513, .width = 1280, .stride = 1280}, random);
    expect_column_sums(type, {.rows = 20000, .width = 16, .stride = 16}, random);
    expect_column_sums(type, {.rows = 20000, .width = 5, .stride = 5}, random);
  }
}

TEST_F(Sums, ColumnsBeyondTheWidthDoNotCount) {
  Random random;
  for (const Type type : kAllTypes) {
    expect_column_sums(type, {.rows = 70, .width = 768, .stride = 2304}, random);
    expect_column_sums(type, {.rows = 70, .width = 768, .stride = 771}, random);
    expect_column_sums(type, {.rows = 70, .width = 765, .stride = 768}, random);
    expect_column_sums(type, {.rows = 70, .width = 768, .stride = 768, .offset = 3}, random);
  }
}

TEST_F(Sums, GiveTheSameBitsAgain) {
  Random random;
  const int64_t rows = 3000;
  const int64_t width = 520;
  const DeviceBuffer x(Type::BFloat16, random.normal(rows * width));
  std::vector<std::vector<unsigned char>> bits;
  for (int run = 0; run < 2; ++run) {
    const DeviceBuffer out(Type::Float32, std::vector<float>(width, 0.25f));
    const DeviceBuffer workspace(Type::Float32, column_sums_workspace_floats(width));
    const ColumnSums work{.type = Type::BFloat16,
                          .x = x.data(),
                          .rows = rows,
                          .width = width,
                          .stride = width,
                          .out = out.floats(),
                          .workspace = workspace.floats()};
    add_column_sums(work, nullptr);
    bits.push_back(out.bits());
  }
  EXPECT_EQ(bits[0], bits[1]);
}

TEST_F(Sums, TotalIsInDouble) {
  Random random;
  for (const int64_t count : {1, 31, 1024, 1025, 65536}) {
    const std::vector<float> values = random.normal(count, 1, 5);
    double expected = 1e3;
    for (const float value : values) {
      expected += static_cast<double>(value);
    }
    const DeviceBuffer in(Type::Float32, values);
    const DeviceArray<double> total(std::vector<double>{1e3});
    add_sum(in.floats(), count, total.data(), nullptr);
    EXPECT_NEAR(total.download()[0], expected, 1e-12 * std::abs(expected)) << count;
    EXPECT_TRUE(total.is_guard_intact());
  }
}

TEST_F(Sums, PartialSumsGoToEachOutThatIsThere) {
  Random random;
  const int64_t count = 67;
  const int64_t width = 45;
  const std::vector<float> partials = random.normal(3 * count * width, 1, 1);
  const DeviceBuffer in(Type::Float32, partials);
  const DeviceBuffer first(Type::Float32, std::vector<float>(width, 2.0f));
  const DeviceBuffer last(Type::Float32, std::vector<float>(width, 3.0f));
  add_partial_sums({.partials = in.floats(),
                    .count = count,
                    .width = width,
                    .out = {first.floats(), nullptr, last.floats()}},
                   nullptr);
  std::vector<double> first_reference(width, 2.0);
  std::vector<double> last_reference(width, 3.0);
  for (int64_t i = 0; i < count * width; ++i) {
    const size_t column = static_cast<size_t>(i % width);
    first_reference[column] += static_cast<double>(partials[static_cast<size_t>(i)]);
    last_reference[column] +=
        static_cast<double>(partials[static_cast<size_t>(2 * count * width + i)]);
  }
  EXPECT_LT(relative_error(first.download(), first_reference), 1e-5);
  EXPECT_LT(relative_error(last.download(), last_reference), 1e-5);
}

TEST_F(Sums, NothingIsAddedForNoRows) {
  const DeviceBuffer out(Type::Float32, std::vector<float>(8, 1.0f));
  const DeviceBuffer workspace(Type::Float32, column_sums_workspace_floats(8));
  add_column_sums({.type = Type::Float32,
                   .x = nullptr,
                   .rows = 0,
                   .width = 8,
                   .stride = 8,
                   .out = out.floats(),
                   .workspace = workspace.floats()},
                  nullptr);
  const DeviceArray<double> total(std::vector<double>{7});
  add_sum(nullptr, 0, total.data(), nullptr);
  EXPECT_EQ(out.download(), std::vector<float>(8, 1.0f));
  EXPECT_EQ(total.download()[0], 7);
}

}  // namespace
}  // namespace penstock::gpu
