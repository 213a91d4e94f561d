#include <ATen/ATen.h>

#include "penstock/model/gpt2/layer.h"

namespace penstock::model {

std::vector<ParameterSpec> gpt2_embedding_specs(const Gpt2Shape& shape) {
  return {gpt2_weight(kGpt2EmbeddingName, {shape.vocabulary, shape.width}, kGpt2Deviation),
          gpt2_weight("transformer.wpe.weight", {shape.context, shape.width}, kGpt2Deviation)};
}

std::vector<ParameterSpec> gpt2_attention_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, prefix + "ln_1", width);
  specs.push_back(gpt2_weight(prefix + "attn.c_attn.weight", {width, 3 * width}, kGpt2Deviation));
  specs.push_back(gpt2_bias(prefix + "attn.c_attn.bias", 3 * width));
  specs.push_back(
      gpt2_weight(prefix + "attn.c_proj.weight", {width, width}, gpt2_residual_deviation(shape)));
  specs.push_back(gpt2_bias(prefix + "attn.c_proj.bias", width));
  return specs;
}

std::vector<ParameterSpec> gpt2_mlp_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, prefix + "ln_2", width);
  specs.push_back(gpt2_weight(prefix + "mlp.c_fc.weight", {width, 4 * width}, kGpt2Deviation));
  specs.push_back(gpt2_bias(prefix + "mlp.c_fc.bias", 4 * width));
  specs.push_back(gpt2_weight(
      prefix + "mlp.c_proj.weight", {4 * width, width}, gpt2_residual_deviation(shape)));
  specs.push_back(gpt2_bias(prefix + "mlp.c_proj.bias", width));
  return specs;
}

std::vector<ParameterSpec> gpt2_head_specs(const Gpt2Shape& shape) {
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, "transformer.ln_f", shape.width);
  specs.push_back(gpt2_weight(shape.is_tied ? kGpt2EmbeddingName : kGpt2HeadName,
                              {shape.vocabulary, shape.width},
                              kGpt2Deviation));
  return specs;
}

}  // namespace penstock::model
