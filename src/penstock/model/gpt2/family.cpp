// What the rest of the program asks about GPT-2.
#include "penstock/model/family.h"

#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/gpt2/facts.h"
#include "penstock/model/gpt2/floor.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/layer.h"

namespace penstock::model {

namespace {

// Old files have them, as constants.
bool is_attention_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

Gpt2Shape gpt2_shape(const config::ModelOptions& model) {
  return {.layers = model.layers,
          .width = model.width,
          .heads = model.heads,
          .context = model.context,
          .vocabulary = model.vocabulary,
          .dropout = model.dropout,
          .is_tied = model.tied};
}

class Gpt2Family final : public Family {
 public:
  std::string title() const override { return "GPT-2"; }
  std::vector<std::string> own_options() const override { return {"model.dropout"}; }
  void require_sound(const config::ModelOptions&) const override {}

  Chain make_chain(const config::ModelOptions& model, const device::Device& device) const override {
    const Gpt2Shape shape = gpt2_shape(model);
    return device.is_gpu() ? make_gpt2_for_gpu(shape, device.gpu) : make_gpt2(shape);
  }

  double flop_per_token(const config::ModelOptions& model) const override {
    return gpt2_flop_per_token(model);
  }

  std::vector<report::StepWork> work_of(const config::ModelOptions& model,
                                        const report::StepSize& step) const override {
    return gpt2_work(model, step);
  }

  std::vector<NamedSize> sizes() const override {
    const auto size =
        [](const char* name, int64_t layers, int64_t width, int64_t heads, int64_t batch) {
          return NamedSize{name, {.layers = layers, .width = width, .heads = heads}, batch};
        };
    return {size("124M", 12, 768, 12, 64),
            size("355M", 24, 1024, 16, 32),
            size("774M", 36, 1280, 20, 16),
            size("1558M", 48, 1600, 25, 8)};
  }

  nlohmann::ordered_json hugging_face_config(const config::ModelOptions& model,
                                             std::optional<int64_t> end_token) const override {
    const int64_t end = end_token.value_or(model.vocabulary - 1);  // <|endoftext|> comes last
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", model.vocabulary},
            {"n_positions", model.context},
            {"n_ctx", model.context},
            {"n_embd", model.width},
            {"n_layer", model.layers},
            {"n_head", model.heads},
            {"n_inner", nullptr},
            {"activation_function", "gelu_new"},
            {"resid_pdrop", model.dropout},
            {"embd_pdrop", model.dropout},
            {"attn_pdrop", model.dropout},
            {"layer_norm_epsilon", 1e-5},
            {"initializer_range", 0.02},
            {"bos_token_id", end},
            {"eos_token_id", end},
            {"tie_word_embeddings", model.tied},
            {"torch_dtype", "float32"}};
  }

  std::vector<ConfigKey> config_keys(const config::ModelOptions& model) const override {
    return {{"n_layer", "model.layers", model.layers},
            {"n_embd", "model.width", model.width},
            {"n_head", "model.heads", model.heads},
            {"n_positions", "model.context", model.context},
            {"vocab_size", "model.vocabulary", model.vocabulary},
            {"tie_word_embeddings", "model.tied", model.tied}};
  }

  std::vector<ConfigChoice> config_choices() const override {
    return {{"model_type", {"gpt2"}},
            {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
            {"layer_norm_epsilon", {1e-5}},
            {"tie_word_embeddings", {true, false}},
            {"scale_attn_weights", {true}},
            {"scale_attn_by_inverse_layer_idx", {false}},
            {"add_cross_attention", {false}}};
  }

  StoredNames stored_names() const override {
    return {.optional_prefix = "transformer.",
            .embedding = kGpt2EmbeddingName,
            .head = kGpt2HeadName,
            .is_passed_over = is_attention_mask};
  }
};

}  // namespace

const Family& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

}  // namespace penstock::model
