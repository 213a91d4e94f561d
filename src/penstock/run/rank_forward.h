// Forward alone, through the stages of all ranks: for validation.
#pragma once

#include "penstock/comm/group.h"
#include "penstock/run/plain_step.h"
#include "penstock/run/stages.h"

namespace penstock::run {

// As evaluate() of plain_step.h, called by all ranks of a pipeline with the same samples; the same
// bits. The rank with the loss gets the answer, the others zeros.
LossSum evaluate_stages(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const Stages& stages,
                        comm::Group& group,
                        const at::Tensor& inputs,
                        const at::Tensor& targets,
                        Replicas* replicas = nullptr);

}  // namespace penstock::run
