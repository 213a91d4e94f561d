#include "penstock/model/llama/layer.h"

namespace penstock::model {

namespace {

ParameterSpec matrix(std::string name, int64_t out, int64_t in, TensorCut cut) {
  return {.name = std::move(name),
          .shape = {out, in},
          .init = ParameterSpec::Init::Normal,
          .deviation = kLlamaDeviation,
          .cut = cut};
}

ParameterSpec table(std::string name, const LlamaShape& shape) {
  return matrix(
      std::move(name), shape.vocabulary, shape.width, {.dim = 0, .parts = shape.vocabulary});
}

// Norms compute in float32 whatever the precision of their input, and so take their scale in it.
ParameterSpec norm(std::string name, int64_t width) {
  return {.name = std::move(name),
          .shape = {width},
          .init = ParameterSpec::Init::Ones,
          .has_weight_decay = false,
          .is_always_float32 = true};
}

std::string prefix_of(int64_t block) {
  return cat("model.layers.", block, ".");
}

}  // namespace

std::vector<ParameterSpec> llama_embedding_specs(const LlamaShape& shape) {
  return {table(kLlamaEmbeddingName, shape)};
}

std::vector<ParameterSpec> llama_attention_specs(const LlamaShape& shape, int64_t block) {
  const std::string prefix = prefix_of(block);
  const int64_t width = shape.width;
  // Each rank has whole heads: rows of what makes them, columns of what reads them.
  const TensorCut heads{.dim = 0, .parts = shape.heads}, of_heads{.dim = 1, .parts = shape.heads};
  const TensorCut kv_heads{
      .dim = 0, .parts = shape.kv_heads, .readers = shape.heads / shape.kv_heads};
  return {norm(prefix + "input_layernorm.weight", width),
          matrix(prefix + "self_attn.q_proj.weight", width, width, heads),
          matrix(prefix + "self_attn.k_proj.weight", shape.kv_width(), width, kv_heads),
          matrix(prefix + "self_attn.v_proj.weight", shape.kv_width(), width, kv_heads),
          matrix(prefix + "self_attn.o_proj.weight", width, width, of_heads)};
}

std::vector<ParameterSpec> llama_mlp_specs(const LlamaShape& shape, int64_t block) {
  const std::string prefix = prefix_of(block);
  const TensorCut features{.dim = 0, .parts = shape.hidden};
  return {norm(prefix + "post_attention_layernorm.weight", shape.width),
          matrix(prefix + "mlp.gate_proj.weight", shape.hidden, shape.width, features),
          matrix(prefix + "mlp.up_proj.weight", shape.hidden, shape.width, features),
          matrix(prefix + "mlp.down_proj.weight",
                 shape.width,
                 shape.hidden,
                 {.dim = 1, .parts = shape.hidden})};
}

std::vector<ParameterSpec> llama_head_specs(const LlamaShape& shape) {
  return {norm("model.norm.weight", shape.width),
          table(shape.is_tied ? kLlamaEmbeddingName : kLlamaHeadName, shape)};
}

}  // namespace penstock::model
