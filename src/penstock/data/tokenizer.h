// The built-in tokenizer: a token is a byte. It needs no files and no training, and round-trips any
// text. Larger vocabularies come as token files (token_file.h), made by a tokenizer outside
// Penstock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::data {

inline constexpr int64_t kByteVocabulary = 256;

// Stands between documents. It is the NUL byte, which text does not contain.
inline constexpr int64_t kEndOfDocument = 0;

std::vector<int64_t> encode(std::string_view text);

// A model may have a larger vocabulary than 256 (padded for speed, say), and may so draw an id that
// is no byte; it becomes U+FFFD, the replacement character.
std::string decode(std::span<const int64_t> tokens);

}  // namespace penstock::data
