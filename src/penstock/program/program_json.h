// A program as JSON, for other programs to read: the words of the text form, an instruction per
// line. docs/program.md describes it field by field.
#pragma once

#include <string>
#include <string_view>

#include "penstock/program/program.h"

namespace penstock::program {

// Reads back as an equal program; throws as format_program does.
std::string program_json(const Program& program);

// Throws ConfigError of one line, "origin: instruction 12 of rank 0: what is wrong; what is
// allowed".
Program parse_program_json(std::string_view text, const std::string& origin);

}  // namespace penstock::program
