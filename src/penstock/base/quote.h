// Names read from a file, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// In double quotes, on one line whatever the text holds, and cut after a hundred bytes or so.
std::string in_quotes(std::string_view text);

}  // namespace penstock
