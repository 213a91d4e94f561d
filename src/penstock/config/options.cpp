// Finding an option and giving it a value.
#include "penstock/config/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "penstock/base/error.h"

namespace penstock::config {

namespace {

std::string type_of(const OptionValue& value) {
  constexpr const char* names[] = {"true or false", "an integer", "a number", "text"};
  return names[value.index()];
}

// A value of the option's type, where the given one can stand for it without loss; nothing
// otherwise.
std::optional<OptionValue> convert(const OptionValue& value, const OptionValue& example) {
  if (value.index() == example.index()) {
    return value;
  }
  if (std::holds_alternative<double>(example) && std::holds_alternative<int64_t>(value)) {
    return static_cast<double>(std::get<int64_t>(value));
  }
  return std::nullopt;
}

template <typename Number>
std::optional<OptionValue> parse_number(const std::string& text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) {
    return std::nullopt;
  }
  return OptionValue(number);
}

// "1000", and "1e3" as people write large ones.
std::optional<OptionValue> parse_integer(const std::string& text) {
  const std::optional<OptionValue> plain = parse_number<int64_t>(text);
  if (plain || text.find_first_of("eE") == text.npos) {
    return plain;
  }
  const std::optional<OptionValue> number = parse_number<double>(text);
  const double value = number ? std::get<double>(*number) : 0.5;
  const bool is_whole = std::abs(value) < 0x1p53 && value == std::floor(value);
  return is_whole ? std::optional<OptionValue>(static_cast<int64_t>(value)) : std::nullopt;
}

std::optional<OptionValue> parse_as(const OptionValue& example, const std::string& text) {
  if (std::holds_alternative<bool>(example)) {
    return text == "true"    ? std::optional<OptionValue>(true)
           : text == "false" ? std::optional<OptionValue>(false)
                             : std::nullopt;
  }
  if (std::holds_alternative<int64_t>(example)) {
    return parse_integer(text);
  }
  if (std::holds_alternative<double>(example)) {
    return parse_number<double>(text);
  }
  return OptionValue(text);
}

[[noreturn]] void fail_type(const Option& option,
                            const std::string& shown,
                            const std::string& what,
                            const std::string& where) {
  throw ConfigError(
      cat(where, ": ", option.key, " = ", shown, " is ", what, "; it takes ", option.wanted()));
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const Option& option : option_table()) {
    keys.push_back(option.key);
  }
  return keys;
}

}  // namespace

std::string Option::flag() const {
  std::string text = cat("--", name());
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::string Option::wanted() const {
  const char* article = type == "integer" ? "an " : type == "number" ? "a " : "";
  return cat(article, type, allowed.empty() ? "" : ", ", allowed);
}

const Option& find_option(const std::string& key, const std::string& where) {
  for (const Option& option : option_table()) {
    if (option.key == key) {
      return option;
    }
  }
  // A key that is right but for its section is the commonest slip, so the bare name counts too.
  std::string suggestion;
  for (const Option& option : option_table()) {
    if (option.name() == key.substr(key.find('.') + 1)) {
      suggestion = option.key;
    }
  }
  if (suggestion.empty()) {
    suggestion = nearest(key, known_keys());
  }
  throw ConfigError(cat(where,
                        ": unknown key ",
                        format_key(key),
                        suggestion.empty() ? "" : cat("; did you mean ", suggestion, "?"),
                        " (penstock options lists them all)"));
}

namespace {

void require_allowed(const Option& option, const OptionValue& value, const std::string& where) {
  if (!option.is_allowed(value)) {
    // Of a few words nobody needs to be told which.
    constexpr size_t kFew = 4;
    const std::string* word = std::get_if<std::string>(&value);
    const std::string suggestion =
        word != nullptr && option.choices.size() > kFew ? nearest(*word, option.choices) : "";
    throw ConfigError(cat(where,
                          ": ",
                          option.key,
                          " = ",
                          format_value(value),
                          " is not allowed; it takes ",
                          option.allowed,
                          suggestion.empty() ? "" : cat("; did you mean ", suggestion, "?")));
  }
  // A recipe is written as TOML, which has to be UTF-8.
  const std::string* words = std::get_if<std::string>(&value);
  if (words != nullptr && !is_valid_utf8(*words)) {
    throw ConfigError(cat(where, ": ", option.key, " is not valid UTF-8; it takes UTF-8 text"));
  }
}

}  // namespace

void set_option(Recipe& recipe, const Option& option, OptionValue value, const std::string& where) {
  const std::optional<OptionValue> converted = convert(value, option.get(recipe));
  if (!converted) {
    fail_type(option, format_value(value), type_of(value), where);
  }
  require_allowed(option, *converted, where);
  option.assign(recipe, *converted);
}

void require_allowed_values(const Recipe& recipe, const std::string& where) {
  for (const Option& option : option_table()) {
    require_allowed(option, option.get(recipe), where);
  }
}

void apply_text(Recipe& recipe,
                const Option& option,
                const std::string& text,
                const std::string& where) {
  const bool is_quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  const std::string bare = is_quoted ? text.substr(1, text.size() - 2) : text;
  const std::optional<OptionValue> value = parse_as(option.get(recipe), bare);
  if (!value) {
    fail_type(option, format_value(bare), "text", where);
  }
  set_option(recipe, option, *value, where);
}

void apply_setting(Recipe& recipe, const std::string& setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    throw ConfigError(
        cat("--set ", format_key(setting), " has no '='; write it as --set train.steps=50"));
  }
  const Option& option = find_option(setting.substr(0, equals), "--set");
  apply_text(recipe, option, setting.substr(equals + 1), "--set");
}

}  // namespace penstock::config
