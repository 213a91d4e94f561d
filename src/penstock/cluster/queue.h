// What Slurm's queue says of jobs of ours, from squeue's text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cluster {

struct QueuedJob {
  std::string id;
  std::string state;                    // "PENDING", "RUNNING"
  std::string reason;                   // why it does not run; "None" where it does
  std::optional<int64_t> left_seconds;  // nothing: no limit
  std::string run_folder;
};

// squeue with this for --format gives lines for read_queue.
inline constexpr const char* kQueueFormat = "%i|%T|%L|%r|%k";

// Jobs with a comment of ours (kCommentPrefix); those of others are left out.
std::vector<QueuedJob> read_queue(std::string_view text);

// "1-02:03:04", "02:03:04", "03:04" in seconds; nothing for "UNLIMITED" and the like.
std::optional<int64_t> parse_slurm_time(std::string_view text);

// The job of that run; nothing where there is none.
const QueuedJob* find_job(const std::vector<QueuedJob>& jobs, const std::string& run_folder);

}  // namespace penstock::cluster
