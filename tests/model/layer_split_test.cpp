// A backward split into input gradient and weight gradient: the same bits as the whole, the
// parameters' share of the work left for the weight gradient, and no more memory held between the
// two than that takes.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"

#include "model/layer_bench.h"

namespace penstock::model {

namespace {

// Does not split its backward, as a layer may.
class Unsplit final : public Layer {
 public:
  explicit Unsplit(std::unique_ptr<Layer> whole) : whole_(std::move(whole)) {}

  const std::string& name() const override { return whole_->name(); }
  const std::vector<ParameterSpec>& parameters() const override { return whole_->parameters(); }
  const std::vector<SaveMode>& save_modes() const override { return whole_->save_modes(); }
  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    return whole_->forward(weights, input, pass, saved);
  }
  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    return whole_->backward(weights, gradients, input, std::move(saved), output_gradient, pass);
  }
  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    return whole_->size_for(inputs, compute_type, mode);
  }

 private:
  std::unique_ptr<Layer> whole_;
};

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  EXPECT_TRUE(!actual.defined() || at::equal(actual, expected)) << what;
}

// Two micro-batches, whole and split, the second's input gradient before the first's weight
// gradient.
void expect_same_bits(LayerBench whole, LayerBench split, int32_t mode, bool without_output) {
  const Tensors first = whole.backward(mode, without_output);
  whole.take_next_micro_batch();
  const Tensors second = whole.backward(mode, without_output);

  WeightWork first_work, second_work;
  const Tensors split_first = split.backward_input(first_work, mode, without_output);
  split.take_next_micro_batch();
  const Tensors split_second = split.backward_input(second_work, mode, without_output);
  split.backward_weight(std::move(first_work));
  split.backward_weight(std::move(second_work));

  expect_same(split_first[0], first[0], "input gradient of the first micro-batch");
  expect_same(split_second[0], second[0], "input gradient of the second micro-batch");
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    expect_same(split.gradients[i], whole.gradients[i], whole.layer->parameters()[i].name);
  }
}

class LayerSplit : public testing::TestWithParam<LayerCase> {};

}  // namespace

TEST_P(LayerSplit, GivesTheSameBitsAsTheWholeInEverySaveMode) {
  const LayerBench bench(GetParam());
  for (int32_t mode = 0; mode < bench.num_modes(); ++mode) {
    SCOPED_TRACE(bench.mode(mode).name);
    expect_same_bits(LayerBench(GetParam()), LayerBench(GetParam()), mode, false);
    if (!bench.mode(mode).needs_output) {
      expect_same_bits(LayerBench(GetParam()), LayerBench(GetParam()), mode, true);
    }
  }
}

TEST_P(LayerSplit, LeavesTheMatricesToTheWeightGradient) {
  LayerBench bench(GetParam());
  WeightWork work;
  bench.backward_input(work);
  for (size_t i = 0; i < bench.gradients.size(); ++i) {
    const ParameterSpec& spec = bench.layer->parameters()[i];
    if (spec.shape.size() == 2) {
      EXPECT_FALSE(bench.gradients[i].any().item<bool>()) << spec.name;
    }
  }
}

TEST_P(LayerSplit, LeavesNothingBehind) {
  LayerBench bench(GetParam());
  bench.backward();  // whatever is made once is made now
  const int64_t before = memory::usage().current_bytes;
  WeightWork work;
  bench.backward_input(work);
  bench.backward_weight(std::move(work));
  EXPECT_EQ(memory::usage().current_bytes, before);
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerSplit,
                         testing::Values(LayerCase{"embedding", at::kFloat, 0},
                                         LayerCase{"embedding", at::kFloat, 0.2},
                                         LayerCase{"embedding", at::kBFloat16, 0.2},
                                         LayerCase{"attention", at::kFloat, 0},
                                         LayerCase{"attention", at::kFloat, 0.2},
                                         LayerCase{"attention", at::kBFloat16, 0},
                                         LayerCase{"attention", at::kBFloat16, 0.2},
                                         LayerCase{"mlp", at::kFloat, 0},
                                         LayerCase{"mlp", at::kFloat, 0.2},
                                         LayerCase{"mlp", at::kBFloat16, 0},
                                         LayerCase{"mlp", at::kBFloat16, 0.2},
                                         LayerCase{"llama_embedding", at::kFloat, 0},
                                         LayerCase{"llama_attention", at::kFloat, 0},
                                         LayerCase{"llama_attention", at::kBFloat16, 0},
                                         LayerCase{"llama_mlp", at::kFloat, 0},
                                         LayerCase{"llama_mlp", at::kBFloat16, 0},
                                         LayerCase{"module", at::kFloat, 0},
                                         LayerCase{"module_chain", at::kFloat, 0},
                                         LayerCase{"module_dropout", at::kFloat, 0.2},
                                         LayerCase{"module_embedding", at::kFloat, 0},
                                         LayerCase{"module_tanh", at::kFloat, 0}),
                         layer_case_name);

// In activations of [B, T, C]. Without dropout one of them is the output's gradient itself.
TEST(WeightWork, HoldsTheInputsAndOutputGradientsOfLinearMapsAlone) {
  struct Row {
    const char* layer;
    int64_t activations;
  };
  for (const Row& row : {Row{"embedding", 1}, Row{"attention", 6}, Row{"mlp", 10}}) {
    for (const double dropout : {0.0, 0.2}) {
      LayerBench bench({row.layer, at::kFloat, dropout});
      for (int32_t mode = 0; mode < bench.num_modes(); ++mode) {
        SCOPED_TRACE(cat(row.layer, " ", bench.mode(mode).name, " dropout ", dropout));
        WeightWork work;
        const int64_t before = memory::usage().current_bytes;
        bench.backward_input(work, mode);
        const int64_t one = static_cast<int64_t>(bench.output_gradient[0].nbytes());
        const int64_t fresh = dropout > 0 ? row.activations : row.activations - 1;
        EXPECT_EQ(memory::usage().current_bytes - before, fresh * one);
      }
    }
  }
}

TEST(LayerWithoutSplit, DoesItAllInBackwardInput) {
  const LayerCase mlp{"mlp", at::kFloat, 0.2};
  const auto unsplit = [&] {
    return LayerBench(mlp, std::make_unique<Unsplit>(make_bench_layer(mlp)));
  };
  expect_same_bits(LayerBench(mlp), unsplit(), 0, false);

  LayerBench whole(mlp), split = unsplit();
  whole.backward();
  WeightWork work;
  split.backward_input(work);
  EXPECT_TRUE(work.tensors.empty());
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    expect_same(split.gradients[i], whole.gradients[i], whole.layer->parameters()[i].name);
  }
}

}  // namespace penstock::model
