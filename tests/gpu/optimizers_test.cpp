#include "penstock/gpu/optimizers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kSteps = 3;

// ---- The norm ----

class GpuGradientNorm : public GpuTest {
 protected:
  static GradientState norm_of(const std::vector<float>& gradients,
                               float clip = 0,
                               double inverse_loss_scale = 1) {
    const auto count = static_cast<int64_t>(gradients.size());
    const DeviceBuffer values(Type::Float32, gradients);
    const DeviceArray<double> workspace(kNormBlocks);
    const DeviceArray<GradientState> state(1);
    gradient_norm({.gradients = values.floats(),
                   .count = count,
                   .clip = clip,
                   .inverse_loss_scale = inverse_loss_scale,
                   .workspace = workspace.data(),
                   .state = state.data()},
                  nullptr);
    EXPECT_TRUE(workspace.is_guard_intact());
    EXPECT_TRUE(state.is_guard_intact());
    return state.download()[0];
  }
};

constexpr int64_t kNormCounts[] = {1, 3, 4, 17, 4096, 4097, 1000003, 5000001};

TEST_F(GpuGradientNorm, OfKnownValues) {
  for (const int64_t count : kNormCounts) {
    SCOPED_TRACE(count);
    std::vector<float> gradients;
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      gradients.push_back(static_cast<float>(i % 7) - 2);
      squares += static_cast<double>((i % 7 - 2) * (i % 7 - 2));
    }
    const GradientState state = norm_of(gradients);
    EXPECT_EQ(state.norm, std::sqrt(squares));  // sums of whole numbers are exact
    EXPECT_EQ(state.scale, 1);
    EXPECT_EQ(state.is_finite, 1);
  }
}

TEST_F(GpuGradientNorm, OfRandomValuesAndTheSameBitsAgain) {
  Random random;
  const std::vector<float> gradients = random.normal(1000003, 0.01f);
  double squares = 0;
  for (const float value : gradients) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double norm = norm_of(gradients).norm;
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-11 * norm);
  EXPECT_EQ(norm_of(gradients).norm, norm);
}

TEST_F(GpuGradientNorm, NeitherOverflowsNorVanishes) {
  for (const double value : {1e-38, 1e-30, 1e30, 3e38}) {
    const std::vector<float> gradients(100, static_cast<float>(value));
    const GradientState state = norm_of(gradients);
    EXPECT_NEAR(state.norm, 10 * value, 1e-6 * 10 * value);
    EXPECT_EQ(state.is_finite, 1);
  }
}

TEST_F(GpuGradientNorm, ClipsTheTrueGradients) {
  const std::vector<float> gradients(16, 512.0f);  // norm 2048; true norm 2
  const double inverse = 1.0 / 1024;
  EXPECT_EQ(norm_of(gradients, 0, inverse).norm, 2);
  EXPECT_EQ(norm_of(gradients, 0, inverse).scale, static_cast<float>(inverse));
  EXPECT_EQ(norm_of(gradients, 4, inverse).scale, static_cast<float>(inverse));
  EXPECT_FLOAT_EQ(norm_of(gradients, 0.5f, inverse).scale,
                  static_cast<float>(inverse * 0.5 / (2 + 1e-6)));
  EXPECT_EQ(norm_of(std::vector<float>(16, 0.0f), 1).scale, 1);
}

TEST_F(GpuGradientNorm, SeesOneBadValueAnywhere) {
  for (const int64_t count : kNormCounts) {
    for (const float bad : {kInfinity, -kInfinity, kNan}) {
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        std::vector<float> gradients(static_cast<size_t>(count), 1.0f);
        gradients[static_cast<size_t>(at)] = bad;
        EXPECT_EQ(norm_of(gradients, 1, 0.5).is_finite, 0) << bad << " at " << at;
      }
    }
  }
}

// ---- The updates ----

// Parameters one after the other with padding to 16 elements, as model::Parameters places them.
struct Layout {
  std::vector<UpdateChunk> chunks;
  std::vector<LambParameter> parameters;
  std::vector<int64_t> firsts, counts;  // of the parameters
  int64_t total = 0;

