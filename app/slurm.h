// Slurm's own programs, as submit and jobs call them.
#pragma once

#include <string>
#include <vector>

#include "penstock/cluster/queue.h"

namespace penstock::app {

// This user's jobs that have a run of ours. Throws ConfigError where squeue fails.
std::vector<cluster::QueuedJob> queued_jobs();

// Gives the job's number. Throws ConfigError with sbatch's own words where it refuses.
std::string submit_script(const std::string& file);

}  // namespace penstock::app
