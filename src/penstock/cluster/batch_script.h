// The batch script that takes a recipe through a Slurm cluster: a job that saves before its time is over, and
// queues itself again until the run has finished. A pure function of what is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cluster {

struct BatchJob {
  std::string program;                // penstock
  std::string recipe;                 // as `folder` sees it
  std::vector<std::string> settings;  // key=value, for --set
  std::string folder;                 // where the job works; absolute
  std::string run_folder;             // run.out; absolute
  std::string name;
  std::string partition, account;  // empty: the cluster's own
  std::string mpi = "pmix";        // how srun starts ranks that are several
  int64_t nodes = 1;
  int64_t tasks = 1;  // of each node
  int64_t gpus = 0;   // of each node
  int64_t cpus = 0;   // of each task; 0: the cluster's own
  double hours = 1;
  int64_t save_seconds = 300;  // before the end, in which the run saves

  int64_t ranks() const { return nodes * tasks; }
};

// What a job gives its run away by in Slurm's queue: "penstock:/home/me/runs/book".
inline constexpr const char* kCommentPrefix = "penstock:";

// Where the script stands, in the folder of the run.
inline constexpr const char* kScriptName = "job.sbatch";

// Throws ConfigError where a name has what Slurm would read as something else.
std::string batch_script(const BatchJob& job);

// "02:30:00", in whole seconds but at least a minute, which is Slurm's shortest.
std::string slurm_time(double hours);

}  // namespace penstock::cluster
