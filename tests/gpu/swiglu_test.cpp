#include "penstock/gpu/swiglu.h"

#include "penstock/base/text.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class SwigluTest : public GpuTest {};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct Reference {
  Reference(const std::vector<float>& gate,
            const std::vector<float>& up,
            const std::vector<float>& gradient) {
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i], u = up[i], dy = gradient[i], s = sigmoid(g);
      out.push_back(g * s * u);
      gate_gradient.push_back(dy * u * (s + g * s * (1 - s)));
      up_gradient.push_back(dy * g * s);
    }
  }

  std::vector<double> out, gate_gradient, up_gradient;
};

}  // namespace

TEST_F(SwigluTest, MatchesFloat64BothWaysForAnyCountAndAlignment) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t count : {1, 7, 8, 768, 4100, 513 * 1024 + 3}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(cat(name_of(type), " x ", count, " at ", offset));
        const std::vector<float> gate = rounded(type, random.normal(count, 2));
        const std::vector<float> up = rounded(type, random.normal(count));
        const std::vector<float> dy = rounded(type, random.normal(count));
        const Reference reference(gate, up, dy);
        const DeviceBuffer gates(type, gate, offset), ups(type, up, offset), dys(type, dy, offset);
        const DeviceBuffer out(type, count, offset), gate_gradient(type, count, offset),
            up_gradient(type, count, offset);
        swiglu({type, gates.data(), ups.data(), out.data(), count}, nullptr);
        swiglu_backward({type,
                         dys.data(),
                         gates.data(),
                         ups.data(),
                         gate_gradient.data(),
                         up_gradient.data(),
                         count},
                        nullptr);
        const double step = smallest_step(type);
        EXPECT_LT(relative_error(out.download(), reference.out, step), tolerance(type));
        EXPECT_LT(relative_error(gate_gradient.download(), reference.gate_gradient, step),
                  tolerance(type));
        EXPECT_LT(relative_error(up_gradient.download(), reference.up_gradient, step),
                  tolerance(type));
        EXPECT_TRUE(out.is_guard_intact());
        EXPECT_TRUE(gate_gradient.is_guard_intact());
        EXPECT_TRUE(up_gradient.is_guard_intact());
      }
    }
  }
}

// As the layers do: the activation over the gate, gradients over the gate and over what came in.
TEST_F(SwigluTest, WorksInPlaceWithTheSameBits) {
  Random random;
  const int64_t count = 10007;
  for (const Type type : kAllTypes) {
    const std::vector<float> gate = random.normal(count, 2), dy = random.normal(count);
    const DeviceBuffer gates(type, gate), ups(type, random.normal(count)), dys(type, dy);
    const DeviceBuffer out(type, count), gate_gradient(type, count), up_gradient(type, count);
    swiglu({type, gates.data(), ups.data(), out.data(), count}, nullptr);
    swiglu_backward({type,
                     dys.data(),
                     gates.data(),
                     ups.data(),
                     gate_gradient.data(),
                     up_gradient.data(),
                     count},
                    nullptr);
    const DeviceBuffer over(type, gate);
    swiglu({type, over.data(), ups.data(), over.data(), count}, nullptr);
    EXPECT_EQ(over.bits(), out.bits()) << name_of(type);
    swiglu_backward({type, dys.data(), gates.data(), ups.data(), gates.data(), dys.data(), count},
                    nullptr);
    EXPECT_EQ(gates.bits(), gate_gradient.bits()) << name_of(type);
    EXPECT_EQ(dys.bits(), up_gradient.bits()) << name_of(type);
  }
}

// Nothing overflows where the gate is far from zero.
TEST_F(SwigluTest, StaysFiniteFarFromZero) {
  for (const Type type : kAllTypes) {
    const std::vector<float> gate = rounded(type, {-30000, -200, -90, -20, 0, 20, 90, 200, 30000});
    const std::vector<float> ones(gate.size(), 1.0f);
    const int64_t count = static_cast<int64_t>(gate.size());
    const Reference reference(gate, ones, ones);
    const DeviceBuffer gates(type, gate), ups(type, ones), dys(type, ones), out(type, count);
    swiglu({type, gates.data(), ups.data(), out.data(), count}, nullptr);
    swiglu_backward({type, dys.data(), gates.data(), ups.data(), gates.data(), dys.data(), count},
                    nullptr);
    EXPECT_LT(relative_error(out.download(), reference.out), tolerance(type));
    EXPECT_LT(relative_error(gates.download(), reference.gate_gradient), tolerance(type));
    EXPECT_LT(relative_error(dys.download(), reference.up_gradient), tolerance(type));
  }
}

TEST_F(SwigluTest, NothingIsDoneForNoElements) {
  swiglu({Type::Float32, nullptr, nullptr, nullptr, 0}, nullptr);
  swiglu_backward({Type::Float32, nullptr, nullptr, nullptr, nullptr, nullptr, 0}, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace penstock::gpu
