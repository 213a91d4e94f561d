#include "penstock/config/options.h"

#include <cstdio>
#include <memory>

#include "commands.h"

namespace penstock::app {

void add_options_command(Command& app) {
  Command command = app.add_command("options", "list every recipe key: default, range, meaning");
  const auto as_markdown = std::make_shared<bool>(false);
  command.add_flag("--markdown", *as_markdown, "as the tables of docs/recipes.md");
  command.runs([as_markdown] {
    const std::string text = *as_markdown ? config::options_markdown() : config::options_help();
    std::fputs(text.c_str(), stdout);
    return 0;
  });
}

}  // namespace penstock::app
