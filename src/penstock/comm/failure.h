// How a job of several ranks ends when one of them does.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "penstock/base/error.h"

namespace penstock::comm {

// What the ranks of a job are told when one of them ends early: a line for people that names it,
// and the exit code that it ends with.
struct Failure {
  ExitCode code = ExitCode::Internal;
  std::string line;
};

// Another rank has failed, or the job is being stopped; this rank cannot go on alone. Carries the
// exit code of the rank that failed, so that all ranks end alike.
class PeerError : public Error {
 public:
  using Error::Error;
};

// A peer was waited for longer than the group's time-out.
class Timeout : public Error {
 public:
  explicit Timeout(const std::string& message) : Error(ExitCode::Internal, message) {}
};

// What the other ranks are told of an exception that ends rank `rank`.
Failure describe_failure(int32_t rank, const std::exception_ptr& error);

}  // namespace penstock::comm
