// What all ranks do at once, and end alike.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "penstock/comm/group.h"

namespace penstock::checkpoint {

// All ranks call it. Where `work` throws a ConfigError, a FileError or a CheckpointError on one of them,
// all throw it; of several, that of the lowest rank. Other errors go their own way, and end the group.
void run_together(comm::Group& group, const comm::What& what, const std::function<void()>& work);

// The text that `root` gives, on all ranks.
std::string share_text(comm::Group& group, int32_t root, std::string text, const comm::What& what);

}  // namespace penstock::checkpoint
