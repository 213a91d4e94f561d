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

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) {
    fail("read", path, errno);
  }
  struct stat info;
  if (::fstat(file.number, &info) != 0) {
    fail("read", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    throw FileError(cat("cannot read ", path.string(), ": not a regular file"));
  }
  size_ = static_cast<size_t>(info.st_size);
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
  const char* next = static_cast<const char*>(data);
  checksum_ = crc32c(data, bytes, checksum_);
  size_ += static_cast<int64_t>(bytes);
  while (bytes > 0) {
    // The kernel takes at most 2 GiB at once.
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write", path_, errno);
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void FileWriter::finish() {
  if (::fsync(descriptor_) != 0) {
    fail("write", path_, errno);
  }
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) {
    fail("write", path_, errno);
  }
}

std::string read_text_file(const fs::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_text_file(const fs::path& path, std::string_view text) {
  fs::path temporary = path;
  temporary += ".tmp";
  try {
    FileWriter file(temporary);
    file.write(text);
    file.finish();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail("write", path, errno);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
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
    const fs::path probe = folder / (".writable-" + std::to_string(::getpid()));
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
