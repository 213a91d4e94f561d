#include "penstock/config/recipe.h"

#include <algorithm>
#include <filesystem>

#include <toml++/toml.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/config/options.h"

namespace penstock::config {

namespace {

std::string position(const std::string& origin, const toml::source_region& region) {
  return cat(origin, ":", region.begin.line);
}

// The end of the string that opens at `begin` with a quotation mark; the text's end when it is not
// closed.
size_t end_of_string(std::string_view toml, size_t begin) {
  const char mark = toml[begin];
  const std::string fence(3, mark);
  const bool is_long = toml.substr(begin, 3) == fence;
  size_t at = begin + (is_long ? 3 : 1);
  while (at < toml.size()) {
    if (toml[at] == '\\' && mark == '"') {
      at += 2;
    } else if (!is_long && (toml[at] == mark || toml[at] == '\n')) {
      return at + 1;
    } else if (is_long && toml.substr(at, 3) == fence) {
      // Up to two marks may stand before the closing three.
      return std::min(toml.find_first_not_of(mark, at), at + 5);
    } else {
      ++at;
    }
  }
  return toml.size();
}

// toml++ makes one table of each part of "a.b.c" and takes them down by recursion: a long enough
// key overflows the stack. Every part has a dot, so few dots outside of strings and comments are
// few tables.
void require_few_dots(std::string_view toml, const std::string& origin) {
  constexpr int most = 1000;
  int dots = 0;
  for (size_t at = 0; at < toml.size();) {
    if (toml[at] == '"' || toml[at] == '\'') {
      at = end_of_string(toml, at);
    } else if (toml[at] == '#') {
      at = std::min(toml.find('\n', at), toml.size());
    } else {
      dots += toml[at++] == '.' ? 1 : 0;
    }
  }
  if (dots > most) {
    throw ConfigError(cat(origin,
                          ": not a recipe: ",
                          dots,
                          " dots in keys and numbers; at most ",
                          most,
                          " are read"));
  }
}

OptionValue read_value(const toml::node& node, const Option& option, const std::string& where) {
  if (const auto* flag = node.as_boolean()) {
    return flag->get();
  }
  if (const auto* whole = node.as_integer()) {
    return whole->get();
  }
  if (const auto* real = node.as_floating_point()) {
    return real->get();
  }
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  throw ConfigError(
      cat(where, ": ", option.key, " is a list, a table or a date; it takes ", option.wanted()));
}

void require_known_section(const std::string& section, const std::string& where) {
  const std::vector<std::string> sections = section_names();
  if (std::find(sections.begin(), sections.end(), section) != sections.end()) {
    return;
  }
  const std::string suggestion = nearest(section, sections);
  throw ConfigError(cat(where,
                        ": unknown section [",
                        format_key(section),
                        "]",
                        suggestion.empty() ? "" : cat("; did you mean [", suggestion, "]?"),
                        " (known: ",
                        join(sections, ", "),
                        ")"));
}

}  // namespace

Recipe parse_recipe(const std::string& toml, const std::string& origin) {
  require_few_dots(toml, origin);
  toml::table table;
  try {
    table = toml::parse(toml, origin);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        cat(position(origin, error.source()), ": not valid TOML: ", error.description()));
  }
  Recipe recipe;
  for (const auto& [section, content] : table) {
    const std::string section_name(section.str());
    const std::string where = position(origin, content.source());
    if (!content.is_table()) {
      throw ConfigError(cat(where,
                            ": ",
                            format_key(section_name),
                            " stands outside of any section; keys belong under [",
                            join(section_names(), "], ["),
                            "]"));
    }
    require_known_section(section_name, where);
    for (const auto& [name, value] : *content.as_table()) {
      const std::string key = cat(section_name, ".", name.str());
      const std::string value_position = position(origin, value.source());
      const Option& option = find_option(key, value_position);
      set_option(recipe, option, read_value(value, option, value_position), value_position);
    }
  }
  return recipe;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& settings) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    throw ConfigError(cat("recipe ", path, " does not exist; recipes/ has examples"));
  }
  Recipe recipe = parse_recipe(read_text_file(path), path);
  for (const std::string& setting : settings) {
    apply_setting(recipe, setting);
  }
  if (recipe.run.out.empty()) {
    recipe.run.out = cat("runs/", std::filesystem::path(path).stem().string());
  }
  validate(recipe);
  return recipe;
}

std::string format_recipe(const Recipe& recipe) {
  std::string out;
  std::string section;
  for (const Option& option : option_table()) {
    if (option.section() != section) {
      section = option.section();
      out += cat(out.empty() ? "" : "\n", "[", section, "]\n");
    }
    out += cat(option.name(), " = ", format_value(option.get(recipe)), "\n");
  }
  return out;
}

void validate(const Recipe& recipe) {
  const auto& [model, data, train, plan, run] = recipe;
  if (model.width % model.heads != 0) {
    throw ConfigError(cat("model.width = ",
                          model.width,
                          " is not divisible by model.heads = ",
                          model.heads,
                          "; try model.width = ",
                          (model.width / model.heads + 1) * model.heads));
  }
  if (train.batch % plan.micro_batches != 0) {
    int64_t divisor = std::min(plan.micro_batches, train.batch);
    while (train.batch % divisor != 0) {
      --divisor;
    }
    throw ConfigError(cat("train.batch = ",
                          train.batch,
                          " is not divisible by plan.micro_batches = ",
                          plan.micro_batches,
                          "; try plan.micro_batches = ",
                          divisor));
  }
  if (data.tokenizer == "bytes" && model.vocabulary < 256) {
    throw ConfigError(cat("model.vocabulary = ",
                          model.vocabulary,
                          " is too small for data.tokenizer = \"bytes\"; it needs 256"));
  }
  if (train.nesterov && train.momentum == 0) {
    throw ConfigError(
        "train.nesterov = true needs train.momentum above 0; try train.momentum = 0.9");
  }
}

}  // namespace penstock::config
