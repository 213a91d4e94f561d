// What the rest of the program asks about Llama.
#include "penstock/model/family.h"

#include "penstock/base/error.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/llama/facts.h"
#include "penstock/model/llama/gpu.h"
#include "penstock/model/llama/layer.h"

namespace penstock::model {

namespace {

kernels::RotaryScaling scaling_of(const config::ModelOptions& model) {
  return {.factor = model.rope_factor,
          .low_frequency_factor = model.rope_low,
          .high_frequency_factor = model.rope_high,
          .original_context = model.rope_context};
}

LlamaShape shape_of(const config::ModelOptions& model) {
  return {.layers = model.layers,
          .width = model.width,
          .heads = model.heads,
          .kv_heads = llama_kv_heads(model),
          .hidden = llama_hidden(model),
          .context = model.context,
          .vocabulary = model.vocabulary,
          .norm_epsilon = model.norm_epsilon,
          .rope_theta = model.rope_theta,
          .rope_scaling = scaling_of(model),
          .is_tied = model.tied};
}

// Old files have them, one in each block; they follow from the options.
bool is_frequency_table(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

class LlamaFamily final : public Family {
 public:
  std::string title() const override { return "Llama"; }

  std::vector<std::string> own_options() const override {
    return {"model.kv_heads",
            "model.hidden",
            "model.norm_epsilon",
            "model.rope_theta",
            "model.rope_factor",
            "model.rope_low",
            "model.rope_high",
            "model.rope_context"};
  }

  void require_sound(const config::ModelOptions& model) const override {
    const int64_t kv_heads = llama_kv_heads(model);
    if (model.heads % kv_heads != 0) {
      throw ConfigError(cat("model.heads = ",
                            model.heads,
                            " is not divisible by model.kv_heads = ",
                            kv_heads,
                            "; each head of keys serves as many heads of queries"));
    }
    if (model.width / model.heads % 2 != 0) {
      throw ConfigError(cat("heads of ",
                            model.width / model.heads,
                            " features (model.width = ",
                            model.width,
                            ", model.heads = ",
                            model.heads,
                            ") cannot be turned in pairs; choose an even number for each head"));
    }
    const config::ModelOptions usual;
    if (model.rope_factor == 1 &&
        (model.rope_low != usual.rope_low || model.rope_high != usual.rope_high ||
         model.rope_context != usual.rope_context)) {
      throw ConfigError(
          "model.rope_low, model.rope_high and model.rope_context change nothing while "
          "model.rope_factor = 1; set it, or leave them out");
    }
    if (model.rope_high <= model.rope_low) {
      throw ConfigError(cat("model.rope_high = ",
                            model.rope_high,
                            " must be above model.rope_low = ",
                            model.rope_low));
    }
  }

  Chain make_chain(const config::ModelOptions& model, const device::Device& device) const override {
    const LlamaShape shape = shape_of(model);
    return device.is_gpu() ? make_llama_for_gpu(shape, device.gpu) : make_llama(shape);
  }

  double flop_per_token(const config::ModelOptions& model) const override {
    return llama_flop_per_token(model);
  }

  std::vector<report::StepWork> work_of(const config::ModelOptions&,
                                        const report::StepSize&) const override {
    return {};
  }

  // penstock bench step names sizes of the default family alone.
  std::vector<NamedSize> sizes() const override { return {}; }

  nlohmann::ordered_json hugging_face_config(const config::ModelOptions& model,
                                             std::optional<int64_t> end_token) const override {
    const nlohmann::ordered_json end =
        end_token ? nlohmann::ordered_json(*end_token) : nlohmann::ordered_json(nullptr);
    nlohmann::ordered_json json{{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"vocab_size", model.vocabulary},
                                {"max_position_embeddings", model.context},
                                {"hidden_size", model.width},
                                {"intermediate_size", llama_hidden(model)},
                                {"num_hidden_layers", model.layers},
                                {"num_attention_heads", model.heads},
                                {"num_key_value_heads", llama_kv_heads(model)},
                                {"hidden_act", "silu"},
                                {"rms_norm_eps", model.norm_epsilon},
                                {"rope_theta", model.rope_theta},
                                {"rope_scaling", nullptr},
                                {"attention_bias", false},
                                {"mlp_bias", false},
                                {"initializer_range", kLlamaDeviation},
                                {"bos_token_id", end},
                                {"eos_token_id", end},
                                {"tie_word_embeddings", model.tied},
                                {"torch_dtype", "float32"}};
    if (model.rope_factor != 1) {
      json["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", model.rope_factor},
                              {"low_freq_factor", model.rope_low},
                              {"high_freq_factor", model.rope_high},
                              {"original_max_position_embeddings", model.rope_context}};
    }
    return json;
  }

  // Any context will do: rotary positions have no table.
  std::vector<ConfigKey> config_keys(const config::ModelOptions& model) const override {
    std::vector<ConfigKey> keys{
        {"num_hidden_layers", "model.layers", model.layers},
        {"hidden_size", "model.width", model.width},
        {"num_attention_heads", "model.heads", model.heads},
        {"num_key_value_heads", "model.kv_heads", llama_kv_heads(model), model.heads},
        {"intermediate_size", "model.hidden", llama_hidden(model)},
        {"vocab_size", "model.vocabulary", model.vocabulary},
        {"rms_norm_eps", "model.norm_epsilon", model.norm_epsilon, 1e-6},
        {"rope_theta", "model.rope_theta", model.rope_theta, 10000.0, "rope_parameters/rope_theta"},
        {"rope_scaling/factor",
         "model.rope_factor",
         model.rope_factor,
         1.0,
         "rope_parameters/factor"},
        {"tie_word_embeddings", "model.tied", model.tied}};
    if (model.rope_factor != 1) {
      keys.push_back({"rope_scaling/low_freq_factor",
                      "model.rope_low",
                      model.rope_low,
                      {},
                      "rope_parameters/low_freq_factor"});
      keys.push_back({"rope_scaling/high_freq_factor",
                      "model.rope_high",
                      model.rope_high,
                      {},
                      "rope_parameters/high_freq_factor"});
      keys.push_back({"rope_scaling/original_max_position_embeddings",
                      "model.rope_context",
                      model.rope_context,
                      {},
                      "rope_parameters/original_max_position_embeddings"});
    }
    return keys;
  }

  std::vector<ConfigChoice> config_choices() const override {
    return {{"model_type", {"llama"}},
            {"hidden_act", {"silu"}},
            {"attention_bias", {false}},
            {"mlp_bias", {false}},
            {"rope_scaling/rope_type", {"llama3", "default"}},
            {"rope_scaling/type", {"llama3", "default"}},  // as older files have it
            {"rope_parameters/rope_type", {"llama3", "default"}},
            {"tie_word_embeddings", {true, false}}};
  }

  StoredNames stored_names() const override {
    return {.embedding = kLlamaEmbeddingName,
            .head = kLlamaHeadName,
            .is_passed_over = is_frequency_table};
  }
};

}  // namespace

const Family& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace penstock::model
