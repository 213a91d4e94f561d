// A backward split into input gradient and weight gradient on the GPU: the bits of the whole where
// results must be deterministic, the matrices left for the weight gradient, and no more memory held
// between the two than that takes.
#include "gpu/layer_bench.h"

namespace penstock::model {

namespace {

using test::gpu;
using test::LayerBench;
using test::LayerCase;
using test::occupied;

class GpuLayerSplit : public test::OnGpu<testing::TestWithParam<LayerCase>> {};

// Other samples, other input, other gradient.
void take_next_micro_batch(LayerBench& bench) {
  bench.pass.first_sample += bench.input[0].size(0);
  bench.input = {bench.input[0].flip({0, 1}).contiguous()};
  bench.output_gradient = {bench.output_gradient[0].flip({1, 2}).contiguous()};
}

Tensors backward_input(LayerBench& bench,
                       WeightWork& work,
                       int32_t mode = 0,
                       bool without_output = false,
                       std::span<const uint8_t> fresh = {}) {
  Saved saved{.mode = mode, .without_output = without_output};
  bench.forward(&saved);
  return bench.layer->backward_input(bench.weights,
                                     Gradients(bench.gradients, fresh),
                                     bench.input,
                                     std::move(saved),
                                     bench.output_gradient,
                                     bench.pass,
                                     work);
}

void backward_weight(LayerBench& bench, WeightWork work) {
  // As where weights are sharded: backward_weight must find all that it needs in its work.
  const Tensors none(bench.weights.size());
  bench.layer->backward_weight(none, bench.gradients, std::move(work));
}

// All that a layer may overwrite is so the first time, and is NaN: to add to it would show.
std::vector<uint8_t> begin_gradients(LayerBench& bench) {
  std::vector<uint8_t> fresh;
  for (size_t i = 0; i < bench.gradients.size(); ++i) {
    const bool is_fresh = bench.layer->parameters()[i].is_gradient_overwritten;
    fresh.push_back(is_fresh ? 1 : 0);
    if (is_fresh) {
      bench.gradients[i].fill_(NAN);
    }
  }
  return fresh;
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  EXPECT_TRUE(!actual.defined() || at::equal(actual, expected)) << what;
}

}  // namespace

// Two micro-batches, the second's input gradient before the first's weight gradient; the first
// begins the gradients.
TEST_P(GpuLayerSplit, GivesTheBitsOfTheWholeInEverySaveMode) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const int32_t modes = LayerBench(GetParam(), device).save_modes();
  for (int32_t mode = 0; mode < modes; ++mode) {
    for (const bool without_output : {false, true}) {
      SCOPED_TRACE(cat("save mode ", mode, without_output ? " without output" : ""));
      LayerBench whole(GetParam(), device), split(GetParam(), device);
      const Tensors first = whole.backward(mode, without_output, begin_gradients(whole));
      take_next_micro_batch(whole);
      const Tensors second = whole.backward(mode, without_output);

      WeightWork first_work, second_work;
      const std::vector<uint8_t> fresh = begin_gradients(split);
      const Tensors split_first = backward_input(split, first_work, mode, without_output, fresh);
      take_next_micro_batch(split);
      const Tensors split_second = backward_input(split, second_work, mode, without_output);
      backward_weight(split, std::move(first_work));
      backward_weight(split, std::move(second_work));

      expect_same(split_first[0], first[0], "input gradient of the first micro-batch");
      expect_same(split_second[0], second[0], "input gradient of the second micro-batch");
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        expect_same(split.gradients[i], whole.gradients[i], whole.layer->parameters()[i].name);
      }
    }
  }
}

TEST_P(GpuLayerSplit, LeavesTheMatricesToTheWeightGradient) {
  for (const bool is_deterministic : {false, true}) {
    LayerBench bench(GetParam(), gpu(is_deterministic));
    WeightWork work;
    backward_input(bench, work);
    for (size_t i = 0; i < bench.gradients.size(); ++i) {
      const ParameterSpec& spec = bench.layer->parameters()[i];
      if (spec.shape.size() == 2) {
        EXPECT_FALSE(bench.gradients[i].any().item<bool>()) << spec.name;
      }
    }
  }
}

TEST_P(GpuLayerSplit, HoldsWhatTheMatricesNeedAlone) {
  const LayerCase& one = GetParam();
  LayerBench bench(one, gpu(/*is_deterministic=*/true));
  bench.backward();  // whatever is made once is made now
  const LlamaShape shape = one.llama_shape();
  const int64_t rows = one.samples * one.tokens;
  const auto bytes = [&](int64_t features) {
    return occupied(rows * features * static_cast<int64_t>(c10::elementSize(one.type)));
  };
  const int64_t qkv = shape.width + 2 * shape.kv_width();
  // Beside the output's gradient, which is the caller's: mixed values, norm and the gradients of
  // queries, keys and values; activation, norm and the gradients of gate and up.
  const int64_t expected = one.takes_tokens() ? 0
                           : one.part == "llama_attention"
                               ? 2 * bytes(shape.width) + bytes(qkv)
                               : bytes(shape.width) + 3 * bytes(shape.hidden);
  for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
    SCOPED_TRACE(bench.layer->save_modes()[static_cast<size_t>(mode)].name);
    const int64_t before = bench.held();
    WeightWork work;
    backward_input(bench, work, mode);
    EXPECT_EQ(bench.held() - before, expected);
    backward_weight(bench, std::move(work));
    EXPECT_EQ(bench.held(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GpuLayerSplit,
                         testing::ValuesIn(test::llama_layer_cases()),
                         test::case_name);

}  // namespace penstock::model
