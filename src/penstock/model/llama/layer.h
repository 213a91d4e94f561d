// What the Llama layers share: name, kind, parameter specs and initialisation. Internal to
// model/llama/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/model/described_layer.h"
#include "penstock/model/llama/llama.h"

namespace penstock::model {

class LlamaLayer : public DescribedLayer {
 public:
  LlamaLayer(std::string name,
             const char* part,
             const LlamaShape& shape,
             std::vector<ParameterSpec> specs,
             std::vector<SaveMode> modes)
      : DescribedLayer(std::move(name), std::move(specs), std::move(modes)),
        part_(part),
        shape_(shape) {}

  bool is_random() const override { return false; }
  std::string kind() const override {
    return cat("llama ",
               part_,
               " ",
               shape_.width,
               " heads ",
               shape_.heads,
               " ",
               shape_.kv_heads,
               " hidden ",
               shape_.hidden);
  }

 protected:
  const LlamaShape& shape() const { return shape_; }
  at::Tensor flat(const at::Tensor& x) const { return x.view({-1, shape_.width}); }

 private:
  const char* part_;
  LlamaShape shape_;
};

inline constexpr double kLlamaDeviation = 0.02;
inline const char* const kLlamaEmbeddingName = "model.embed_tokens.weight";
inline const char* const kLlamaHeadName = "lm_head.weight";  // where it is not the embedding

// The parameters of each part, in the order that the part takes them: specs.cpp.
std::vector<ParameterSpec> llama_embedding_specs(const LlamaShape& shape);
std::vector<ParameterSpec> llama_attention_specs(const LlamaShape& shape, int64_t block);
std::vector<ParameterSpec> llama_mlp_specs(const LlamaShape& shape, int64_t block);
std::vector<ParameterSpec> llama_head_specs(const LlamaShape& shape);

}  // namespace penstock::model
