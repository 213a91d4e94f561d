// Names of values as files spell them, taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/program/program.h"

namespace penstock::program {

struct ValueName {
  ValueKind kind = ValueKind::Activation;
  int32_t layer = 0;  // or unit
  int32_t micro_batch = 0;
  int32_t making = 1;
  std::string_view first;  // the name of the first making
};

// Nothing where the text is no name. Targets and copies of weights are of `loss_index`.
std::optional<ValueName> parse_value_name(std::string_view text, int32_t loss_index);

}  // namespace penstock::program
