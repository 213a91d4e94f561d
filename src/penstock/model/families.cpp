// The list of config/families.def, as objects.
#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/error.h"
#include "penstock/config/options.h"
#include "penstock/model/chain.h"
#include "penstock/model/family.h"

namespace penstock::model {

#define PENSTOCK_FAMILY(family) const Family& family##_family();
#include "penstock/config/families.def"

const Family& find_family(const std::string& name) {
#define PENSTOCK_FAMILY(family) \
  if (name == #family) {        \
    return family##_family();   \
  }
#include "penstock/config/families.def"
  if (name == config::kOwnFamily) {
    throw ConfigError(
        "model.family = \"own\" is the chain of a C++ program: only that program can train it or "
        "go on "
        "from its checkpoints (docs/own_models.md)");
  }
  throw InternalError(cat("no model family is called ", name));
}

std::map<std::string, at::Tensor> Family::example(const config::ModelOptions& model,
                                                  int64_t samples) const {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
  const at::Tensor tokens =
      at::randint(model.vocabulary, {2, samples, model.context}, generator, at::kLong);
  return {{"inputs", tokens[0]}, {"targets", tokens[1]}};
}

namespace {

// Options that only some families read.
std::set<std::string> special_options() {
  std::set<std::string> keys;
#define PENSTOCK_FAMILY(family)                                    \
  for (const std::string& key : family##_family().own_options()) { \
    keys.insert(key);                                              \
  }
// Those that a family adds and does not read itself, too.
#define PENSTOCK_INTEGER_OPTION(name, ...) keys.insert("model." #name);
#define PENSTOCK_NUMBER_OPTION(name, ...) keys.insert("model." #name);
#define PENSTOCK_FLAG_OPTION(name, ...) keys.insert("model." #name);
#define PENSTOCK_CHOICE_OPTION(name, ...) keys.insert("model." #name);
#include "penstock/config/families.def"
  return keys;
}

// A setting that changes nothing would mislead.
void require_read_options(const Family& family, const config::ModelOptions& model) {
  config::Recipe recipe;
  const config::Recipe usual;
  recipe.model = model;
  const std::vector<std::string> own = family.own_options();
  for (const std::string& key : special_options()) {
    const config::Option& option = config::find_option(key, "a family");
    const bool is_read = std::find(own.begin(), own.end(), key) != own.end();
    if (!is_read && option.get(recipe) != option.get(usual)) {
      throw ConfigError(cat(key,
                            " = ",
                            config::format_value(option.get(recipe)),
                            " is not read by model.family = \"",
                            model.family,
                            "\"; leave it out"));
    }
  }
}

}  // namespace

Chain make_chain(const config::ModelOptions& model, const device::Device& device) {
  const Family& family = find_family(model.family);
  require_read_options(family, model);
  family.require_sound(model);
  Chain chain = family.make_chain(model, device);
  chain.set_example([&family, model](int64_t samples) { return family.example(model, samples); });
  chain.set_description([model](int64_t samples) {
    return cat(model.family,
               ", ",
               model.layers,
               " layers, width ",
               model.width,
               ", micro-batches of ",
               samples,
               " x ",
               model.context,
               ", dropout ",
               model.dropout);
  });
  return chain;
}

}  // namespace penstock::model
