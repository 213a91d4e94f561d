// Names read from a file, made fit for an error message; words, made fit for a shell.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// In double quotes, on one line whatever the text holds, and cut after a hundred bytes or so.
std::string in_quotes(std::string_view text);

// As a shell takes it for one word: in single quotes where it has more than plain characters.
std::string shell_word(std::string_view word);

}  // namespace penstock
