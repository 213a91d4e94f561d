// The one option table. Each row gives a recipe key its type, default, range and help; parsing,
// --set, --help, printing and docs/recipes.md all come from it.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "penstock/config/recipe.h"

namespace penstock::config {

using OptionValue = std::variant<bool, int64_t, double, std::string>;

struct Option {
  std::string key;   // "train.steps"
  std::string type;  // "integer", "number", "text", "true or false"
  // "1 or more", "\"adamw\", \"sgd\" or \"lamb\""; empty: anything of the type.
  std::string allowed;
  std::string help;
  std::function<OptionValue(const Recipe&)> get;
  std::function<void(Recipe&, const OptionValue&)> assign;
  std::function<bool(const OptionValue&)> is_allowed;  // for a value of the option's type
  std::vector<std::string> choices = {};               // of a text that is one of some words

  std::string section() const { return key.substr(0, key.find('.')); }
  std::string name() const { return key.substr(key.find('.') + 1); }
  std::string flag() const;    // "--micro-batches", of "plan.micro_batches"
  std::string wanted() const;  // "an integer, 1 or more", for messages
};

const std::vector<Option>& option_table();

std::vector<std::string> section_names();  // in the order of the table

// Throws ConfigError with the nearest known key when there is no such option.
const Option& find_option(const std::string& key, const std::string& where);

// Checks type and range, then assigns. `where` says where the value stands: "recipe.toml:12" or
// "--set".
void set_option(Recipe& recipe, const Option& option, OptionValue value, const std::string& where);

// A value as a command line has it, where it may stand in quotes.
void apply_text(Recipe& recipe,
                const Option& option,
                const std::string& text,
                const std::string& where);
// "train.steps=50", as given to --set.
void apply_setting(Recipe& recipe, const std::string& setting);

// Every value of a recipe that a program has filled in, as those that are read are. ConfigError.
void require_allowed_values(const Recipe& recipe, const std::string& where);

std::string format_value(const OptionValue& value);  // as TOML
std::string format_key(const std::string& key);      // for messages: quoted unless it is a bare key

std::string options_help();      // for terminals
std::string options_markdown();  // the tables of docs/recipes.md

}  // namespace penstock::config