  explicit Layout(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) {
      const int32_t has_decay = parameters.size() % 2 == 0;
      const auto first_chunk = static_cast<int64_t>(chunks.size());
      for (int64_t done = 0; done < size; done += kChunkElements) {
        const int64_t count = std::min(kChunkElements, size - done);
        chunks.push_back({total + done, static_cast<int32_t>(count), has_decay});
      }
      const auto chunk_count =
          static_cast<int32_t>(static_cast<int64_t>(chunks.size()) - first_chunk);
      parameters.push_back({first_chunk, chunk_count, has_decay});
      firsts.push_back(total);
      counts.push_back(size);
      total += (size + 15) / 16 * 16;
    }
  }
};

const Layout& layout() {
  static const Layout all({200003, 1, 17, 65536, 8192, 8193, 65537, 3, 768, 2});
  return all;
}

float* host(std::vector<float>& values, int64_t first) {
  return values.data() + first;
}

// Flat buffers on the host, changed by the CPU kernels, and the same on the device.
struct Buffers {
  std::vector<float> weights, mean, mean_square;
  DeviceBuffer device_weights, device_mean, device_mean_square, device_gradients, device_copy;
  DeviceArray<UpdateChunk> chunks;
  DeviceArray<GradientState> state;
  Type copy_type;

  Buffers(Type type, Random& random)
      : weights(random.normal(layout().total)),
        mean(static_cast<size_t>(layout().total)),
        mean_square(static_cast<size_t>(layout().total)),
        device_weights(Type::Float32, weights),
        device_mean(Type::Float32, mean),
        device_mean_square(Type::Float32, mean_square),
        device_gradients(Type::Float32, layout().total),
        device_copy(type, layout().total),
        chunks(layout().chunks),
        state(1),
        copy_type(type) {
    set_scale(1);
  }

  void set_scale(float scale, bool is_finite = true) {
    state.upload({GradientState{.norm = 1, .scale = scale, .is_finite = is_finite}});
  }
  void* copy() const { return copy_type == Type::Float32 ? nullptr : device_copy.data(); }
  auto chunk_count() const { return static_cast<int64_t>(layout().chunks.size()); }

  kernels::UpdateRange range(const std::vector<float>& gradients,
                             int64_t first,
                             int64_t count,
                             float scale) {
    return {host(weights, first), gradients.data() + first, count, scale};
  }
  bool are_guards_intact() const {
    return device_weights.is_guard_intact() && device_mean.is_guard_intact() &&
           device_mean_square.is_guard_intact() && device_copy.is_guard_intact();
  }
};

// Padding included: it must be as it was.
void expect_near(const DeviceBuffer& actual, const std::vector<float>& expected) {
  const std::vector<float> values = actual.download();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << i;
  }
}

void expect_copy_of_weights(const Buffers& buffers) {
  if (buffers.copy() == nullptr) {
    return;
  }
  const std::vector<float> weights = rounded(buffers.copy_type, buffers.device_weights.download());
  const std::vector<float> copy = buffers.device_copy.download();
  std::vector<bool> is_written(weights.size());
  for (const UpdateChunk& chunk : layout().chunks) {
    std::fill_n(is_written.begin() + chunk.first, chunk.count, true);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (is_written[i]) {
      ASSERT_EQ(copy[i], weights[i]) << i;
    } else {
      ASSERT_TRUE(std::isnan(copy[i])) << "padding written at " << i;
    }
  }
}

