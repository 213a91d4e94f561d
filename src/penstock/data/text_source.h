// Text files as tokens: each file is a document, and documents are separated by the end-of-document
// token.
#pragma once

#include <string>
#include <vector>

#include "penstock/data/token_segment.h"

namespace penstock::data {

// The text that `entries` (split_entries) name, in order. Of each file the first bytes are looked at,
// and no more: a rank reads what its samples need. Memory grows with the number of files, not with
// their sizes.
//
// In a folder, empty files and binary ones (with a NUL byte) are left out. Throws ConfigError when
// an entry does not exist, gives no text at all, or is itself a binary file.
std::vector<TokenSegment> open_text(const std::vector<std::string>& entries);

}  // namespace penstock::data
