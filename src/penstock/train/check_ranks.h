// Whether the ranks of a plan change the numbers: trains them as threads, next to one device that
// keeps everything and adds up gradients in their order, and compares every activation and gradient
// that a rank makes or receives, the losses, the norm, and every parameter's gradient and weight.
#pragma once

#include <functional>

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/program/program.h"
#include "penstock/run/stages.h"
#include "penstock/train/check.h"

namespace penstock::train {

using MakeChain = std::function<model::Chain(const device::Device& device)>;

// Every rank has a chain of its own. `planned` is the program of the ranks that the recipe has, pipelines that are drained for each
// update and their replicas, cut into `stages`; `kept` is that of one rank with the micro-batches of
// one replica, which keeps everything. Each rank is held to the limit of its program, but on a GPU.
// The first difference is in what one device makes first.
//
// Where one device cannot add in the ranks' order, the report says why. Its sums of gradients are
// then compared within a tolerance, and one device goes on with those of the ranks: all else is
// compared to the bit.
CheckReport check_ranks(const config::Recipe& recipe,
                        const MakeChain& make_chain,
                        const program::Program& planned,
                        const run::Stages& stages,
                        const program::Program& kept,
                        const CheckOptions& options);

}  // namespace penstock::train
