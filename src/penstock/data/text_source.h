// Text files as tokens: each file is a document, and documents are separated by the end-of-document
// token.
#pragma once

#include <string>
#include <vector>

#include "penstock/data/token_segment.h"

namespace penstock::data {

// The text that `entries` (split_entries) name, in order. Files up to 1 MiB are joined in memory,
// which takes about their size; larger ones are mapped, so the memory for a large corpus stays
// bounded, and a folder of very many small files does not use up the system's mappings.
//
// In a folder, empty files and binary ones (with a NUL byte) are left out. Throws ConfigError when
// an entry does not exist, gives no text at all, or is itself a binary file.
std::vector<TokenSegment> open_text(const std::vector<std::string>& entries);

}  // namespace penstock::data
