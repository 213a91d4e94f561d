#include "penstock/plan/pipeline.h"

#include "penstock/base/error.h"

namespace penstock::plan {

std::vector<std::vector<StageOperations>> keep_everything(const CostTable& table,
                                                          const std::vector<int32_t>& cuts,
                                                          int32_t micro_batches) {
  std::vector<std::vector<StageOperations>> all;
  for (size_t stage = 0; stage + 1 < cuts.size(); ++stage) {
    StageOperations one;
    if (cuts[stage + 1] == static_cast<int32_t>(table.layers.size())) {
      one.backward.push_back({OperationKind::Loss, cuts[stage + 1]});
    }
    for (int32_t layer = cuts[stage]; layer < cuts[stage + 1]; ++layer) {
      one.forward.push_back({OperationKind::ForwardAll, layer});
    }
    for (int32_t layer = cuts[stage + 1] - 1; layer >= cuts[stage]; --layer) {
      one.backward.push_back({OperationKind::Backward, layer});
    }
    all.emplace_back(static_cast<size_t>(micro_batches), one);
  }
  return all;
}

namespace {

struct StateBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
};

// Of each rank.
std::vector<StateBytes> state_bytes(const CostTable& table, const Pipeline& pipeline) {
  std::vector<StateBytes> bytes(pipeline.schedule.turns.size());
  const auto add = [](StateBytes& sum, const auto& cost) {
    sum.parameters += cost.parameter_bytes;
    sum.gradients += cost.gradient_bytes;
    sum.optimizer += cost.optimizer_bytes;
  };
  for (size_t stage = 0; stage < pipeline.schedule.rank_of.size(); ++stage) {
    StateBytes& sum = bytes[static_cast<size_t>(pipeline.schedule.rank_of[stage])];
    for (int32_t layer = pipeline.cuts[stage]; layer < pipeline.cuts[stage + 1]; ++layer) {
      add(sum, table.layers[static_cast<size_t>(layer)]);
    }
    if (stage + 1 == pipeline.schedule.rank_of.size()) {
      add(sum, table.loss);
    }
  }
  return bytes;
}

}  // namespace

double parameter_share(const CostTable& table, const Pipeline& pipeline, int32_t rank) {
  const std::vector<StateBytes> bytes = state_bytes(table, pipeline);
  int64_t all = 0;
  for (const StateBytes& one : bytes) {
    all += one.parameters;
  }
  return all > 0 ? static_cast<double>(bytes[static_cast<size_t>(rank)].parameters) /
                       static_cast<double>(all)
                 : 1.0 / static_cast<double>(bytes.size());
}

std::vector<int64_t> weight_bytes_by_rank(const CostTable& table, const Pipeline& pipeline) {
  std::vector<int64_t> all;
  for (const StateBytes& sum : state_bytes(table, pipeline)) {
    all.push_back(sum.parameters);
  }
  return all;
}

Holdings holdings_by_rank(const CostTable& table, const Pipeline& pipeline) {
  Holdings holdings;
  for (const StateBytes& sum : state_bytes(table, pipeline)) {
    std::vector<program::Held> held;
    for (const auto& [name, bytes] : {std::pair{"weights", sum.parameters},
                                      std::pair{"gradients", sum.gradients},
                                      std::pair{"optimizer state", sum.optimizer}}) {
      if (bytes > 0) {
        held.push_back({name, bytes});
      }
    }
    holdings.ranks.push_back(fixed_holdings(held));
  }
  return holdings;
}

}  // namespace penstock::plan
