#include "penstock/checkpoint/model_config.h"

#include <algorithm>
#include <optional>
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
  const std::optional<int64_t> end =
      tokenizer == "bytes" ? std::optional<int64_t>(data::kEndOfDocument) : std::nullopt;
  const nlohmann::ordered_json json =
      model::find_family(model.family).hugging_face_config(model, end);
  // A family that Hugging Face does not have says nothing.
  return (json.is_null() ? nlohmann::ordered_json::object() : json).dump(2) + "\n";
}

namespace {

// A key within an object has the object's before it: "rope_scaling/factor". Null where there is
// none, or it is null.
const nlohmann::json* find_key(const nlohmann::json& json, const std::string& key) {
  const nlohmann::json::json_pointer pointer("/" + key);
  const bool is_there = !key.empty() && json.contains(pointer) && !json.at(pointer).is_null();
  return is_there ? &json.at(pointer) : nullptr;
}

const nlohmann::json* find_key(const nlohmann::json& json, const model::ConfigKey& key) {
  const nlohmann::json* found = find_key(json, std::string(key.key));
  return found != nullptr ? found : find_key(json, std::string(key.other_key));
}

}  // namespace

void require_same_model(const fs::path& folder, const config::ModelOptions& model) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) {
    return;
  }
  const nlohmann::json json = read_strict_json(file, /*max_depth=*/16);
  const model::Family& family = model::find_family(model.family);
  const auto require = [&](const model::ConfigKey& key) {
    const nlohmann::json* found = find_key(json, key);
    const nlohmann::json value = found != nullptr ? *found : key.value_if_absent;
    const bool is_same_type = std::string_view(value.type_name()) == key.value.type_name();
    if (is_same_type && value != key.value) {
      throw CheckpointError(cat(file.string(),
                                ": ",
                                key.key,
                                found != nullptr ? " is " : " is not there, which means ",
                                value.dump(),
                                ", the recipe has ",
                                key.option,
                                " = ",
                                key.value.dump(),
                                "; set ",
                                key.option,
                                " = ",
                                value.dump()));
    }
  };
  if (!json.is_object()) {
    throw CheckpointError(cat(file.string(), " is no JSON object"));
  }
  const auto require_one_of = [&](const char* key, const std::vector<nlohmann::json>& allowed) {
    const nlohmann::json* found = find_key(json, std::string(key));
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
    require(key);
  }
}

}  // namespace penstock::checkpoint
