// What the Llama layers share: name, parameter specs and initialisation. Internal to model/llama/.
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
             std::vector<Way> ways)
      : DescribedLayer(std::move(name), std::move(specs), std::move(ways)),
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

inline ParameterSpec llama_matrix(std::string name, int64_t out, int64_t in) {
  return {.name = std::move(name),
          .shape = {out, in},
          .init = ParameterSpec::Init::Normal,
          .deviation = kLlamaDeviation};
}

// Norms compute in float32 whatever the precision of their input, and so take their scale in it.
inline ParameterSpec llama_norm(std::string name, int64_t width) {
  return {.name = std::move(name),
          .shape = {width},
          .init = ParameterSpec::Init::Ones,
          .has_weight_decay = false,
          .is_always_float32 = true};
}

inline std::string llama_block(int64_t block) {
  return cat("model.layers.", block, ".");
}

}  // namespace penstock::model