kernels::AdamSettings adam_settings(int step, double beta2 = 0.999) {
  return {.lr = 0.01f,
          .beta1 = 0.9f,
          .beta2 = static_cast<float>(beta2),
          .epsilon = 1e-8f,
          .weight_decay = 0.1f,
          .one_minus_beta1 = static_cast<float>(1 - 0.9),
          .one_minus_beta2 = static_cast<float>(1 - beta2),
          .bias_correction1 = static_cast<float>(1 - std::pow(0.9, step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(beta2, step))};
}

AdamW adamw_of(Buffers& buffers, int step) {
  return {.weights = buffers.device_weights.floats(),
          .gradients = buffers.device_gradients.floats(),
          .mean = buffers.device_mean.floats(),
          .mean_square = buffers.device_mean_square.floats(),
          .compute_copy = buffers.copy(),
          .copy_type = buffers.copy_type,
          .chunks = buffers.chunks.data(),
          .chunk_count = buffers.chunk_count(),
          .state = buffers.state.data(),
          .settings = adam_settings(step)};
}

class GpuOptimizers : public GpuTest {};

TEST_F(GpuOptimizers, AdamwIsThatOfTheCpu) {
  Random random;
  for (const Type type : kAllTypes) {
    SCOPED_TRACE(name_of(type));
    Buffers buffers(type, random);
    for (int step = 1; step <= kSteps; ++step) {
      const std::vector<float> gradients = random.normal(layout().total, 3);
      const float scale = 0.25f * static_cast<float>(step);
      buffers.device_gradients.upload(gradients);
      buffers.set_scale(scale);
      adamw_update(adamw_of(buffers, step), nullptr);
      for (const UpdateChunk& chunk : layout().chunks) {
        kernels::AdamSettings settings = adam_settings(step);
        settings.weight_decay = chunk.has_decay != 0 ? settings.weight_decay : 0;
        kernels::adamw_update(buffers.range(gradients, chunk.first, chunk.count, scale),
                              host(buffers.mean, chunk.first),
                              host(buffers.mean_square, chunk.first),
                              settings);
      }
    }
    expect_near(buffers.device_weights, buffers.weights);
    expect_near(buffers.device_mean, buffers.mean);
    expect_near(buffers.device_mean_square, buffers.mean_square);
    expect_copy_of_weights(buffers);
    EXPECT_TRUE(buffers.are_guards_intact());
  }
}

TEST_F(GpuOptimizers, AdamwFollowsItsFormulaInDouble) {
  Random random;
  Buffers buffers(Type::Float32, random);
  std::vector<double> weights(buffers.weights.begin(), buffers.weights.end());
  std::vector<double> mean(weights.size()), mean_square(weights.size());
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients = random.normal(layout().total);
    buffers.device_gradients.upload(gradients);
    adamw_update(adamw_of(buffers, step), nullptr);
    const double correction1 = 1 - std::pow(0.9, step), correction2 = 1 - std::pow(0.999, step);
    for (const UpdateChunk& chunk : layout().chunks) {
      for (int64_t k = chunk.first; k < chunk.first + chunk.count; ++k) {
        const auto i = static_cast<size_t>(k);
        const double gradient = gradients[i];
        mean[i] = 0.9 * mean[i] + 0.1 * gradient;
        mean_square[i] = 0.999 * mean_square[i] + 0.001 * gradient * gradient;
        const double decay = chunk.has_decay != 0 ? 0.01 * 0.1 : 0;
        weights[i] =
            weights[i] * (1 - decay) -
            0.01 * (mean[i] / correction1) / (std::sqrt(mean_square[i] / correction2) + 1e-8);
      }
    }
  }
  EXPECT_LT(relative_error(buffers.device_weights.download(), weights), 1e-6);
  EXPECT_LT(relative_error(buffers.device_mean.download(), mean), 1e-6);
  EXPECT_LT(relative_error(buffers.device_mean_square.download(), mean_square), 1e-6);
}

Sgd sgd_of(Buffers& buffers, const kernels::SgdSettings& settings) {
  return {.weights = buffers.device_weights.floats(),
          .gradients = buffers.device_gradients.floats(),
          .momentum_buffer = settings.momentum == 0 ? nullptr : buffers.device_mean.floats(),
          .compute_copy = buffers.copy(),
          .copy_type = buffers.copy_type,
          .chunks = buffers.chunks.data(),
          .chunk_count = buffers.chunk_count(),
          .state = buffers.state.data(),
          .settings = settings};
}

