// What to do with an earlier run's files where a new one starts. Nothing is deleted: they move into
// earlier-001 (or the next free number) within the folder.
#pragma once

#include <cstdint>
#include <filesystem>

namespace penstock::train {

// All of an earlier run, so that the new run's checkpoints and `latest` are its own.
void move_earlier_run_aside(const std::filesystem::path& folder);

// What comes after `step`, when the run goes back to it: its checkpoints, and a copy of the metrics, which
// in place end at that step.
void move_later_steps_aside(const std::filesystem::path& folder, int64_t step);

}  // namespace penstock::train
