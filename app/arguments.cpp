#include "arguments.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "penstock/base/error.h"

namespace penstock::app {

namespace fs = std::filesystem;

CLI::Option* add_text_option(CLI::App& command,
                             const std::string& name,
                             std::string& value,
                             const std::string& description) {
  return command.add_option(name, value, description)->check([](const std::string& text) {
    return std::string(text.empty() ? "must not be empty" : "");
  });
}

void require_writable(const std::string& file) {
  if (file.empty()) {
    return;
  }
  const fs::path folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder)) {
    throw ConfigError(cat("cannot write ", file, ": there is no folder ", folder.string()));
  }
  // A file is replaced, so it is the folder that must be writable; and a device must not be
  // replaced.
  if (fs::exists(file) && !fs::is_regular_file(file)) {
    throw ConfigError(cat("cannot write ", file, ": it is there and is not a regular file"));
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(cat("cannot write ", file, ": ", std::strerror(errno)));
  }
}

}  // namespace penstock::app
