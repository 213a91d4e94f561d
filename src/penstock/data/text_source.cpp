#include "penstock/data/text_source.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/data/source_files.h"

namespace penstock::data {

namespace fs = std::filesystem;

namespace {

// Files beyond this are mapped, smaller ones opened for each read: the system bounds the mappings of a
// process to some ten thousands.
constexpr int64_t kMappedBytes = int64_t{1} << 20;

// A binary file shows within its first bytes. All ranks look at all files, so they look at no more; a
// NUL byte past this point reads as an end of document.
constexpr int64_t kHeadBytes = 8000;

struct TextFile {
  fs::path path;
  int64_t bytes = 0;
  std::optional<int64_t> nul;  // where its head has a NUL byte: it is no text
};

TextFile look_at(const fs::path& path) {
  const OffsetReader file(path);
  std::vector<std::byte> head(static_cast<size_t>(std::min(file.size(), kHeadBytes)));
  file.read(0, head);
  const auto nul = std::find(head.begin(), head.end(), std::byte{0});
  TextFile found{path, file.size(), {}};
  if (nul != head.end()) {
    found.nul = nul - head.begin();
  }
  return found;
}

void add_document(const TextFile& file, std::vector<TokenSegment>& segments) {
  if (!segments.empty()) {
    segments.back().end_document();
  }
  if (file.bytes > kMappedBytes) {
    segments.emplace_back(MappedFile(file.path), /*header_bytes=*/0, /*token_bytes=*/1);
  } else {
    segments.emplace_back(file.path, file.bytes);
  }
}

void add_file(const std::string& entry, std::vector<TokenSegment>& segments) {
  const TextFile file = look_at(entry);
  if (file.bytes == 0) {
    throw ConfigError(cat("data.path = \"", entry, "\" is empty; give a file with text in it"));
  }
  if (file.nul) {
    throw ConfigError(cat("data.path = \"",
                          entry,
                          "\" is not text: it has a NUL byte at position ",
                          *file.nul,
                          "; convert it to UTF-8, or set data.tokenizer = \"tokens\" if it is a "
                          "token file"));
  }
  add_document(file, segments);
}

void add_folder(const std::string& entry, std::vector<TokenSegment>& segments) {
  int64_t text_files = 0, empty_files = 0, binary_files = 0;
  for (const fs::path& path : files_below(entry)) {
    const TextFile file = look_at(path);
    if (file.bytes == 0) {
      ++empty_files;
    } else if (file.nul) {
      ++binary_files;
    } else {
      ++text_files;
      add_document(file, segments);
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
             " text files; ",
             empty_files,
             " empty and ",
             binary_files,
             " binary files left out");
  }
}

}  // namespace

std::vector<TokenSegment> open_text(const std::vector<std::string>& entries) {
  std::vector<TokenSegment> segments;
  for (const std::string& entry : entries) {
    if (is_folder(entry)) {
      add_folder(entry, segments);
    } else {
      add_file(entry, segments);
    }
  }
  return segments;
}

}  // namespace penstock::data
