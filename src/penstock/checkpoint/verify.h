// Whether the files of a checkpoint are what its manifest says.
#pragma once

#include <filesystem>

#include "penstock/checkpoint/manifest.h"

namespace penstock::comm {
class Group;
}

namespace penstock::checkpoint {

// Throws CheckpointError unless all files are there with the size and the checksum of the manifest.
// All ranks call it, and share the reading; all end alike.
void verify_files(const std::filesystem::path& folder,
                  const Manifest& manifest,
                  comm::Group& group);

// The same by a rank alone.
void verify_files(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace penstock::checkpoint