TEST_F(GpuOptimizers, SgdIsThatOfTheCpu) {
  Random random;
  const kernels::SgdSettings cases[] = {{0.1f, 0, 0.01f, false, true},
                                        {0.1f, 0.9f, 0.01f, false, true},
                                        {0.1f, 0.9f, 0.01f, true, true}};
  for (const Type type : kAllTypes) {
    for (kernels::SgdSettings settings : cases) {
      SCOPED_TRACE(name_of(type));
      Buffers buffers(type, random);
      for (int step = 1; step <= kSteps; ++step) {
        settings.is_first_step = step == 1;
        const std::vector<float> gradients = random.normal(layout().total);
        buffers.device_gradients.upload(gradients);
        buffers.set_scale(0.5f);
        sgd_update(sgd_of(buffers, settings), nullptr);
        for (const UpdateChunk& chunk : layout().chunks) {
          kernels::SgdSettings of_chunk = settings;
          of_chunk.weight_decay = chunk.has_decay != 0 ? settings.weight_decay : 0;
          kernels::sgd_update(buffers.range(gradients, chunk.first, chunk.count, 0.5f),
                              host(buffers.mean, chunk.first),
                              of_chunk);
        }
      }
      expect_near(buffers.device_weights, buffers.weights);
      expect_near(buffers.device_mean, buffers.mean);
      expect_copy_of_weights(buffers);
      EXPECT_TRUE(buffers.are_guards_intact());
    }
  }
}

// What LAMB needs besides the Buffers.
struct LambBuffers {
  DeviceBuffer update{Type::Float32, layout().total};
  DeviceArray<LambParameter> parameters{layout().parameters};
  DeviceArray<kernels::LambNorms> norms{static_cast<int64_t>(layout().chunks.size()) *
                                        kChunkSlices};
  DeviceArray<float> rates{static_cast<int64_t>(layout().chunks.size())};
};

Lamb lamb_of(Buffers& buffers, const LambBuffers& own, int step) {
  return {.weights = buffers.device_weights.floats(),
          .gradients = buffers.device_gradients.floats(),
          .mean = buffers.device_mean.floats(),
          .mean_square = buffers.device_mean_square.floats(),
          .update = own.update.floats(),
          .compute_copy = buffers.copy(),
          .copy_type = buffers.copy_type,
          .chunks = buffers.chunks.data(),
          .chunk_count = buffers.chunk_count(),
          .parameters = own.parameters.data(),
          .parameter_count = static_cast<int64_t>(layout().parameters.size()),
          .norms = own.norms.data(),
          .rates = own.rates.data(),
          .state = buffers.state.data(),
          .settings = adam_settings(step)};
}

void run_lamb(const Lamb& work) {
  lamb_direction(work, nullptr);
  lamb_ratio(work, nullptr);
  lamb_apply(work, nullptr);
}

// As optim::Lamb does it.
void run_cpu_lamb(Buffers& buffers, const std::vector<float>& gradients, int step, float scale) {
  for (size_t p = 0; p < layout().parameters.size(); ++p) {
    const int64_t first = layout().firsts[p], count = layout().counts[p];
    const bool is_scaled = layout().parameters[p].is_scaled != 0;
    kernels::AdamSettings settings = adam_settings(step);
    settings.weight_decay = is_scaled ? settings.weight_decay : 0;
    std::vector<float> update(static_cast<size_t>(count));
    const kernels::LambNorms norms =
        kernels::lamb_direction(buffers.range(gradients, first, count, scale),
                                host(buffers.mean, first),
                                host(buffers.mean_square, first),
                                update.data(),
                                settings);
    const bool has_ratio = is_scaled && norms.weights > 0 && norms.update > 0;
    const double ratio = has_ratio ? std::sqrt(norms.weights / norms.update) : 1;
    kernels::lamb_apply(host(buffers.weights, first),
                        update.data(),
                        count,
                        static_cast<float>(static_cast<double>(settings.lr) * ratio));
  }
}

