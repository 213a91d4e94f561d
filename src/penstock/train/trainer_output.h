// What a run leaves behind: checkpoints, and some text that the model has written.
#pragma once

#include <filesystem>
#include <string>

namespace penstock::train {

struct TrainerParts;

// All ranks call it. ConfigError where another run has taken the folder.
void require_folder(const TrainerParts& parts);

// All ranks call it; rank 0 has the checkpoint's folder. Throws Error (exit code 1) when weights
// are not finite, or replicas differ where the recipe has them checked; FileError, on all ranks, when the
// disk fails.
std::filesystem::path save_checkpoint(const TrainerParts& parts);

// The last one of a run, which it cannot live without: where the disk fails it is tried again for
// run.save_wait seconds. The FileError then says what the run can go on from.
std::filesystem::path save_at_the_end(const TrainerParts& parts);

// As the recipe asks for. Empty, with a warning that says why, where this run cannot write any.
std::string write_sample(TrainerParts& parts);

}  // namespace penstock::train
