// The loss of the text that is held out from training.
#pragma once

#include <optional>

#include "penstock/comm/group.h"
#include "penstock/program/program.h"

namespace penstock::train {

struct RankModel;
struct TrainerParts;

// The program of a micro-batch's loss, by the ranks that the step was planned for. All ranks call
// it; rank 0 has the costs. Throws Error (exit code 1) when it does not fit.
program::Program plan_evaluation(const RankModel& model, comm::Group& group);

// All ranks call it; all get the loss, and rank 0 shows it. Nothing: no text is held out. Throws
// Error (exit code 1) when the loss is not finite.
std::optional<double> validate(TrainerParts& parts);

}  // namespace penstock::train
