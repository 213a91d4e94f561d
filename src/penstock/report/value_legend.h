// What the names of values say, for people who meet "x3.0" in a picture. docs/program.md has all of
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::report {

std::string_view value_noun(program::ValueKind kind);  // "activation"

struct NameMeaning {
  std::string name;  // an example: "x3.0"
  std::string meaning;
};

// Of the number in a bar, then of each kind of value that the program has, in the order of the
// kinds; of those that hold bytes where `has_bytes` is asked for.
std::vector<NameMeaning> name_meanings(const program::Program& program, bool has_bytes);

}  // namespace penstock::report
