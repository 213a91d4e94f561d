#include "peer_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "penstock/base/error.h"

namespace penstock::app {

PeerProcess::PeerProcess(const std::vector<std::string>& command) {
  int to_peer[2], from_peer[2];
  if (::pipe(to_peer) != 0 || ::pipe(from_peer) != 0) {
    throw PeerError(cat("cannot make a pipe: ", std::strerror(errno)));
  }
  std::signal(SIGPIPE, SIG_IGN);  // a peer that has gone shows as an error of write
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(to_peer[0], STDIN_FILENO);
    ::dup2(from_peer[1], STDOUT_FILENO);
    for (const int end : {to_peer[0], to_peer[1], from_peer[0], from_peer[1]}) {
      ::close(end);
    }
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(to_peer[0]);
  ::close(from_peer[1]);
  to_ = to_peer[1];
  from_ = from_peer[0];
  if (pid_ < 0) {
    throw PeerError(cat("cannot start ", command[0], ": ", std::strerror(errno)));
  }
}

PeerProcess::~PeerProcess() {
  ::close(to_);
  ::close(from_);
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    bool has_ended = false;
    for (int tenths = 0; tenths < 50 && !has_ended; ++tenths) {
      has_ended = ::waitpid(pid_, nullptr, WNOHANG) != 0;
      if (!has_ended) {
        ::usleep(100'000);
      }
    }
    if (!has_ended) {  // deep in a library that does not listen
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
}

nlohmann::json PeerProcess::ask(const std::string& line) {
  const std::string sent = line + "\n";
  if (::write(to_, sent.data(), sent.size()) != static_cast<ssize_t>(sent.size())) {
    throw PeerError("the PyTorch peer has ended; its own words are above");
  }
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    char part[4096];
    const ssize_t got = ::read(from_, part, sizeof(part));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      throw PeerError("the PyTorch peer has ended; its own words are above");
    }
    buffer_.append(part, static_cast<size_t>(got));
  }
  const std::string answer = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  const nlohmann::json json = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw PeerError(cat("the PyTorch peer answers: ", answer));
  }
  if (json.contains("error")) {
    throw PeerError(
        cat("the PyTorch peer: ",
            json["error"].is_string() ? json["error"].get<std::string>() : json["error"].dump()));
  }
  return json;
}

}  // namespace penstock::app
