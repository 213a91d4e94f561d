#include "penstock/base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/process.h"

namespace penstock {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  throw FileError(cat("cannot ", verb, " ", path.string(), ": ", std::strerror(error)));
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) {
      ::close(number);
    }
  }
};

// The kernel takes at most 2 GiB at once.
constexpr size_t kMostAtOnce = size_t{1} << 30;

// Of an open file, which must be a regular one.
int64_t regular_size(int descriptor, const fs::path& path) {
  struct stat info;
  if (descriptor < 0 || ::fstat(descriptor, &info) != 0) {
    fail("read", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    throw FileError(cat("cannot read ", path.string(), ": not a regular file"));
  }
  return info.st_size;
}

void write_all(int descriptor, const void* data, size_t bytes, const fs::path& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, next, std::min(bytes, kMostAtOnce));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write", path, errno);
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

// Makes what was written durable, and closes.
void sync_and_close(int& descriptor, const fs::path& path) {
  if (::fsync(descriptor) != 0) {
    fail("write", path, errno);
  }
  if (::close(std::exchange(descriptor, -1)) != 0) {
    fail("write", path, errno);
  }
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  size_ = static_cast<size_t>(regular_size(file.number, path));
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (address == MAP_FAILED) {
      fail("map", path, errno);
    }
    data_ = static_cast<const std::byte*>(address);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail("write", path, errno);
  }
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void FileWriter::write(const void* data, size_t bytes) {
  checksum_ = crc32c(data, bytes, checksum_);
  size_ += static_cast<int64_t>(bytes);
  write_all(descriptor_, data, bytes, path_);
}

void FileWriter::finish() {
  sync_and_close(descriptor_, path_);
}

OffsetReader::OffsetReader(const fs::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  Descriptor file{descriptor_};  // closed where the next line throws
  size_ = regular_size(file.number, path);
  file.number = -1;
}

OffsetReader::~OffsetReader() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

OffsetReader::OffsetReader(OffsetReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(std::exchange(other.size_, 0)) {}

OffsetReader& OffsetReader::operator=(OffsetReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

void OffsetReader::read(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), std::min(out.size(), kMostAtOnce), offset);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("read", path_, errno);
    }
    if (got == 0) {
      throw FileError(cat("cannot read ",
                          path_.string(),
                          ": it ends at byte ",
                          offset,
                          ", ",
                          out.size(),
                          " short"));
    }
    offset += got;
    out = out.subspan(static_cast<size_t>(got));
  }
}

OffsetWriter::OffsetWriter(const fs::path& path, int flags)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0644)) {
  if (descriptor_ < 0) {
    fail("write", path, errno);
  }
}

OffsetWriter OffsetWriter::create(const fs::path& path, int64_t bytes) {
  OffsetWriter writer(path, O_CREAT | O_TRUNC);
  if (::ftruncate(writer.descriptor_, bytes) != 0) {
    fail("write", path, errno);
  }
  return writer;
}

OffsetWriter OffsetWriter::open(const fs::path& path) {
  return {path, 0};
}

OffsetWriter::~OffsetWriter() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

OffsetWriter::OffsetWriter(OffsetWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void OffsetWriter::write(int64_t offset, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, std::min(bytes, kMostAtOnce), offset);
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write", path_, errno);
    }
    next += written;
    offset += written;
    bytes -= static_cast<size_t>(written);
  }
}

void OffsetWriter::finish() {
  sync_and_close(descriptor_, path_);
}

std::string read_text_file(const fs::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

namespace {

// A file beside `path` that nobody else has: names of other processes, and of other hosts on a shared file
// system, differ, and what is there already, a link too, is left alone. Named as leftovers of runs are
// (checkpoint/folder_ops.h).
fs::path create_beside(const fs::path& path, std::string_view text, bool is_durable) {
  const ProcessId process = this_process();
  for (int number = 0;; ++number) {
    const fs::path temporary =
        path.parent_path() /
        cat(".tmp-", path.filename().string(), "-", number, "-", process.host, "-", process.number);
    const int descriptor =
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    constexpr int kTries = 1000;
    if (descriptor < 0 && errno == EEXIST && number < kTries) {
      continue;
    }
    Descriptor file{descriptor};
    if (descriptor < 0) {
      fail("write", path, errno);
    }
    try {
      write_all(descriptor, text.data(), text.size(), path);
      if (is_durable && ::fsync(descriptor) != 0) {
        fail("write", path, errno);
      }
      file.number = -1;
      if (::close(descriptor) != 0) {
        fail("write", path, errno);
      }
      return temporary;
    } catch (...) {
      ::unlink(temporary.c_str());
      throw;
    }
  }
}

void replace_text(const fs::path& path, std::string_view text, bool is_durable) {
  const fs::path temporary = create_beside(path, text, is_durable);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail("write", path, error);
  }
  if (is_durable) {
    sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
}

}  // namespace

void write_text_file(const fs::path& path, std::string_view text) {
  replace_text(path, text, /*is_durable=*/true);
}

void refresh_text_file(const fs::path& path, std::string_view text) {
  replace_text(path, text, /*is_durable=*/false);
}

void sync_folder(const fs::path& folder) {
  const Descriptor handle{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (handle.number < 0 || ::fsync(handle.number) != 0) {
    fail("sync", folder, errno);
  }
}

void require_writable_folder(const fs::path& folder, const std::string& option) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) {
    const fs::path probe = folder / cat(".writable-", this_process().host, "-", ::getpid());
    const Descriptor file{::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)};
    if (file.number < 0) {
      error.assign(errno, std::generic_category());
    } else {
      ::unlink(probe.c_str());
    }
  }
  if (error) {
    throw ConfigError(cat(option,
                          " = \"",
                          folder.string(),
                          "\" cannot be written: ",
                          error.message(),
                          "; choose another folder with --set ",
                          option,
                          "=DIR"));
  }
}

}  // namespace penstock
