// Options that several commands have.
#pragma once

#include <string>

namespace penstock::app {

// What an option wants written can be: throws ConfigError now rather than FileError after the work.
// An empty name is no wish.
void require_writable(const std::string& file);

}  // namespace penstock::app
