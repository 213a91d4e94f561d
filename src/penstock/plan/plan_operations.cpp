// The operations of a plan's slots, as words.
#include <charconv>
#include <optional>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/base/text.h"
#include "penstock/plan/plan_file.h"

namespace penstock::plan {

namespace {

constexpr const char* kLossWord = "loss";

char letter_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::ForwardAll:
      return 'a';
    case OperationKind::ForwardKeepInput:
      return 'i';
    case OperationKind::ForwardDrop:
      return 'd';
    case OperationKind::Backward:
      return 'b';
    case OperationKind::Loss:
      break;
  }
  throw InternalError("an operation that has no letter");
}

std::optional<OperationKind> kind_of(char letter) {
  for (const OperationKind kind : {OperationKind::ForwardAll,
                                   OperationKind::ForwardKeepInput,
                                   OperationKind::ForwardDrop,
                                   OperationKind::Backward}) {
    if (letter_of(kind) == letter) {
      return kind;
    }
  }
  return std::nullopt;
}

int32_t direction_of(OperationKind kind) {
  return kind == OperationKind::Backward ? -1 : 1;
}

// Operations at neighbouring layers, in the order in which their kind goes.
bool continues(const Operation& before, const Operation& next) {
  return before.kind != OperationKind::Loss && next.kind == before.kind &&
         next.mode == before.mode && next.layer == before.layer + direction_of(next.kind);
}

std::string format_run(const Operation& first, const Operation& last) {
  if (first.kind == OperationKind::Loss) {
    return kLossWord;
  }
  return cat(letter_of(first.kind),
             first.layer,
             first.layer == last.layer ? "" : cat("-", last.layer),
             first.mode > 0 ? cat("/", first.mode) : "");
}

// Takes a number off the front.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || number < 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return number;
}

bool take_mark(std::string_view& text, char mark) {
  const bool is_there = text.starts_with(mark);
  text.remove_prefix(is_there ? 1 : 0);
  return is_there;
}

// A word that is no loss: nothing where it is none at all.
std::optional<Operations> parse_word(std::string_view word) {
  constexpr int32_t kMostLayers = 1 << 20;
  const std::optional<OperationKind> kind = word.empty() ? std::nullopt : kind_of(word[0]);
  if (!kind) {
    return std::nullopt;
  }
  word.remove_prefix(1);
  const std::optional<int32_t> first = take_number(word);
  const std::optional<int32_t> last = take_mark(word, '-') ? take_number(word) : first;
  const std::optional<int32_t> mode =
      take_mark(word, '/') ? take_number(word) : std::optional<int32_t>(0);
  const bool has_mode = mode && (*mode == 0 || *kind == OperationKind::ForwardAll);
  if (!first || !last || !has_mode || !word.empty() || std::max(*first, *last) > kMostLayers) {
    return std::nullopt;
  }
  const int32_t step = direction_of(*kind);
  if ((*last - *first) * step < 0) {
    return std::nullopt;
  }
  Operations all;
  for (int32_t layer = *first; layer != *last + step; layer += step) {
    all.push_back({*kind, layer, *mode});
  }
  return all;
}

}  // namespace

std::string format_operations(const Operations& operations) {
  std::vector<std::string> words;
  for (size_t first = 0; first < operations.size();) {
    size_t last = first;
    while (last + 1 < operations.size() && continues(operations[last], operations[last + 1])) {
      ++last;
    }
    words.push_back(format_run(operations[first], operations[last]));
    first = last + 1;
  }
  return join(words, " ");
}

Operations parse_operations(std::string_view text, const std::string& where) {
  Operations all;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word == kLossWord) {
      all.push_back({OperationKind::Loss});
      continue;
    }
    const std::optional<Operations> found = parse_word(word);
    if (!found) {
      throw ConfigError(cat(where,
                            ": ",
                            in_quotes(std::string(word)),
                            " is no operation; they look like a0-5, a3/1, i6, d7, b5-0 and loss"));
    }
    all.insert(all.end(), found->begin(), found->end());
  }
  return all;
}

}  // namespace penstock::plan
