// Renames and deletions in a run's folder, and the names of what is on its way in or out. Failures
// are FileErrors that name the path. For the sources of this folder.
//
// Temporaries are called .tmp-WHAT-HOST-PID: host and number tell a leftover from what a live process is
// working on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::checkpoint {

std::filesystem::path temporary_path(const std::filesystem::path& run_folder,
                                     std::string_view what);

struct TemporaryOwner {
  std::string host;
  int process = 0;
};

// Who made the temporary `name`; nothing when it is not called like one.
std::optional<TemporaryOwner> temporary_owner(std::string_view name);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// A file, a link (not what it points to) or a folder with all it holds; nothing happens when there
// is none.
void remove_path(const std::filesystem::path& path);

// Removes a checkpoint. It takes a temporary name first, so a half-deleted one is never taken for a
// whole one.
void discard_checkpoint(const std::filesystem::path& folder);

}  // namespace penstock::checkpoint
