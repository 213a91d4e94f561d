#include "arguments.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include "penstock/base/error.h"

#include "commands.h"

namespace penstock::app {

namespace fs = std::filesystem;

Argument add_recipe_arguments(Command& command, RecipeArguments& arguments) {
  const Argument recipe = command.add("RECIPE", arguments.recipe, "the recipe, a TOML file");
  command
      .add_repeated("--set",
                    arguments.settings,
                    "set a recipe key, as in --set train.steps=50; may be given several times "
                    "('penstock options' lists the keys)")
      .named("KEY=VALUE");
  command.add_flag("--json", arguments.as_json, "write the result to standard output as JSON");
  return recipe;
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
