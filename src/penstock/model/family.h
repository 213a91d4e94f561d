// A family of models: what the rest of the program asks about it. Each is a folder under model/ and a
// line in config/families.def; nothing else knows families by name.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/config/recipe.h"
#include "penstock/report/step_floor.h"

namespace at {
class Tensor;
}
namespace penstock::device {
struct Device;
}

namespace penstock::model {

class Chain;

// How files of others name and repeat tensors. A user's own chain has none of it.
struct StoredNames {
  std::string optional_prefix = {};  // files may leave it out of all names
  std::string embedding = {};        // with the prefix, where there is one
  std::string head = {};             // a file may have one that repeats the embedding
  bool (*is_passed_over)(const std::string& name) = nullptr;  // what no model needs
};

// A key of Hugging Face's config.json whose value an option of the recipe decides; in an object,
// "object/key".
struct ConfigKey {
  const char* key;
  const char* option;
  nlohmann::json value;                 // as the recipe has it
  nlohmann::json value_if_absent = {};  // what a file without the key means; null: anything
  const char* other_key = "";           // where newer files have it
};

// A key of config.json that decides what is computed. A file may leave it out.
struct ConfigChoice {
  const char* key;
  std::vector<nlohmann::json> allowed;
};

// A size that people know by its name, with a batch that keeps one large GPU busy.
struct NamedSize {
  std::string name;
  config::ModelOptions model;
  int64_t batch = 0;
};

class Family {
 public:
  virtual ~Family() = default;

  virtual std::string title() const = 0;  // as people write it

  // Keys of [model] that not every family has: those that this one reads.
  virtual std::vector<std::string> own_options() const = 0;
  // Throws ConfigError where options do not go together.
  virtual void require_sound(const config::ModelOptions& model) const = 0;

  // The same parameters and the same arithmetic on every device; fused kernels where there are some.
  virtual Chain make_chain(const config::ModelOptions& model,
                           const device::Device& device) const = 0;

  // A batch like those that it is trained on, to measure with: by default random tokens.
  virtual std::map<std::string, at::Tensor> example(const config::ModelOptions& model,
                                                    int64_t samples) const;

  // Forward and backward of one token, recomputation not counted.
  virtual double flop_per_token(const config::ModelOptions& model) const = 0;
  // What a step on a GPU has to do, kind by kind; sequences are as long as the context.
  virtual std::vector<report::StepWork> work_of(const config::ModelOptions& model,
                                                const report::StepSize& step) const = 0;
  virtual std::vector<NamedSize> sizes() const = 0;

  // Hugging Face's config.json: what is written, what must agree with the recipe, what is allowed.
  // `end_token` is nothing where the tokens are of a tokenizer that nobody named.
  virtual nlohmann::ordered_json hugging_face_config(const config::ModelOptions& model,
                                                     std::optional<int64_t> end_token) const = 0;
  virtual std::vector<ConfigKey> config_keys(const config::ModelOptions& model) const = 0;
  virtual std::vector<ConfigChoice> config_choices() const = 0;
  virtual StoredNames stored_names() const = 0;
};

// Of a recipe that has been checked: the name is one of config/families.def.
const Family& find_family(const std::string& name);

// The chain of a recipe's model, after a check that its family reads every option that is set and
// that they go together. Throws ConfigError.
Chain make_chain(const config::ModelOptions& model, const device::Device& device);

}  // namespace penstock::model
