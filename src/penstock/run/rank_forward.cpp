#include "penstock/run/rank_forward.h"

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/comm/channels.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/run/layer_weights.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

LossSum evaluate_stages(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const Stages& stages,
                        comm::Group& group,
                        const at::Tensor& inputs,
                        const at::Tensor& targets,
                        Replicas* replicas) {
  LayerWeights weights(parameters, replicas);
  const std::vector<model::TensorShape> shapes =
      chain.shapes_for({inputs.sizes().vec(), inputs.scalar_type()}, parameters.compute_type());
  const c10::Device where = parameters.device().where;
  const std::unique_ptr<Transfers> transfers = make_transfers(group, parameters.device());
  LossSum result;
  model::Tensors activation;
  for (size_t stage = 0; stage < stages.rank_of.size(); ++stage) {
    if (stages.rank_of[stage] != group.rank()) {
      continue;
    }
    const int32_t begin = stages.cuts[stage];
    const int32_t end = stages.cuts[stage + 1];
    const comm::What what = [&] {
      return cat("validation, what enters ", chain.layer(begin).name());
    };
    if (stage == 0) {
      activation = {inputs.to(where)};
    } else if (stages.rank_of[stage - 1] != group.rank()) {
      const model::TensorShape& shape = shapes[static_cast<size_t>(begin)];
      activation = {at::empty(shape.sizes, at::TensorOptions(where).dtype(shape.type))};
      transfers->receive(
          stages.rank_of[stage - 1], comm::activation_channel(begin), activation[0], what);
    }
    for (int32_t i = begin; i < end; ++i) {
      const model::Pass pass{.layer = i, .is_training = false};
      activation = chain.layer(i).forward(weights.of(i), activation, pass, /*saved=*/nullptr);
    }
    if (stage + 1 == stages.rank_of.size()) {
      result = {chain.loss().evaluate(weights.of(chain.size()), activation[0], targets.to(where)),
                chain.loss().count(targets)};
      continue;
    }
    if (stages.rank_of[stage + 1] == group.rank()) {
      continue;  // the next stage goes on with it
    }
    const at::Tensor sent = activation[0].contiguous();
    const std::unique_ptr<Sent> on_its_way =
        transfers->send(stages.rank_of[stage + 1], comm::activation_channel(end), sent);
    transfers->wait(*on_its_way,
                    [&] { return cat("validation, what enters ", chain.layer(end).name()); });
  }
  return result;
}

}  // namespace penstock::run
