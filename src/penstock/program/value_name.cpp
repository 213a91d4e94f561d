#include "penstock/program/value_name.h"

#include <charconv>
#include <system_error>

namespace penstock::program {

namespace {

// Takes the prefix from `text` if it is there.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

// No leading zero: a value has one name.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<size_t>(rest - text.data());
  if (error != std::errc() || text[0] == '-' || (text[0] == '0' && length > 1)) {
    return std::nullopt;
  }
  text.remove_prefix(length);
  return number;
}

std::optional<ValueKind> take_kind(std::string_view& text) {
  for (size_t kind = 0; kind < kNumValueKinds; ++kind) {
    if (take(text, {&kValueKinds[kind].letter, 1})) {
      return static_cast<ValueKind>(kind);
    }
  }
  return std::nullopt;
}

// A number, after a dot where it is not the first; whether it is there.
bool take_field(std::string_view& text, bool after_dot, int32_t& field) {
  if (after_dot && !take(text, ".")) {
    return false;
  }
  const std::optional<int32_t> number = take_number(text);
  field = number.value_or(field);
  return number.has_value();
}

}  // namespace

std::optional<ValueName> parse_value_name(std::string_view text) {
  const std::string_view whole = text;
  const std::optional<ValueKind> kind = take_kind(text);
  if (!kind) {
    return std::nullopt;
  }
  ValueName name{.value = {.kind = *kind}};
  const ValueKindInfo& info = info_of(*kind);
  Value& value = name.value;
  const bool is_complete = (!info.has_unit || take_field(text, false, value.unit)) &&
                           (!info.has_layer || take_field(text, info.has_unit, value.layer)) &&
                           (!info.has_element || take_field(text, false, value.element)) &&
                           (!info.has_label || take_field(text, false, value.label)) &&
                           (!info.has_micro_batch || take_field(text, true, value.micro_batch)) &&
                           (!info.has_version || take_field(text, true, value.version));
  name.first = whole.substr(0, whole.size() - text.size());
  if (take(text, "#")) {
    name.making = take_number(text).value_or(0);
    if (name.making < 2) {
      return std::nullopt;
    }
  }
  return is_complete && text.empty() ? std::optional(name) : std::nullopt;
}

}  // namespace penstock::program
