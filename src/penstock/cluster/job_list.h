// The list of `penstock jobs`: Slurm's queue joined with what stands in the folders of runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "penstock/cluster/queue.h"

namespace penstock::cluster {

// How far a run is, as its folder says: status.json and metrics.jsonl. What is not there, cannot be read, or is no
// plain file is nothing.
struct RunProgress {
  std::string state;  // one of report/run_status.h; "": none of them
  std::optional<int64_t> step;
  std::optional<double> loss;
  std::optional<int64_t> age_seconds;  // since the last step was recorded
};

struct JobRow {
  std::filesystem::path run;
  std::optional<QueuedJob> job;
  RunProgress progress;
};

RunProgress read_progress(const std::filesystem::path& run);

// Whether the folder is of a run that has begun, or of which there has been a job.
bool is_run(const std::filesystem::path& folder);

// Runs directly below `folder`, by name.
std::vector<std::filesystem::path> list_runs(const std::filesystem::path& folder);

// A row for each job and for each of `runs` that no job is of.
std::vector<JobRow> join_jobs(const std::vector<QueuedJob>& jobs,
                              const std::vector<std::filesystem::path>& runs);

std::string jobs_text(const std::vector<JobRow>& rows);
nlohmann::ordered_json jobs_json(const std::vector<JobRow>& rows);
// On one line. Names of folders may hold any bytes: those that are no UTF-8 are replaced.
std::string jobs_json_text(const std::vector<JobRow>& rows);

}  // namespace penstock::cluster
