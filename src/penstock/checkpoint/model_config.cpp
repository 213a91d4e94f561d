#include "penstock/checkpoint/model_config.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/checkpoint/strict_json.h"
#include "penstock/data/tokenizer.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

std::string hugging_face_config(const config::ModelOptions& model, const std::string& tokenizer) {
  // GPT-2's own vocabulary ends with <|endoftext|>.
  const int64_t end = tokenizer == "bytes" ? data::kEndOfDocument : model.vocabulary - 1;
  const nlohmann::ordered_json json{{"architectures", {"GPT2LMHeadModel"}},
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
  return json.dump(2) + "\n";
}

void require_same_model(const fs::path& folder, const config::ModelOptions& model) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) {
    return;
  }
  const nlohmann::json json = read_strict_json(file, /*max_depth=*/16);
  const auto require = [&](const char* key, const char* option, const nlohmann::json& expected) {
    const auto found = json.find(key);
    const bool is_same_type =
        found != json.end() && std::string_view(found->type_name()) == expected.type_name();
    if (is_same_type && *found != expected) {
      throw CheckpointError(cat(file.string(),
                                ": ",
                                key,
                                " is ",
                                found->dump(),
                                ", the recipe has ",
                                option,
                                " = ",
                                expected.dump(),
                                "; set ",
                                option,
                                " = ",
                                found->dump()));
    }
  };
  if (!json.is_object()) {
    throw CheckpointError(cat(file.string(), " is no JSON object"));
  }
  const auto require_one_of = [&](const char* key, const std::vector<nlohmann::json>& allowed) {
    const auto found = json.find(key);
    if (found != json.end() && std::find(allowed.begin(), allowed.end(), *found) == allowed.end()) {
      throw CheckpointError(cat(file.string(),
                                ": ",
                                key,
                                " is ",
                                found->dump(),
                                "; a GPT-2 that Penstock can read has ",
                                allowed.front().dump()));
    }
  };
  require_one_of("model_type", {"gpt2"});
  require_one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  require_one_of("layer_norm_epsilon", {1e-5});
  require_one_of("tie_word_embeddings", {model.tied, !model.tied});
  require_one_of("scale_attn_weights", {true});
  require_one_of("scale_attn_by_inverse_layer_idx", {false});
  require_one_of("add_cross_attention", {false});
  require("n_layer", "model.layers", model.layers);
  require("n_embd", "model.width", model.width);
  require("n_head", "model.heads", model.heads);
  require("n_positions", "model.context", model.context);
  require("vocab_size", "model.vocabulary", model.vocabulary);
  require("tie_word_embeddings", "model.tied", model.tied);
}

}  // namespace penstock::checkpoint
