// Rotary positions against float64 and against the CPU's.
#include "penstock/gpu/rotary.h"

#include "penstock/base/text.h"
#include "penstock/kernels/rotary.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class Rotary : public GpuTest {};

struct Case {
  int64_t samples, context, heads, head_width;
  int64_t beside = 0;  // heads of a row that are not turned
  int64_t offset = 0;  // 1: no pack is aligned

  int64_t rows() const { return samples * context; }
  int64_t stride() const { return (heads + beside) * head_width; }
};

std::vector<double> frequencies_of(const Case& test) {
  return kernels::rotary_frequencies(test.head_width, 10000, {.factor = 8});
}

void turn(Type type, const Case& test, const DeviceBuffer& x, bool is_backward) {
  rotate({.type = type,
          .x = x.data(),
          .rows = test.rows(),
          .stride = test.stride(),
          .heads = test.heads,
          .context = test.context,
          .is_backward = is_backward},
         RotaryFrequencies(frequencies_of(test)),
         nullptr);
}

std::vector<double> turned(const Case& test, const std::vector<float>& x, bool is_backward) {
  std::vector<double> out(x.begin(), x.end());
  const std::vector<double> frequencies = frequencies_of(test);
  const int64_t half = test.head_width / 2;
  for (int64_t row = 0; row < test.rows(); ++row) {
    for (int64_t head = 0; head < test.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = (is_backward ? -1 : 1) * static_cast<double>(row % test.context) *
                             frequencies[static_cast<size_t>(i)];
        const size_t one = static_cast<size_t>(row * test.stride() + head * test.head_width + i);
        const size_t other = one + static_cast<size_t>(half);
        const double a = static_cast<double>(x[one]), b = static_cast<double>(x[other]);
        out[one] = a * std::cos(angle) - b * std::sin(angle);
        out[other] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  return out;
}

const Case kCases[] = {{1, 1, 1, 2},
                       {2, 5, 3, 6, 1},
                       {3, 17, 4, 16, 2},
                       {2, 130, 5, 64, 1},
                       {1, 4096, 2, 128, 1},
                       {1, 33, 2, 512, 1},
                       {2, 40, 3, 80, 2},
                       {2, 40, 3, 64, 2, 1}};

}  // namespace

TEST_F(Rotary, MatchesFloat64BothWays) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const Case& test : kCases) {
      for (const bool is_backward : {false, true}) {
        SCOPED_TRACE(cat(name_of(type), " T", test.context, " D", test.head_width));
        const std::vector<float> x = rounded(type, random.normal(test.rows() * test.stride()));
        const DeviceBuffer buffer(type, x, test.offset);
        turn(type, test, buffer, is_backward);
        const std::vector<float> out = buffer.download();
        // Every head alone: what is not turned keeps its bits, and an error must not hide.
        EXPECT_LT(relative_error(out, turned(test, x, is_backward)),
                  type == Type::Float32 ? 2e-7 : tolerance(type) / 2);
        for (int64_t row = 0; row < test.rows(); ++row) {
          for (int64_t i = test.heads * test.head_width; i < test.stride(); ++i) {
            const size_t at = static_cast<size_t>(row * test.stride() + i);
            ASSERT_EQ(out[at], x[at]) << "row " << row << " column " << i;
          }
        }
        EXPECT_TRUE(buffer.is_guard_intact());
      }
    }
  }
}

TEST_F(Rotary, TurnsAsTheCpuDoes) {
  Random random;
  const Case test{.samples = 2, .context = 600, .heads = 3, .head_width = 64};
  std::vector<float> x = random.normal(test.rows() * test.stride());
  const DeviceBuffer buffer(Type::Float32, x);
  turn(Type::Float32, test, buffer, /*is_backward=*/false);
  const kernels::RotaryTable table(test.context, frequencies_of(test));
  kernels::rotate(
      {.rows = x.data(), .heads = 3, .context = test.context, .table = &table}, 0, test.rows());
  const std::vector<float> out = buffer.download();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(out[i], x[i], 1e-6f) << i;
  }
}

TEST_F(Rotary, NothingIsDoneForNoRows) {
  const Case test{.samples = 0, .context = 4, .heads = 1, .head_width = 4};
  const DeviceBuffer buffer(Type::Float32, 1);
  turn(Type::Float32, test, buffer, /*is_backward=*/false);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace penstock::gpu
