#include "slurm.h"

#include <sstream>
#include <unistd.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"

#include "other_program.h"

namespace penstock::app {

namespace {

// What Slurm's program says; its failures are for the user to put right, and its warnings to see.
std::string ask(const std::vector<std::string>& command) {
  const ProgramOutput output = run_program(command);
  if (output.code != 0) {
    throw ConfigError(cat(command[0], " failed: ", output.complaint()));
  }
  std::istringstream lines(output.err);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) {
      log_warning(line);
    }
  }
  return output.out;
}

}  // namespace

std::vector<cluster::QueuedJob> queued_jobs() {
  return cluster::read_queue(ask({"squeue",
                                  "--noheader",
                                  cat("--user=", ::getuid()),
                                  cat("--format=", cluster::kQueueFormat)}));
}

std::string submit_script(const std::string& file) {
  const std::string answer = ask({"sbatch", "--parsable", file});  // "12" or "12;cluster"
  return answer.substr(0, answer.find_first_of(";\n"));
}

}  // namespace penstock::app
