// The folder of a run and the checkpoints in it:
//
//   step-00000100/      one checkpoint: whole when it has a manifest.json
//   step-00000100.old/  the one it is replacing, which stands in for it while it is missing
//   latest              link to the checkpoint written last
//   .tmp-*              on its way in or out
//   run.lock            who writes here (run_lock.h)
//   status.json         how the run is (report/run_status.h)
//
// Failures of the file system are FileErrors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::checkpoint {

inline constexpr const char* kLatestName = "latest";

std::string step_folder_name(int64_t step);           // 100 -> "step-00000100"
std::string replaced_step_folder_name(int64_t step);  // 100 -> "step-00000100.old"

bool is_whole_checkpoint(const std::filesystem::path& folder);

// Steps with a whole checkpoint, ascending. None when the folder does not exist.
std::vector<int64_t> list_steps(const std::filesystem::path& run_folder);

// The folders of a step that are there: its own, and the one that it was replacing.
std::vector<std::filesystem::path> folders_of_step(const std::filesystem::path& run_folder,
                                                   int64_t step);

// The checkpoint that `path` stands for: a checkpoint's own folder, or a run's folder, whose
// `latest` is followed or, where that leads nowhere, whose newest step is taken. Throws
// CheckpointError when there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// The step of a run's checkpoint that resolve_checkpoint gives; nothing where there is none, or its name has no step
// (a copy that followed links).
std::optional<int64_t> find_latest_step(const std::filesystem::path& run_folder);

// Makes `latest` a link to `checkpoint`, a folder of the run's, in one rename. Where `latest` is a
// folder itself (a copy that followed links), that folder becomes latest-copy.
void point_latest(const std::filesystem::path& checkpoint);

// Keeps the newest `keep` steps (all when keep <= 0), and the one `latest` points to whatever its
// step.
void remove_old_checkpoints(const std::filesystem::path& run_folder, int64_t keep);

// Clears away what processes of this host that are gone left behind. For the run's one writer, before its first
// checkpoint: a temporary with this process's own id is taken to be of an earlier process, since
// ids come back when a container restarts.
void remove_leftovers(const std::filesystem::path& run_folder);

}  // namespace penstock::checkpoint
