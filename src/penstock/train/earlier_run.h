// What to do with an earlier run's files where a new one starts.
#pragma once

#include <filesystem>

namespace penstock::train {

// Moves the checkpoints and metrics of an earlier run in `folder` into folder/earlier-001 (or the
// next free number) and says so. Nothing is lost, and the new run's `latest` is its own.
void move_earlier_run_aside(const std::filesystem::path& folder);

}  // namespace penstock::train
