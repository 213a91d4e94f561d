// A program as text: a line per instruction, for people to read, compare and edit. docs/program.md
// describes the form.
#pragma once

#include <string>
#include <string_view>

#include "penstock/program/program.h"

namespace penstock::program {

// Reads back as an equal program, to the last bit of every number. Throws InternalError for values
// that are not numbered as they appear (given ones first, then in the order of making) and for what
// parse_program would refuse, ConfigError for a program that is too long to be read.
std::string format_program(const Program& program);

// Throws ConfigError of one line, "origin:12: what is wrong; what is allowed".
Program parse_program(std::string_view text, const std::string& origin);

}  // namespace penstock::program
