// Whether a pipeline changes the numbers: trains it, its ranks as threads, next to one device that
// keeps everything, and compares every activation and gradient that a rank makes or receives, the
// loss, the norm, and every parameter's gradient and weight.
#pragma once

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/program/program.h"
#include "penstock/run/stages.h"
#include "penstock/train/check.h"

namespace penstock::train {

// `planned` is the program of a synchronous pipeline of this chain on the CPU, with as many ranks
// as the recipe says, cut into `stages`; `kept` is that of one rank with the same micro-batches,
// which keeps everything. Each rank is held to the limit of its program. The first difference is in
// what one device makes first.
CheckReport check_pipeline(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const program::Program& planned,
                           const run::Stages& stages,
                           const program::Program& kept,
                           const CheckOptions& options);

}  // namespace penstock::train
