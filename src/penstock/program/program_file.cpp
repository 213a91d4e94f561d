#include "penstock/program/program_file.h"

#include <string>
#include <string_view>

#include "penstock/base/file.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"

namespace penstock::program {

void write_program(const std::filesystem::path& path, const Program& program) {
  const bool is_json = path.string().ends_with(".json");
  write_text_file(path, is_json ? program_json(program) : format_program(program));
}

Program read_program(const std::filesystem::path& path) {
  // Mapped, so that a file which is too long costs nothing.
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  return is_json ? parse_program_json(text, path.string()) : parse_program(text, path.string());
}

}  // namespace penstock::program
