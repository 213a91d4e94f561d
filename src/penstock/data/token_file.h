// Token files (.bin): ids that a tokenizer outside Penstock wrote, 16 or 32 bits each, little
// endian.
//
// A raw file has ids only: 16 bits each when the vocabulary has at most 65536 entries, else 32. A
// file with llm.c's header (256 32-bit integers: magic, version, count) says its own width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/data/token_segment.h"

namespace penstock::data {

// The token files that `entries` (split_entries) name, in order, each mapped. Ids are not checked
// here. Throws ConfigError when an entry does not exist or gives no tokens, or when a file's size
// does not fit its format.
std::vector<TokenSegment> open_token_files(const std::vector<std::string>& entries,
                                           int64_t vocabulary);

}  // namespace penstock::data
