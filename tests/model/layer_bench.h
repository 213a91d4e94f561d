// One layer of each kind with weights, gradients, input and output gradient of its own, for tests
// that hold every layer to the same contract.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "penstock/base/error.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/llama/llama.h"
#include "penstock/model/module_layer.h"

#include "model/llama_reference.h"
#include "support/random_tensor.h"

namespace penstock::model {

inline constexpr Gpt2Shape kBenchShape{
    .layers = 1, .width = 48, .heads = 4, .context = 20, .vocabulary = 61};

struct LayerCase {
  std::string name;
  at::ScalarType type;
  double dropout;

  bool takes_tokens() const { return name.ends_with("embedding"); }
};

inline std::string layer_case_name(const testing::TestParamInfo<LayerCase>& row) {
  return row.param.name + (row.param.type == at::kFloat ? "_float32" : "_bfloat16") +
         (row.param.dropout > 0 ? "_dropout" : "");
}

inline std::unique_ptr<Layer> make_bench_layer(const LayerCase& test_case) {
  Gpt2Shape shape = kBenchShape;
  shape.dropout = test_case.dropout;
  const int64_t width = shape.width;
  const std::string& name = test_case.name;
  if (name == "embedding") {
    return make_gpt2_embedding(shape);
  }
  if (name == "attention") {
    return make_gpt2_attention(shape, 0);
  }
  if (name == "mlp") {
    return make_gpt2_mlp(shape, 0);
  }
  const LlamaShape llama{.layers = 1,
                         .width = width,
                         .heads = shape.heads,
                         .kv_heads = name.ends_with("_mha")   ? 4
                                     : name.ends_with("_mqa") ? 1
                                                              : 2,
                         .hidden = 80,
                         .context = shape.context + 12,  // sequences are shorter
                         .vocabulary = shape.vocabulary,
                         .rope_theta = test::kReferenceTheta,
                         .rope_scaling = {.factor = test::kReferenceFactor,
                                          .original_context = test::kReferenceContext}};
  if (name == "llama_embedding") {
    return make_llama_embedding(llama);
  }
  if (name.starts_with("llama_attention")) {
    return make_llama_attention(llama, 0, make_rotary(llama));
  }
  if (name == "llama_mlp") {
    return make_llama_mlp(llama, 0);
  }
  if (name == "module") {
    return module_layer("linear", torch::nn::Linear(width, width));
  }
  if (name == "module_chain") {
    torch::nn::Sequential chain(torch::nn::Linear(width, 2 * width),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * width})),
                                torch::nn::Tanh(),
                                torch::nn::Linear(2 * width, width));
    return make_module_layer("chain", chain.ptr(), [chain](const Tensors& x) {
      return Tensors{x[0] + at::Tensor(chain.ptr()->forward(x[0]))};
    });
  }
  if (name == "module_embedding") {
    return module_layer("table", torch::nn::Embedding(shape.vocabulary, width));
  }
  if (name == "module_dropout") {
    return module_layer("dropout",
                        torch::nn::Sequential(torch::nn::Linear(width, width),
                                              torch::nn::Dropout(test_case.dropout),
                                              torch::nn::Tanh()));
  }
  PENSTOCK_CHECK(name == "module_tanh", "no such layer: ", name);
  return module_layer("tanh", torch::nn::Tanh());
}

struct LayerBench {
  explicit LayerBench(const LayerCase& test_case)
      : LayerBench(test_case, make_bench_layer(test_case)) {}

  LayerBench(const LayerCase& test_case, std::unique_ptr<Layer> made)
      : type(test_case.type), layer(std::move(made)) {
    uint64_t seed = 100;
    for (const ParameterSpec& spec : layer->parameters()) {
      // Norm scales near 1, as in training; the rest of a size that keeps activations near 1.
      at::Tensor value = test::random_tensor(spec.shape, ++seed) * 0.2;
      if (spec.name.ends_with("ln_1.weight") || spec.name.ends_with("ln_2.weight") ||
          spec.name.ends_with("layernorm.weight")) {
        value += 1;
      }
      master.push_back(value);
      weights.push_back(spec.is_always_float32 ? value : value.to(type));
      gradients.push_back(at::zeros(spec.shape, at::kFloat));
    }
    const std::vector<int64_t> tokens{3, kBenchShape.context};
    const std::vector<int64_t> activation{3, kBenchShape.context, kBenchShape.width};
    input = {test_case.takes_tokens() ? test::random_tokens(tokens, kBenchShape.vocabulary, 7)
                                      : test::random_tensor(activation, 8, type)};
    output_gradient = {test::random_tensor(activation, 9, type)};
  }

  Saved forward(int32_t mode = 0, bool without_output = false) const {
    Saved saved{.mode = mode, .without_output = without_output};
    layer->forward(weights, input, pass, &saved);
    return saved;
  }

  Tensors backward(int32_t mode = 0, bool without_output = false) {
    return layer->backward(
        weights, gradients, input, forward(mode, without_output), output_gradient, pass);
  }

  Tensors backward_input(WeightWork& work, int32_t mode = 0, bool without_output = false) {
    return layer->backward_input(
        weights, gradients, input, forward(mode, without_output), output_gradient, pass, work);
  }

  void backward_weight(WeightWork work) {
    layer->backward_weight(weights, gradients, std::move(work));
  }

  // Another micro-batch: other samples, other input, other gradient.
  void take_next_micro_batch() {
    pass.first_sample += input[0].size(0);
    input = {input[0].flip({0, 1}).contiguous()};
    output_gradient = {output_gradient[0].flip({1, 2}).contiguous()};
  }

  Shapes input_shapes() const { return {{input[0].sizes().vec(), input[0].scalar_type()}}; }

  int32_t num_modes() const { return static_cast<int32_t>(layer->save_modes().size()); }
  const SaveMode& mode(int32_t index) const {
    return layer->save_modes()[static_cast<size_t>(index)];
  }

  at::ScalarType type;
  std::unique_ptr<Layer> layer;
  Tensors master, weights, gradients, input, output_gradient;
  Pass pass{.seed = 5, .step = 6, .first_sample = 12, .layer = 2};
};

}  // namespace penstock::model
