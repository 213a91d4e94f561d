// Programs in files, as text or as JSON.
#pragma once

#include <filesystem>

#include "penstock/program/program.h"

namespace penstock::program {

// JSON for names that end in ".json", else text. A reader sees the old file or the new one, never a
// part. Throws FileError, and what format_program and program_json throw.
void write_program(const std::filesystem::path& path, const Program& program);

// By its content: what begins with '{' is JSON. Throws FileError, and ConfigError that begins with
// the path.
Program read_program(const std::filesystem::path& path);

}  // namespace penstock::program
