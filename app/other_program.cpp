#include "other_program.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <spawn.h>

#include "penstock/base/error.h"

extern char** environ;

namespace penstock::app {

namespace {

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) {
      throw FileError(cat("cannot make a pipe: ", std::strerror(errno)));
    }
  }
  ~Pipe() {
    ::close(ends_[0]);
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void close_writer() {
    if (ends_[1] >= 0) {
      ::close(ends_[1]);
      ends_[1] = -1;
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

// Both at once: a program that fills one pipe waits for its reader.
void read_both(int out_pipe, std::string& out, int err_pipe, std::string& err) {
  pollfd pipes[] = {{out_pipe, POLLIN, 0}, {err_pipe, POLLIN, 0}};
  std::string* const texts[] = {&out, &err};
  while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
    if (::poll(pipes, 2, -1) < 0) {
      if (errno == EINTR) {
        continue;
      }
      return;
    }
    for (int i = 0; i < 2; ++i) {
      if (pipes[i].revents == 0) {
        continue;
      }
      char part[4096];
      const ssize_t got = ::read(pipes[i].fd, part, sizeof part);
      if (got > 0) {
        texts[i]->append(part, static_cast<size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        pipes[i].fd = -1;  // poll passes over it
      }
    }
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

bool has_program(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

std::string ProgramOutput::complaint() const {
  std::istringstream lines(err);
  std::string line, first;
  while (std::getline(lines, line)) {
    if (line.find("error:") != std::string::npos) {
      return line;
    }
    if (first.empty()) {
      first = line;
    }
  }
  return first.empty() ? cat("exit code ", code) : first;
}

ProgramOutput run_program(const std::vector<std::string>& command) {
  Pipe out, err;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.writer(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.writer(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw FileError(cat("cannot start ", command[0], ": ", std::strerror(error)));
  }
  out.close_writer();
  err.close_writer();
  ProgramOutput output;
  read_both(out.reader(), output.out, err.reader(), output.err);
  output.code = wait_for(pid);
  return output;
}

}  // namespace penstock::app
