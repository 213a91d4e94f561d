// The sorts of failure, and the exit code each maps to. docs/errors.md lists them.
//
// An expected answer ("does not fit", "differs") is a return value, not an exception.
#pragma once

#include <stdexcept>
#include <string>

#include "penstock/base/text.h"

namespace penstock {

enum class ExitCode { Ok = 0, Negative = 1, UserInput = 2, Internal = 3 };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

// The user can fix it: an option, a recipe, a combination. The text names the option, its value,
// what is allowed and what to try.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(ExitCode::UserInput, message) {}
};

// A file or folder that cannot be read or written.
class FileError : public Error {
 public:
  explicit FileError(const std::string& message) : Error(ExitCode::UserInput, message) {}
};

// A checkpoint that is damaged, incomplete, or belongs to another model.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message) : Error(ExitCode::UserInput, message) {}
};

// A device has not the bytes that were asked for.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& message) : Error(ExitCode::Negative, message) {}
};

// Our own bug.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::Internal, message) {}
};

[[noreturn]] void fail_check(const char* condition,
                             const std::string& message,
                             const char* file,
                             int line);

}  // namespace penstock

// For what cannot happen unless Penstock is wrong:
//   PENSTOCK_CHECK(index < size, "index ", index, " of ", size);
#define PENSTOCK_CHECK(condition, ...)                                                      \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      ::penstock::fail_check(#condition, ::penstock::cat(__VA_ARGS__), __FILE__, __LINE__); \
    }                                                                                       \
  } while (false)
