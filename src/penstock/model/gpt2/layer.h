// What the GPT-2 layers share: name, parameter specs and GPT-2's initialisation. Internal to
// model/gpt2/.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/model/described_layer.h"
#include "penstock/model/gpt2/gpt2.h"

namespace penstock::model {

class Gpt2Layer : public DescribedLayer {
 public:
  Gpt2Layer(std::string name,
            const char* part,
            const Gpt2Shape& shape,
            std::vector<ParameterSpec> specs,
            std::vector<SaveMode> modes)
      : DescribedLayer(std::move(name), std::move(specs), std::move(modes)),
        part_(part),
        shape_(shape) {}

  bool is_random() const override { return shape_.dropout > 0; }
  std::string kind() const override {
    return cat(
        "gpt2 ", part_, " ", shape_.width, " heads ", shape_.heads, " dropout ", shape_.dropout);
  }

 protected:
  const Gpt2Shape& shape() const { return shape_; }

 private:
  const char* part_;
  Gpt2Shape shape_;
};

inline constexpr double kGpt2Deviation = 0.02;

// Projections onto the residual stream start smaller, by the root of the number of residual
// additions.
inline double gpt2_residual_deviation(const Gpt2Shape& shape) {
  return kGpt2Deviation / std::sqrt(2.0 * static_cast<double>(shape.layers));
}

inline ParameterSpec gpt2_weight(std::string name,
                                 std::vector<int64_t> shape,
                                 double deviation,
                                 TensorCut cut = {}) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .init = ParameterSpec::Init::Normal,
          .deviation = deviation,
          .cut = cut};
}

inline ParameterSpec gpt2_bias(std::string name, int64_t size, TensorCut cut = {}) {
  return {.name = std::move(name), .shape = {size}, .has_weight_decay = false, .cut = cut};
}

// Norms compute in float32 whatever the precision of their input, and so take their parameters in
// float32.
inline void add_gpt2_norm(std::vector<ParameterSpec>& specs,
                          const std::string& name,
                          int64_t width) {
  specs.push_back({.name = name + ".weight",
                   .shape = {width},
                   .init = ParameterSpec::Init::Ones,
                   .has_weight_decay = false,
                   .is_always_float32 = true});
  specs.push_back({.name = name + ".bias",
                   .shape = {width},
                   .has_weight_decay = false,
                   .is_always_float32 = true});
}

// The parameters of each part, in the order that the part takes them: specs.cpp.
std::vector<ParameterSpec> gpt2_embedding_specs(const Gpt2Shape& shape);
std::vector<ParameterSpec> gpt2_attention_specs(const Gpt2Shape& shape, int64_t block);
std::vector<ParameterSpec> gpt2_mlp_specs(const Gpt2Shape& shape, int64_t block);
std::vector<ParameterSpec> gpt2_head_specs(const Gpt2Shape& shape);

inline const char* const kGpt2EmbeddingName = "transformer.wte.weight";
inline const char* const kGpt2HeadName = "lm_head.weight";  // where it is not tied to the embedding

}  // namespace penstock::model
