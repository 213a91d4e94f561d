#include "penstock/checkpoint/model_config.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/checkpoint/strict_json.h"
#include "penstock/data/tokenizer.h"
#include "penstock/model/family.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

std::string hugging_face_config(const config::ModelOptions& model, const std::string& tokenizer) {
  // A vocabulary of others ends with its end of text.
  const int64_t end = tokenizer == "bytes" ? data::kEndOfDocument : model.vocabulary - 1;
  return model::find_family(model.family).hugging_face_config(model, end).dump(2) + "\n";
}

namespace {

// A key within an object has the object's before it: "rope_scaling/factor". Null where there is none.
const nlohmann::json* find_key(const nlohmann::json& json, const std::string& key) {
  const nlohmann::json::json_pointer pointer("/" + key);
  return json.contains(pointer) ? &json.at(pointer) : nullptr;
}

}  // namespace

void require_same_model(const fs::path& folder, const config::ModelOptions& model) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) {
    return;
  }
  const nlohmann::json json = read_strict_json(file, /*max_depth=*/16);
  const model::Family& family = model::find_family(model.family);
  const auto require = [&](const char* key, const char* option, const nlohmann::json& expected) {
    const nlohmann::json* found = find_key(json, key);
    const bool is_same_type =
        found != nullptr && std::string_view(found->type_name()) == expected.type_name();
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
    const nlohmann::json* found = find_key(json, key);
    if (found != nullptr && std::find(allowed.begin(), allowed.end(), *found) == allowed.end()) {
      throw CheckpointError(cat(file.string(),
                                ": ",
                                key,
                                " is ",
                                found->dump(),
                                "; a ",
                                family.title(),
                                " that Penstock can read has ",
                                allowed.front().dump()));
    }
  };
  for (const model::ConfigChoice& choice : family.config_choices()) {
    require_one_of(choice.key, choice.allowed);
  }
  for (const model::ConfigKey& key : family.config_keys(model)) {
    require(key.key, key.option, key.value);
  }
}

}  // namespace penstock::checkpoint
