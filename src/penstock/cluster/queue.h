// What Slurm's queue says of jobs of ours, from squeue's text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cluster {

struct QueuedJob {
  std::string id;
  std::string state;                    // "PENDING", "RUNNING"
  std::string reason;                   // why it does not run; "None" where it does
  std::optional<int64_t> left_seconds;  // nothing: unknown, or no limit
  std::string run_folder;
  bool is_unlimited = false;  // in time
};

// squeue with this for --format gives lines for read_queue.
inline constexpr const char* kQueueFormat = "%i|%T|%L|%r|%k";

// Jobs with a comment of ours (kCommentPrefix); those of others are left out.
std::vector<QueuedJob> read_queue(std::string_view text);

// "1-02:03:04", "02:03:04", "03:04" in seconds; nothing for "UNLIMITED" and the like.
std::optional<int64_t> parse_slurm_time(std::string_view text);

// The one name of a run's folder, by which jobs know it: absolute, links followed, no slash at its end.
std::string folder_of_run(const std::filesystem::path& run);

// The job of that run (a folder_of_run); nothing where there is none.
const QueuedJob* find_job(const std::vector<QueuedJob>& jobs, const std::string& run_folder);

}  // namespace penstock::cluster
