// The loss of the text that is held out from training.
#pragma once

#include <optional>

namespace penstock::train {

struct TrainerParts;

// All ranks call it; all get the loss, and rank 0 shows it. Nothing: no text is held out. Throws
// Error (exit code 1) when the loss is not finite.
std::optional<double> validate(TrainerParts& parts);

}  // namespace penstock::train
