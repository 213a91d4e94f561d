#include "penstock/program/value_name.h"

#include <array>
#include <charconv>
#include <system_error>
#include <utility>

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
  constexpr std::array letters = {std::pair{"x", ValueKind::Activation},
                                  std::pair{"s", ValueKind::Saved},
                                  std::pair{"d", ValueKind::Gradient},
                                  std::pair{"t", ValueKind::Targets},
                                  std::pair{"w", ValueKind::WeightWork},
                                  std::pair{"v", ValueKind::Weights},
                                  std::pair{"p", ValueKind::Gathered},
                                  std::pair{"g", ValueKind::Bucket},
                                  std::pair{"r", ValueKind::Reduced}};
  for (const auto& [letter, kind] : letters) {
    if (take(text, letter)) {
      return kind;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ValueName> parse_value_name(std::string_view text, int32_t loss_index) {
  const std::string_view whole = text;
  const std::optional<ValueKind> kind = take_kind(text);
  if (!kind) {
    return std::nullopt;
  }
  const bool has_layer = *kind != ValueKind::Targets && *kind != ValueKind::Weights;
  const auto layer = has_layer ? take_number(text) : loss_index;
  const bool has_dot = take(text, ".");
  const auto micro_batch = take_number(text);
  const std::string_view first = whole.substr(0, whole.size() - text.size());
  std::optional<int32_t> making = 1;
  if (take(text, "#")) {
    making = take_number(text);
    if (making.value_or(0) < 2) {
      return std::nullopt;
    }
  }
  if (!layer || !has_dot || !micro_batch || !text.empty()) {
    return std::nullopt;
  }
  return ValueName{*kind, *layer, *micro_batch, *making, first};
}

}  // namespace penstock::program
