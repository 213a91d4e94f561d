#include "penstock/data/tokenizer.h"

namespace penstock::data {

std::vector<int64_t> encode(std::string_view text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (const char letter : text) {
    tokens.push_back(static_cast<unsigned char>(letter));
  }
  return tokens;
}

std::string decode(std::span<const int64_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const int64_t token : tokens) {
    if (token >= 0 && token < kByteVocabulary) {
      text += static_cast<char>(token);
    } else {
      text += "\xEF\xBF\xBD";
    }
  }
  return text;
}

}  // namespace penstock::data
