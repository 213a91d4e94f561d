// What every layer must keep, on the GPU: the same bits with and without keeping where results must
// be deterministic, the bytes it says it keeps, and gradients that add up or overwrite.

#include "gpu/layer_bench.h"

namespace penstock::model {

namespace {

using test::gpu;
using test::LayerBench;
using test::LayerCase;
using test::occupied;

class GpuLayers : public test::OnGpu<testing::TestWithParam<LayerCase>> {};

// How far two runs may differ: the fast context's attention adds up in any order.
double repeat_tolerance(at::ScalarType type, bool is_deterministic) {
  return is_deterministic || type == at::kFloat ? 1e-5 : test::chain_tolerance(type) / 4;
}

void expect_same_bits(const LayerBench& bench,
                      const Tensors& dx,
                      const LayerBench& expected,
                      const Tensors& expected_dx) {
  EXPECT_EQ(dx[0].defined(), expected_dx[0].defined());
  EXPECT_TRUE(!dx[0].defined() || at::equal(dx[0], expected_dx[0])) << "gradient of the input";
  for (size_t i = 0; i < bench.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(bench.gradients[i], expected.gradients[i]))
        << bench.layer->parameters()[i].name;
  }
}

}  // namespace

TEST_P(GpuLayers, KeepingDoesNotChangeABit) {
  const LayerBench bench(GetParam(), gpu(/*is_deterministic=*/true));
  const Tensors expected = bench.forward(nullptr);
  EXPECT_TRUE(at::isfinite(expected[0]).all().item<bool>());
  EXPECT_TRUE(at::equal(bench.forward(nullptr)[0], expected[0]));
  for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
    Saved saved{.mode = mode};
    EXPECT_TRUE(at::equal(bench.forward(&saved)[0], expected[0])) << "save mode " << mode;
  }
}

TEST_P(GpuLayers, EverySaveModeGivesTheSameBitsWithAndWithoutOutput) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  LayerBench first(GetParam(), device);
  const Tensors expected = first.backward();
  for (int32_t mode = 0; mode < first.save_modes(); ++mode) {
    const SaveMode& named = first.layer->save_modes()[static_cast<size_t>(mode)];
    EXPECT_FALSE(named.needs_output);
    for (const bool without_output : {false, true}) {
      SCOPED_TRACE(cat(named.name, without_output ? " without output" : ""));
      LayerBench bench(GetParam(), device);
      const Tensors dx = bench.backward(mode, without_output);
      expect_same_bits(bench, dx, first, expected);
    }
  }
}

TEST_P(GpuLayers, KeepsAsManyBytesAsItSaysInEverySaveMode) {
  for (const bool is_deterministic : {false, true}) {
    LayerBench bench(GetParam(), gpu(is_deterministic));
    bench.backward();  // whatever is made once is made now
    for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
      SCOPED_TRACE(bench.layer->save_modes()[static_cast<size_t>(mode)].name);
      const LayerSize size = bench.layer->size_for(bench.input_shapes(), bench.type, mode);
      ASSERT_EQ(size.outputs.size(), 1U);
      const int64_t without_output = size.kept_bytes - occupied(size.outputs[0].bytes());
      const int64_t before = bench.held();
      {
        Saved saved{.mode = mode};
        Tensors output = bench.forward(&saved);
        EXPECT_EQ(bench.held() - before, size.kept_bytes);
        EXPECT_EQ(output[0].sizes().vec(), size.outputs[0].sizes);
        EXPECT_EQ(output[0].scalar_type(), size.outputs[0].type);
        output.clear();
        EXPECT_EQ(bench.held() - before, without_output);
      }
      EXPECT_EQ(bench.held(), before);
      Saved saved{.mode = mode, .without_output = true};
      EXPECT_TRUE(bench.forward(&saved).empty());
      EXPECT_EQ(bench.held() - before, without_output);
    }
  }
}

