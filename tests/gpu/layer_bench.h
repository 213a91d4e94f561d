// One layer on the GPU with weights and gradients of its own, and the cases that it is tried in.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/memory/account.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/llama/gpu.h"

#include "gpu/gpu_model.h"
#include "model/llama_reference.h"

namespace penstock::test {

struct LayerCase {
  std::string part;  // embedding, attention or mlp; of Llama where it begins with that
  at::ScalarType type = at::kFloat;
  double dropout = 0;
  int64_t width = 64, heads = 4, samples = 3, tokens = 17, vocabulary = 101;
  int64_t kv_heads = 2;  // Llama's

  bool is_llama() const { return part.starts_with("llama"); }
  bool takes_tokens() const { return part.ends_with("embedding"); }

  model::Gpt2Shape shape() const {
    return {.layers = 1,
            .width = width,
            .heads = heads,
            .context = tokens + 3,
            .vocabulary = vocabulary,
            .dropout = dropout};
  }
  model::LlamaShape llama_shape() const {
    return {.layers = 1,
            .width = width,
            .heads = heads,
            .kv_heads = kv_heads,
            .hidden = 5 * width / 2,
            .context = tokens + 3,
            .vocabulary = vocabulary,
            .rope_theta = kReferenceTheta,
            .rope_scaling = {.factor = kReferenceFactor, .original_context = kReferenceContext}};
  }
};

inline std::vector<LayerCase> llama_layer_cases() {
  std::vector<LayerCase> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const char* part : {"llama_embedding", "llama_attention", "llama_mlp"}) {
      cases.push_back({part, type, 0, 64, 4, 3, 17, 101});
      cases.push_back({part, type, 0, 128, 2, 1, 64, 50257, 1});
      cases.push_back({part, type, 0, 128, 8, 3, 64, 101, 8});
    }
    cases.push_back({"llama_attention", type, 0, 48, 4, 3, 17, 101});  // heads of 12: not cuDNN's
    cases.push_back({"llama_attention", type, 0, 64, 4, 3, 1, 101});   // a single token
    cases.push_back({"llama_attention", type, 0, 256, 8, 2, 96, 101, 1});
  }
  return cases;
}

inline std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> cases;
  for (const char* part : {"embedding", "attention", "mlp"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const double dropout : {0.0, 0.1}) {
        cases.push_back({part, type, dropout, 64, 4, 3, 17, 101});
        cases.push_back({part, type, dropout, 64, 4, 1, 64, 50257});
        cases.push_back({part, type, dropout, 128, 2, 1, 17, 50257});
        cases.push_back({part, type, dropout, 128, 2, 3, 64, 101});
      }
    }
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    cases.push_back({"attention", type, 0, 48, 4, 3, 17, 101});  // heads that cuDNN does not take
    cases.push_back({"attention", type, 0, 64, 4, 3, 1, 101});   // a single token
  }
  const std::vector<LayerCase> llama = llama_layer_cases();
  cases.insert(cases.end(), llama.begin(), llama.end());
  return cases;
}

inline std::string case_name(const testing::TestParamInfo<LayerCase>& row) {
  const LayerCase& one = row.param;
  return cat(one.part,
             "_",
             type_name(one.type),
             one.dropout > 0 ? "_dropout" : "",
             "_width",
             one.width,
             one.is_llama() ? cat("_heads", one.heads, "by", one.kv_heads) : "",
             "_batch",
             one.samples,
             "x",
             one.tokens,
             "_vocabulary",
             one.vocabulary);
}

inline std::unique_ptr<model::Layer> make_layer(
    const LayerCase& one, const std::shared_ptr<device::GpuContext>& context) {
  if (one.is_llama()) {
    const model::LlamaShape shape = one.llama_shape();
    return one.takes_tokens()              ? model::make_llama_gpu_embedding(shape, context)
           : one.part == "llama_attention" ? model::make_llama_gpu_attention(shape, 0, context)
                                           : model::make_llama_gpu_mlp(shape, 0, context);
  }
  if (one.part == "embedding") {
    return model::make_gpu_embedding(one.shape(), context);
  }
  return one.part == "attention" ? model::make_gpu_attention(one.shape(), 0, context)
                                 : model::make_gpu_mlp(one.shape(), 0, context);
}

// Norm scales near 1, as in training; matrices of a size that keeps activations near 1, so that
// softmax is not sharper than 16 bits can follow.
inline at::Tensor sensible_weight(const model::ParameterSpec& spec, uint64_t seed) {
  const at::Tensor value = random_tensor(spec.shape, seed);
  if (spec.shape.size() == 2) {
    const bool is_table = spec.name.ends_with("wte.weight") || spec.name.ends_with("wpe.weight") ||
                          spec.name.ends_with("embed_tokens.weight");
    const int64_t in = spec.shape[spec.name.ends_with("_proj.weight") ? 1 : 0];  // Llama's
    return is_table ? value : value / std::sqrt(static_cast<double>(in));
  }
  return spec.init == model::ParameterSpec::Init::Ones ? 1 + value * 0.2 : value * 0.2;
}

struct LayerBench {
  LayerBench(const LayerCase& the_case, const device::Device& the_device)
      : device(the_device), type(the_case.type), layer(make_layer(the_case, device.gpu)) {
    uint64_t seed = 100;
    for (const model::ParameterSpec& spec : layer->parameters()) {
      const at::Tensor value = sensible_weight(spec, ++seed);
      weights.push_back((spec.is_always_float32 ? value : value.to(type)).to(device.where));
      gradients.push_back(at::zeros(spec.shape, at::TensorOptions(device.where).dtype(at::kFloat)));
    }
    const std::vector<int64_t> sizes{the_case.samples, the_case.tokens, the_case.width};
    input = {the_case.takes_tokens()
                 ? random_tokens({sizes[0], sizes[1]}, the_case.vocabulary, 7).to(device.where)
                 : random_tensor(sizes, 8, type).to(device.where)};
    output_gradient = {random_tensor(sizes, 9, type).to(device.where)};
  }

  int32_t save_modes() const { return static_cast<int32_t>(layer->save_modes().size()); }
  model::Shapes input_shapes() const { return {{input[0].sizes().vec(), input[0].scalar_type()}}; }
  int64_t held() const { return device.account().usage().current_bytes; }

  model::Tensors forward(model::Saved* saved) const {
    return layer->forward(weights, input, pass, saved);
  }
  // `fresh`: gradients that hold nothing yet.
  model::Tensors backward(int32_t mode = 0,
                          bool without_output = false,
                          std::span<const uint8_t> fresh = {}) {
    model::Saved saved{.mode = mode, .without_output = without_output};
    layer->forward(weights, input, pass, &saved);
    return layer->backward(weights,
                           model::Gradients(gradients, fresh),
                           input,
                           std::move(saved),
                           output_gradient,
                           pass);
  }

  device::Device device;
  at::ScalarType type;
  std::unique_ptr<model::Layer> layer;
  model::Tensors weights, gradients, input, output_gradient;
  model::Pass pass{.seed = 5, .step = 6, .first_sample = 12, .layer = 2};
};

}  // namespace penstock::test
