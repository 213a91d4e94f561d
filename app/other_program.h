// A program that is started, read to its end and waited for, without a shell: sbatch, squeue.
#pragma once

#include <string>
#include <vector>

namespace penstock::app {

// Whether a shell would find it on PATH.
bool has_program(const std::string& name);

struct ProgramOutput {
  int code = 0;  // 128 + the signal where one ended it
  std::string out;
  std::string err;

  // The line that says what is wrong: the first with "error:", else the first.
  std::string complaint() const;
};

// Throws FileError where it cannot be started.
ProgramOutput run_program(const std::vector<std::string>& command);

}  // namespace penstock::app