TEST_F(GpuOptimizers, LambIsThatOfTheCpu) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const bool is_update_in_gradients : {false, true}) {
      SCOPED_TRACE(std::string(name_of(type)) + (is_update_in_gradients ? ", in place" : ""));
      Buffers buffers(type, random);
      const LambBuffers own;
      // A parameter of zeros has no ratio in its first step.
      std::fill_n(host(buffers.weights, layout().firsts[2]), layout().counts[2], 0.0f);
      buffers.device_weights.upload(buffers.weights);
      for (int step = 1; step <= kSteps; ++step) {
        const std::vector<float> gradients = random.normal(layout().total);
        buffers.device_gradients.upload(gradients);
        buffers.set_scale(0.5f);
        Lamb work = lamb_of(buffers, own, step);
        work.update = is_update_in_gradients ? buffers.device_gradients.floats() : work.update;
        run_lamb(work);
        run_cpu_lamb(buffers, gradients, step, 0.5f);
      }
      expect_near(buffers.device_weights, buffers.weights);
      expect_near(buffers.device_mean, buffers.mean);
      expect_near(buffers.device_mean_square, buffers.mean_square);
      expect_copy_of_weights(buffers);
      EXPECT_TRUE(buffers.are_guards_intact());
      EXPECT_TRUE(own.update.is_guard_intact());
      EXPECT_TRUE(own.norms.is_guard_intact());
      EXPECT_TRUE(own.rates.is_guard_intact());
    }
  }
}

TEST_F(GpuOptimizers, LambRepeatsItsBits) {
  Random random;
  const std::vector<float> weights = random.normal(layout().total);
  const std::vector<float> gradients = random.normal(layout().total);
  std::vector<unsigned char> bits[2];
  for (std::vector<unsigned char>& of_run : bits) {
    Buffers buffers(Type::BFloat16, random);
    const LambBuffers own;
    buffers.device_weights.upload(weights);
    buffers.device_gradients.upload(gradients);
    run_lamb(lamb_of(buffers, own, 1));
    of_run = buffers.device_weights.bits();
  }
  EXPECT_TRUE(bits[0] == bits[1]);
}

TEST_F(GpuOptimizers, NothingChangesWhenAGradientIsNotFinite) {
  Random random;
  Buffers buffers(Type::BFloat16, random);
  const LambBuffers own;
  std::vector<float> gradients = random.normal(layout().total);
  gradients[layout().total / 2] = kInfinity;
  buffers.device_gradients.upload(gradients);
  const DeviceArray<double> workspace(kNormBlocks);
  gradient_norm({.gradients = buffers.device_gradients.floats(),
                 .count = layout().total,
                 .clip = 1,
                 .inverse_loss_scale = 1,
                 .workspace = workspace.data(),
                 .state = buffers.state.data()},
                nullptr);
  const auto all_bits = [&] {
    return std::vector<std::vector<unsigned char>>{buffers.device_weights.bits(),
                                                   buffers.device_mean.bits(),
                                                   buffers.device_mean_square.bits(),
                                                   buffers.device_copy.bits()};
  };
  const auto before = all_bits();
  adamw_update(adamw_of(buffers, 1), nullptr);
  EXPECT_TRUE(all_bits() == before) << "AdamW";
  for (const float momentum : {0.0f, 0.9f}) {
    sgd_update(sgd_of(buffers, {0.1f, momentum, 0.01f, false, true}), nullptr);
    EXPECT_TRUE(all_bits() == before) << "SGD, momentum " << momentum;
  }
  run_lamb(lamb_of(buffers, own, 1));
  EXPECT_TRUE(all_bits() == before) << "LAMB";
}

TEST_F(GpuOptimizers, CopyOfWeightsIsRounded) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t count : {1, 3, 4, 5, 1024, 1027, 300001}) {
      SCOPED_TRACE(std::string(name_of(type)) + ", " + std::to_string(count));
      const std::vector<float> weights = random.normal(count);
      const DeviceBuffer from(Type::Float32, weights), to(type, count);
      copy_weights(from.floats(), to.data(), type, count, nullptr);
      EXPECT_TRUE(to.download() == rounded(type, weights));
      EXPECT_TRUE(to.is_guard_intact());
    }
  }
}

}  // namespace
}  // namespace penstock::gpu
