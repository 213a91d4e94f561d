#include "penstock/data/token_file.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/data/source_files.h"

namespace penstock::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kExtension = ".bin";

struct HeaderFormat {
  int32_t magic;
  int32_t version;
  size_t token_bytes;
};

// As llm.c writes them: ids in 16 bits, or in 32 where there are more.
constexpr std::array<HeaderFormat, 2> kHeaderFormats = {{{20240520, 1, 2}, {20240801, 7, 4}}};
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);

int32_t header_field(std::span<const std::byte> bytes, size_t index) {
  int32_t value;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

std::optional<HeaderFormat> format_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(int32_t)) {
    return std::nullopt;
  }
  for (const HeaderFormat& format : kHeaderFormats) {
    if (header_field(bytes, 0) == format.magic) {
      return format;
    }
  }
  return std::nullopt;
}

TokenSegment open_with_header(MappedFile file, const HeaderFormat& format) {
  const std::span<const std::byte> bytes = file.bytes();
  const std::string path = file.path().string();
  if (bytes.size() < kHeaderBytes) {
    throw ConfigError(cat("data.path: ",
                          path,
                          " ends within its header (",
                          bytes.size(),
                          " of ",
                          kHeaderBytes,
                          " bytes); write or copy it again"));
  }
  const int32_t version = header_field(bytes, 1);
  if (version != format.version) {
    throw ConfigError(cat("data.path: ",
                          path,
                          " has header version ",
                          version,
                          "; for magic number ",
                          format.magic,
                          " only version ",
                          format.version,
                          " is known; write it again in that version, or without a header"));
  }
  const int64_t count = header_field(bytes, 2);
  const int64_t body_bytes = static_cast<int64_t>(bytes.size() - kHeaderBytes);
  if (count < 0 || body_bytes != count * static_cast<int64_t>(format.token_bytes)) {
    throw ConfigError(cat("data.path: ",
                          path,
                          " promises ",
                          count,
                          " tokens of ",
                          format.token_bytes,
                          " bytes in its header but has ",
                          body_bytes,
                          " bytes after it; write or copy it again"));
  }
  return {std::move(file), kHeaderBytes, format.token_bytes};
}

TokenSegment open_raw(MappedFile file, int64_t vocabulary) {
  const size_t token_bytes = vocabulary <= 65536 ? 2 : 4;
  const size_t size = file.bytes().size();
  if (size % token_bytes != 0) {
    throw ConfigError(cat("data.path: ",
                          file.path().string(),
                          " has ",
                          size,
                          " bytes, which is not a multiple of ",
                          token_bytes,
                          ", the bytes per token with model.vocabulary = ",
                          vocabulary,
                          "; write or copy it again, or correct model.vocabulary"));
  }
  return {std::move(file), 0, token_bytes};
}

TokenSegment open_token_file(const fs::path& path, int64_t vocabulary) {
  MappedFile file(path);
  if (const auto format = format_of(file.bytes())) {
    return open_with_header(std::move(file), *format);
  }
  return open_raw(std::move(file), vocabulary);
}

std::vector<fs::path> token_files(const std::string& entry) {
  if (!is_folder(entry)) {
    // Text would read as ids without complaint, so the name has to say that it is none.
    if (fs::path(entry).extension() != kExtension) {
      throw ConfigError(cat("data.path = \"",
                            entry,
                            "\" is not a token file (.bin), which data.tokenizer = \"tokens\" "
                            "needs; set data.tokenizer = \"bytes\" for text"));
    }
    return {entry};
  }
  std::vector<fs::path> files = files_below(entry);
  std::erase_if(files, [](const fs::path& path) { return path.extension() != kExtension; });
  if (files.empty()) {
    throw ConfigError(cat("data.path = \"",
                          entry,
                          "\" holds no token files (.bin), which data.tokenizer = \"tokens\" "
                          "needs; set data.tokenizer = \"bytes\" for text"));
  }
  return files;
}

}  // namespace

std::vector<TokenSegment> open_token_files(const std::vector<std::string>& entries,
                                           int64_t vocabulary) {
  std::vector<TokenSegment> segments;
  for (const std::string& entry : entries) {
    const size_t before = segments.size();
    for (const fs::path& path : token_files(entry)) {
      TokenSegment segment = open_token_file(path, vocabulary);
      if (segment.size() > 0) {
        segments.push_back(std::move(segment));
      }
    }
    if (segments.size() == before) {
      throw ConfigError(
          cat("data.path = \"", entry, "\" is empty; give token files with tokens in them"));
    }
  }
  return segments;
}

}  // namespace penstock::data
