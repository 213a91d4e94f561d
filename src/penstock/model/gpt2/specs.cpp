#include <ATen/ATen.h>

#include "penstock/model/gpt2/layer.h"

namespace penstock::model {

namespace {

ParameterSpec gpt2_table(const char* name, const Gpt2Shape& shape) {
  return gpt2_weight(
      name, {shape.vocabulary, shape.width}, kGpt2Deviation, {.dim = 0, .parts = shape.vocabulary});
}

}  // namespace

std::vector<ParameterSpec> gpt2_embedding_specs(const Gpt2Shape& shape) {
  return {gpt2_table(kGpt2EmbeddingName, shape),
          gpt2_weight("transformer.wpe.weight", {shape.context, shape.width}, kGpt2Deviation)};
}

std::vector<ParameterSpec> gpt2_attention_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  // Each rank has whole heads: columns of what makes them, rows of what reads them.
  const auto heads = [&](int32_t dim, int64_t blocks) {
    return TensorCut{.dim = dim, .parts = shape.heads, .blocks = blocks};
  };
  add_gpt2_norm(specs, prefix + "ln_1", width);
  specs.push_back(
      gpt2_weight(prefix + "attn.c_attn.weight", {width, 3 * width}, kGpt2Deviation, heads(1, 3)));
  specs.push_back(gpt2_bias(prefix + "attn.c_attn.bias", 3 * width, heads(0, 3)));
  specs.push_back(gpt2_weight(
      prefix + "attn.c_proj.weight", {width, width}, gpt2_residual_deviation(shape), heads(0, 1)));
  specs.push_back(gpt2_bias(prefix + "attn.c_proj.bias", width));
  return specs;
}

std::vector<ParameterSpec> gpt2_mlp_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  const TensorCut rows{.dim = 0, .parts = 4 * width}, columns{.dim = 1, .parts = 4 * width};
  add_gpt2_norm(specs, prefix + "ln_2", width);
  specs.push_back(
      gpt2_weight(prefix + "mlp.c_fc.weight", {width, 4 * width}, kGpt2Deviation, columns));
  specs.push_back(gpt2_bias(prefix + "mlp.c_fc.bias", 4 * width, rows));
  specs.push_back(gpt2_weight(
      prefix + "mlp.c_proj.weight", {4 * width, width}, gpt2_residual_deviation(shape), rows));
  specs.push_back(gpt2_bias(prefix + "mlp.c_proj.bias", width));
  return specs;
}

std::vector<ParameterSpec> gpt2_head_specs(const Gpt2Shape& shape) {
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, "transformer.ln_f", shape.width);
  specs.push_back(gpt2_table(shape.is_tied ? kGpt2EmbeddingName : kGpt2HeadName, shape));
  return specs;
}

}  // namespace penstock::model
