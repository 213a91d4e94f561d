// What a run leaves behind: checkpoints, and some text that the model has written.
#pragma once

#include <filesystem>
#include <string>

namespace penstock::train {

struct TrainerParts;

// All ranks call it; rank 0 has the checkpoint's folder. Throws Error (exit code 1) when weights
// are not finite, or replicas differ where the recipe has them checked; FileError when the disk
// fails.
std::filesystem::path save_checkpoint(const TrainerParts& parts);

// As the recipe asks for. Empty, with a warning that says why, where this run cannot write any.
std::string write_sample(TrainerParts& parts);

}  // namespace penstock::train
