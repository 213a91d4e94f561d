// Options that several commands have.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::app {

// A text that may not be empty: --memory "$LIMIT" with an empty LIMIT is a slip, not a wish.
CLI::Option* add_text_option(CLI::App& command,
                             const std::string& name,
                             std::string& value,
                             const std::string& description);

// What an option wants written can be: throws ConfigError now rather than FileError after the work.
// An empty name is no wish.
void require_writable(const std::string& file);

}  // namespace penstock::app