TEST_P(GpuLayers, KeepsNothingWithoutSaved) {
  for (const bool is_deterministic : {false, true}) {
    LayerBench bench(GetParam(), gpu(is_deterministic));
    bench.backward();
    const int64_t before = bench.held();
    Tensors output = bench.forward(nullptr);
    EXPECT_EQ(bench.held() - before, occupied(static_cast<int64_t>(output[0].nbytes())));
    output.clear();
    const Tensors dx = bench.backward();
    int64_t left = 0;  // the gradient, and its column sums where the layer hands them on
    for (const at::Tensor& tensor : dx) {
      left += tensor.defined() ? occupied(static_cast<int64_t>(tensor.nbytes())) : 0;
    }
    EXPECT_EQ(bench.held() - before, left) << "backward leaves the input's gradient alone";
  }
}

TEST_P(GpuLayers, BackwardAddsToGradients) {
  for (const bool is_deterministic : {false, true}) {
    const device::Device& device = gpu(is_deterministic);
    LayerBench once(GetParam(), device), twice(GetParam(), device);
    once.backward();
    twice.backward();
    twice.backward();
    for (size_t i = 0; i < once.gradients.size(); ++i) {
      EXPECT_LT(test::error_of(twice.gradients[i], 2 * once.gradients[i]),
                repeat_tolerance(once.type, is_deterministic))
          << once.layer->parameters()[i].name;
    }
  }
}

TEST_P(GpuLayers, OverwritesFreshGradientsAndAddsToTheOthers) {
  for (const bool is_deterministic : {false, true}) {
    const device::Device& device = gpu(is_deterministic);
    LayerBench clean(GetParam(), device), begun(GetParam(), device);
    clean.backward();
    const std::vector<ParameterSpec>& specs = clean.layer->parameters();
    std::vector<uint8_t> fresh(specs.size(), 0);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].is_gradient_overwritten) {
        begun.gradients[i].fill_(NAN);  // an addition would show
        fresh[i] = 1;
      }
    }
    begun.backward(/*mode=*/0, /*without_output=*/false, fresh);
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_LT(test::error_of(begun.gradients[i], clean.gradients[i]),
                repeat_tolerance(clean.type, is_deterministic))
          << specs[i].name;
    }
    // Nothing is fresh any more: the next backward adds.
    begun.backward();
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_LT(test::error_of(begun.gradients[i], 2 * clean.gradients[i]),
                repeat_tolerance(clean.type, is_deterministic))
          << specs[i].name;
    }
  }
}

TEST_P(GpuLayers, OverwritesEachFreshGradientAlone) {
  for (const bool is_deterministic : {false, true}) {
    const device::Device& device = gpu(is_deterministic);
    LayerBench clean(GetParam(), device);
    clean.backward();
    const std::vector<ParameterSpec>& specs = clean.layer->parameters();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i].is_gradient_overwritten) {
        continue;
      }
      LayerBench begun(GetParam(), device);
      begun.backward();
      begun.gradients[i].fill_(NAN);
      std::vector<uint8_t> fresh(specs.size(), 0);
      fresh[i] = 1;
      begun.backward(/*mode=*/0, /*without_output=*/false, fresh);
      for (size_t k = 0; k < specs.size(); ++k) {
        EXPECT_LT(test::error_of(begun.gradients[k], (k == i ? 1 : 2) * clean.gradients[k]),
                  repeat_tolerance(clean.type, is_deterministic))
            << specs[k].name << " where " << specs[i].name << " is fresh";
      }
    }
  }
}

TEST_P(GpuLayers, LeavesInputWeightsAndOutputGradientAsTheyWere) {
  for (const bool is_deterministic : {false, true}) {
    LayerBench bench(GetParam(), gpu(is_deterministic));
    const auto copies = [](const Tensors& tensors) {
      Tensors all;
      for (const at::Tensor& tensor : tensors) {
        all.push_back(tensor.clone());
      }
      return all;
    };
    const Tensors input = copies(bench.input), weights = copies(bench.weights),
                  output_gradient = copies(bench.output_gradient);
    for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
      bench.backward(mode);
    }
    EXPECT_TRUE(at::equal(bench.input[0], input[0]));
    EXPECT_TRUE(at::equal(bench.output_gradient[0], output_gradient[0]));
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(bench.weights[i], weights[i])) << bench.layer->parameters()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuLayers, testing::ValuesIn(test::layer_cases()), test::case_name);

}  // namespace penstock::model
