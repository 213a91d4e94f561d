// All decisions about a training step, as one plain value. The planner fills in what the user left
// open; plan_file.h writes and reads it; lower_plan.h turns it into a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/comm/mesh.h"
#include "penstock/config/recipe.h"
#include "penstock/plan/one_rank.h"
#include "penstock/plan/pipeline.h"
#include "penstock/program/program.h"
#include "penstock/schedule/schedule.h"

namespace penstock::plan {

struct Plan {
  // The keys of [plan], with nothing left open: schedule, cuts, shard and recompute are those that
  // were chosen. A recipe's [plan] is the same table with holes.
  config::PlanOptions options;
  // What every micro-batch keeps and recomputes, by stage and micro-batch of one update.
  std::vector<std::vector<StageOperations>> operations;

  comm::Mesh mesh() const;
  program::Shard shard() const;
  schedule::Kind kind() const;
  // Of so many updates; more than one for asynchronous schedules alone.
  schedule::Schedule schedule(int32_t updates) const;
  // Where stages begin, and the end of the last.
  std::vector<int32_t> cuts(int32_t layers) const;

  // Of one rank, which does the same with every micro-batch.
  Operations one_rank_operations() const;

  bool operator==(const Plan&) const = default;
};

// The ranks of [plan].
comm::Mesh mesh_of(const config::PlanOptions& options);
// What its replicas divide; one replica divides nothing. "auto" is none of them yet.
program::Shard shard_of(const config::PlanOptions& options);
// As plan.cuts has them: "6,12,18".
std::string cuts_text(const std::vector<int32_t>& cuts);

}  // namespace penstock::plan
