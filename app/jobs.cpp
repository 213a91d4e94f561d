#include <cstdio>
#include <filesystem>
#include <memory>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/cluster/job_list.h"

#include "commands.h"
#include "other_program.h"
#include "slurm.h"

namespace penstock::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRunsFolder = "runs";

struct JobsArguments {
  std::vector<std::string> runs;
  bool as_json = false;
};

std::vector<fs::path> given_runs(const std::vector<std::string>& names) {
  std::vector<fs::path> runs;
  for (const std::string& name : names) {
    if (!fs::is_directory(name)) {
      throw ConfigError(cat("there is no folder ", name));
    }
    runs.push_back(fs::path(name).lexically_normal());
  }
  return runs;
}

// Of several, those that were asked for.
std::vector<cluster::QueuedJob> jobs_of(const std::vector<cluster::QueuedJob>& jobs,
                                        const std::vector<fs::path>& runs) {
  std::vector<cluster::QueuedJob> chosen;
  for (const fs::path& run : runs) {
    if (const cluster::QueuedJob* const job =
            cluster::find_job(jobs, cluster::folder_of_run(run))) {
      chosen.push_back(*job);
    }
  }
  return chosen;
}

int list_jobs(const JobsArguments& arguments) {
  std::vector<cluster::QueuedJob> jobs;
  if (has_program("squeue")) {
    try {
      jobs = queued_jobs();
    } catch (const Error& error) {  // the folders can be listed all the same
      log_warning(error.what());
    }
  }
  const bool is_given = !arguments.runs.empty();
  const std::vector<fs::path> runs =
      is_given ? given_runs(arguments.runs) : cluster::list_runs(kRunsFolder);
  const std::vector<cluster::JobRow> rows =
      cluster::join_jobs(is_given ? jobs_of(jobs, runs) : jobs, runs);
  if (arguments.as_json) {
    std::printf("%s\n", cluster::jobs_json_text(rows).c_str());
  } else if (rows.empty()) {
    log_info("no jobs, and no runs below ", kRunsFolder, "/; name the folders of others");
  } else {
    std::fputs(cluster::jobs_text(rows).c_str(), stdout);
  }
  return 0;
}

}  // namespace

void add_jobs_command(Command& app) {
  Command command = app.add_command(
      "jobs", "list runs: those in Slurm's queue, and those below runs/ or in the folders given");
  const auto arguments = std::make_shared<JobsArguments>();
  command.add_list("RUN", arguments->runs, "folders of runs (run.out)");
  command.add_flag("--json", arguments->as_json, "write the list to standard output as JSON");
  command.runs([arguments] { return list_jobs(*arguments); });
}

}  // namespace penstock::app
