// Names of values as files spell them, taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/program/value.h"

namespace penstock::program {

struct ValueName {
  Value value;  // its bytes are not part of the name
  int32_t making = 1;
  std::string_view first;  // the name of the first making
};

// Nothing where the text is no name.
std::optional<ValueName> parse_value_name(std::string_view text);

}  // namespace penstock::program
