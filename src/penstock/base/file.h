// Files: mapped for reading, written so that what is said to be on disk is on disk. Failures are
// FileErrors that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// A file mapped read-only. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A new file, written front to back, summed with CRC-32C on the way. finish() makes it durable; a
// file that is not finished is closed as it is.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void finish();  // fsync and close

  int64_t size() const { return size_; }
  uint32_t checksum() const { return checksum_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  uint32_t checksum_ = 0;
};

// A file that is read here and there, into memory of the caller's.
class OffsetReader {
 public:
  explicit OffsetReader(const std::filesystem::path& path);
  ~OffsetReader();
  OffsetReader(OffsetReader&& other) noexcept;
  OffsetReader& operator=(OffsetReader&& other) noexcept;

  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // As many bytes as `out` has; an end of the file before that is an error.
  void read(int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// A file that several write at once, each its own bytes. finish() makes those of this one durable.
class OffsetWriter {
 public:
  // A new file of this size, all zeros.
  static OffsetWriter create(const std::filesystem::path& path, int64_t bytes);
  // One that is there.
  static OffsetWriter open(const std::filesystem::path& path);
  ~OffsetWriter();
  OffsetWriter(OffsetWriter&& other) noexcept;
  OffsetWriter& operator=(OffsetWriter&& other) = delete;

  void write(int64_t offset, const void* data, size_t bytes);
  void finish();  // fsync and close

 private:
  OffsetWriter(const std::filesystem::path& path, int flags);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

std::string read_text_file(const std::filesystem::path& path);

// Replaces `path` at once and durably: a reader sees the old text or the new, never a part. What
// cannot be written leaves the old text and no other file behind.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// The same for what is written every second and may be lost where the machine stops: not durable.
void refresh_text_file(const std::filesystem::path& path, std::string_view text);

// Makes renames inside `folder` durable.
void sync_folder(const std::filesystem::path& folder);

// Creates `folder` (and its parents) and makes sure a file can be written there.
void require_writable_folder(const std::filesystem::path& folder, const std::string& option);

}  // namespace penstock
