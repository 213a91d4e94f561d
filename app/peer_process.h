// A helper program that takes a line and answers with a line of JSON: the PyTorch peer of a bench.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"

namespace penstock::app {

// The peer could not be started, has gone, or answers what it should not.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ExitCode::Negative, message) {}
};

class PeerProcess {
 public:
  // Starts command[0], found as a shell would. Its standard error is ours.
  explicit PeerProcess(const std::vector<std::string>& command);
  ~PeerProcess();  // ends it
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Throws PeerError when the peer has gone or answers {"error": ...}.
  nlohmann::json ask(const std::string& line);

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
};

}  // namespace penstock::app
