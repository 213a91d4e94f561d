// Forward alone, through the stages of all ranks: for validation.
#pragma once

#include <vector>

#include "penstock/comm/group.h"
#include "penstock/run/plain_step.h"

namespace penstock::run {

// Which rank has which layers, in the order of the chain.
struct Stages {
  std::vector<int32_t> rank_of;
  std::vector<int32_t>
      cuts;  // stage s has layers cuts[s] .. cuts[s + 1] - 1, the last one the loss
};

// As evaluate() of plain_step.h, called by all ranks with the same samples; the same bits. The rank
// with the loss gets the answer, the others zeros.
LossSum evaluate_stages(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const Stages& stages,
                        comm::Group& group,
                        const at::Tensor& inputs,
                        const at::Tensor& targets);

}  // namespace penstock::run
