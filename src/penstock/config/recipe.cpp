#include "penstock/config/recipe.h"

#include <algorithm>
#include <filesystem>

// toml++ 3.3 asserts what a recipe can violate ("[~" for a section), and lets clang assume it with
// NDEBUG (its pull request 301). Without assertions it gives an ordinary error.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/config/options.h"

namespace penstock::config {

namespace {

std::string position(const std::string& origin, const toml::source_region& region) {
  return cat(origin, ":", region.begin.line);
}

bool is_control_character(char letter) {
  return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
}

// toml++ 3.3 is not safe with every text, so what it would stumble over is refused before:
// - It makes a table of each part of "a.b.c" and takes them down by recursion, so a long key
//   overflows the stack. Each part has a dot: few dots are few tables.
// - A character outside of ASCII where it looks for whitespace reaches __builtin_unreachable (its
//   issues 190 and 295).
class TextCheck {
 public:
  TextCheck(std::string_view toml, const std::string& origin) : toml_(toml), origin_(origin) {}

  void run() {
    constexpr int most_dots = 1000;
    int dots = 0;
    at_ = toml_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    while (at_ < toml_.size()) {
      if (toml_[at_] == '"' || toml_[at_] == '\'') {
        skip_string(toml_[at_]);
      } else if (toml_[at_] == '#') {
        at_ = std::min(toml_.find('\n', at_), toml_.size());
      } else {
        require_ascii("stands outside of quotation marks");
        dots += toml_[at_] == '.' ? 1 : 0;
        ++at_;
      }
      if (dots > most_dots) {
        fail(cat("more than ", most_dots, " dots in keys and numbers"));
      }
    }
  }

 private:
  void skip_string(char mark) {
    const std::string fence(3, mark);
    const bool is_long = toml_.substr(at_, 3) == fence;
    at_ += is_long ? 3 : 1;
    while (at_ < toml_.size()) {
      if (toml_[at_] == '\\' && mark == '"') {
        skip_escape();
      } else if (!is_long && (toml_[at_] == mark || toml_[at_] == '\n')) {
        ++at_;
        return;
      } else if (is_long && toml_.substr(at_, 3) == fence) {
        // Up to two marks may stand before the closing three.
        at_ = std::min({toml_.find_first_not_of(mark, at_), at_ + 5, toml_.size()});
        return;
      } else {
        ++at_;
      }
    }
  }

  // A backslash and the next character; with a line break, all the whitespace that it swallows.
  void skip_escape() {
    const size_t next = std::min(toml_.find_first_not_of(" \t\r\n", at_ + 1), toml_.size());
    const bool is_line_break = next > at_ + 1;
    at_ = next;
    require_ascii("follows a backslash; it can be written as \\u and four hexadecimal digits");
    at_ += is_line_break ? 0 : 1;
  }

  void require_ascii(const char* what) const {
    if (at_ < toml_.size() && static_cast<unsigned char>(toml_[at_]) >= 0x80) {
      fail(cat("a character outside of ASCII ", what));
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    const auto line =
        1 + std::count(toml_.begin(), toml_.begin() + static_cast<int64_t>(at_), '\n');
    throw ConfigError(cat(origin_, ":", line, ": not valid in a recipe: ", reason));
  }

  std::string_view toml_;
  const std::string& origin_;
  size_t at_ = 0;
};

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
  TextCheck(toml, origin).run();
  toml::table table;
  try {
    table = toml::parse(toml, origin);
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());  // may quote a line break
    std::replace_if(reason.begin(), reason.end(), is_control_character, ' ');
    throw ConfigError(cat(position(origin, error.source()), ": not valid TOML: ", reason));
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
