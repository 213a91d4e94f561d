// The work of a GPT-2 training step on a GPU, kind by kind, and its floor.
#pragma once

#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/report/step_floor.h"

namespace penstock::model {

// Every kind, and every group at least once; a floor of 0 is for work that no step needs by itself:
// GELU and the bias gradient of a half-block's end ride along with other kernels. The optimizer is
// AdamW. Tokens are taken to be random, and sequences as long as the context.
std::vector<report::StepWork> gpt2_work(const config::ModelOptions& model,
                                        const report::StepSize& step,
                                        const report::DeviceRates& rates = {});

}  // namespace penstock::model
