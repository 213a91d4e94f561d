#include "penstock/data/text_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/data/source_files.h"
#include "penstock/data/tokenizer.h"

namespace penstock::data {

namespace fs = std::filesystem;

namespace {

constexpr size_t kJoinBytes = size_t{1} << 20;

// A binary file shows within its first bytes. A corpus of hundreds of gigabytes should not be read
// through before training; a NUL byte past this point reads as an end of document.
constexpr size_t kBinaryScanBytes = size_t{1} << 28;

std::optional<int64_t> position_of_nul(std::span<const std::byte> bytes) {
  const size_t scanned = std::min(bytes.size(), kBinaryScanBytes);
  const void* found = std::memchr(bytes.data(), 0, scanned);
  if (found == nullptr) {
    return std::nullopt;
  }
  return static_cast<const std::byte*>(found) - bytes.data();
}

class DocumentJoiner {
 public:
  void add(MappedFile document) {
    if (has_document_) {
      joined_.push_back(static_cast<std::byte>(kEndOfDocument));
    }
    has_document_ = true;
    const std::span<const std::byte> text = document.bytes();
    if (text.size() <= kJoinBytes) {
      joined_.insert(joined_.end(), text.begin(), text.end());
      return;
    }
    close_joined();
    segments_.emplace_back(std::move(document), 0, 1);
  }

  std::vector<TokenSegment> finish() {
    close_joined();
    return std::move(segments_);
  }

 private:
  void close_joined() {
    if (!joined_.empty()) {
      joined_.shrink_to_fit();
      segments_.emplace_back(std::exchange(joined_, {}));
    }
  }

  std::vector<TokenSegment> segments_;
  std::vector<std::byte> joined_;
  bool has_document_ = false;
};

void add_file(const std::string& entry, DocumentJoiner& joiner) {
  MappedFile file{fs::path(entry)};
  if (file.bytes().empty()) {
    throw ConfigError(cat("data.path = \"", entry, "\" is empty; give a file with text in it"));
  }
  if (const auto position = position_of_nul(file.bytes())) {
    throw ConfigError(cat("data.path = \"",
                          entry,
                          "\" is not text: it has a NUL byte at position ",
                          *position,
                          "; convert it to UTF-8, or set data.tokenizer = \"tokens\" if it is a "
                          "token file"));
  }
  joiner.add(std::move(file));
}

void add_folder(const std::string& entry, DocumentJoiner& joiner) {
  int64_t text_files = 0, empty_files = 0, binary_files = 0;
  for (const fs::path& path : files_below(entry)) {
    MappedFile file(path);
    if (file.bytes().empty()) {
      ++empty_files;
    } else if (position_of_nul(file.bytes())) {
      ++binary_files;
    } else {
      ++text_files;
      joiner.add(std::move(file));
    }
  }
  if (text_files == 0) {
    throw ConfigError(cat("data.path = \"",
                          entry,
                          "\" holds no text files (left out: ",
                          empty_files,
                          " empty, ",
                          binary_files,
                          " binary, and hidden ones); name a folder with text in it, or set "
                          "data.tokenizer = \"tokens\" for token files"));
  }
  if (empty_files + binary_files > 0) {
    log_info("data.path = \"",
             entry,
             "\": ",
             text_files,
             " text files read; ",
             empty_files,
             " empty and ",
             binary_files,
             " binary files left out");
  }
}

}  // namespace

std::vector<TokenSegment> open_text(const std::vector<std::string>& entries) {
  DocumentJoiner joiner;
  for (const std::string& entry : entries) {
    if (is_folder(entry)) {
      add_folder(entry, joiner);
    } else {
      add_file(entry, joiner);
    }
  }
  return joiner.finish();
}

}  // namespace penstock::data
