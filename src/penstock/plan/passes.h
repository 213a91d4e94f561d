// From a plan's decisions to a program: the passes, in order, in one list. Each takes a program and
// returns one; the last leaves it ready for verify, simulate and the executor.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/plan/cost_table.h"
#include "penstock/plan/exchanges.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"
#include "penstock/plan/spent.h"
#include "penstock/program/program.h"

namespace penstock::plan {

struct PassInput {
  const CostTable& costs;
  const Pipeline& pipeline;
  const Holdings& holdings;            // of every rank
  const Sharding* sharding = nullptr;  // nothing: no replicas
  UpdateLinks links = {};
  int64_t limit_bytes = 0;  // of every rank; 0: none
  // What replicas exchange in the update, and what each rank sends for it; nothing: gradients alone.
  UpdateForm form = {};
  std::vector<ExchangeBytes> exchanges = {};
};

struct Pass {
  std::string_view name;
  program::Program (*run)(program::Program, const PassInput&);
};

// turns: what ranks compute, send and free. shard: replicas, with their gathers and reduces. hold:
// weights, gradients and state become operands. update: squares, norm, decision and step. finish:
// values in the order of their births, and the limit. exchanges: what an optimizer's replicas
// exchange instead of gradients, or beside them.
extern const std::array<Pass, 6> kPasses;

program::Program run_passes(const PassInput& input, Spent* spent = nullptr);

}  // namespace penstock::plan
