// Random pipelines, their replicas and all that these hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"
#include "penstock/plan/slots.h"

#include "plan/random_chains.h"
#include "plan/random_holdings.h"
#include "plan/random_sharding.h"

namespace penstock::test {

struct RandomPipeline {
  schedule::Kind kind;
  plan::CostTable table;
  plan::Pipeline pipeline;
  plan::Sharding sharding;
  plan::CostTable planned_table;  // with what sharding adds
  plan::SlotsAnswer answer;       // planned for that table, under limits that make it recompute
  program::Program turns;
  program::Program sharded;
  plan::Holdings holdings;
  program::Program program;  // with all that its ranks hold

  const plan::LinkCost& link() const { return pipeline.link; }
  std::string text() const {
    return cat(kind_name(kind),
               " of ",
               pipeline.schedule.ranks(),
               ", ",
               sharding.replicas,
               " replicas, shard ",
               shard_name(sharding.shard));
  }
};

inline std::vector<int32_t> random_cuts(Dice& dice, int32_t layers, int32_t stages) {
  std::vector<int32_t> cuts{0};
  for (int32_t stage = 1; stage < stages; ++stage) {
    cuts.push_back(static_cast<int32_t>(dice.between(cuts.back() + 1, layers - (stages - stage))));
  }
  cuts.push_back(layers);
  return cuts;
}

inline plan::SlotsAnswer random_slots(Dice& dice, const RandomPipeline& one) {
  const schedule::Schedule turns = schedule::without_updates(one.pipeline.schedule);
  const auto solve = [&](plan::SlotMode mode, const std::vector<int64_t>& limits) {
    return plan::choose_slots({.table = one.planned_table,
                               .schedule = turns,
                               .cuts = one.pipeline.cuts,
                               .limit_bytes = limits,
                               .mode = mode});
  };
  plan::SlotsAnswer kept = solve(plan::SlotMode::KeepAll, {});
  if (!dice.chance(70)) {
    return kept;
  }
  const bool is_asynchronous = one.pipeline.schedule.updates > 1;
  const plan::SlotMode mode = is_asynchronous ? plan::SlotMode::Uniform : plan::SlotMode::Apart;
  const plan::SlotsAnswer least = solve(mode, std::vector<int64_t>(kept.peak_bytes.size(), 0));
  std::vector<int64_t> limits;
  for (size_t rank = 0; rank < least.least_bytes.size(); ++rank) {
    limits.push_back(dice.between(least.least_bytes[rank],
                                  std::max(least.least_bytes[rank], kept.peak_bytes[rank])));
  }
  return solve(mode, limits);
}

inline RandomPipeline random_pipeline_of(Dice& dice,
                                         schedule::Kind kind,
                                         const schedule::Schedule& schedule,
                                         int32_t most_replicas) {
  const int32_t stages = schedule.stages();
  const auto layers = static_cast<int32_t>(dice.between(stages, std::max(stages, 8)));
  RandomPipeline one{.kind = kind,
                     .table = dice.chance(50)
                                  ? small_chain(dice, layers)
                                  : rich_chain(dice, layers, {.most_size = 6, .most_modes = 2})};
  one.pipeline = {.schedule = schedule,
                  .cuts = random_cuts(dice, layers, stages),
                  .link = {.latency_s = 0.5, .bytes_per_s = dice.chance(50) ? 0.0 : 16.0}};
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    one.pipeline.weight_bytes.push_back(dice.between(0, 20));
  }
  one.sharding = random_sharding(dice, layers, most_replicas);
  share_between_ranks(one.sharding.units, rank_of_layers(one.pipeline.schedule, one.pipeline.cuts));
  const std::vector<int32_t> rank_of =
      dice.chance(50) ? rank_of_layers(schedule, one.pipeline.cuts) : std::vector<int32_t>{};
  one.planned_table = plan::with_sharding(one.table, one.sharding, rank_of);
  one.answer = random_slots(dice, one);
  one.pipeline.operations = one.answer.operations;
  one.turns = plan::write_turns(one.table, one.pipeline);
  one.sharded = one.sharding.replicas == 1 ? one.turns : plan::shard(one.turns, one.sharding);
  one.holdings = random_holdings(dice, one.sharded, one.sharding.program_units());
  one.program = plan::finish_program(one.sharded, one.holdings, one.link(), 0);
  return one;
}

inline RandomPipeline random_synchronous(Dice& dice) {
  constexpr schedule::Kind kinds[] = {schedule::Kind::GPipe,
                                      schedule::Kind::OneFOneB,
                                      schedule::Kind::Interleaved,
                                      schedule::Kind::ZeroBubbleH1,
                                      schedule::Kind::ZeroBubbleH2,
                                      schedule::Kind::ZeroBubbleV};
  const schedule::Kind kind = kinds[dice.between(0, 5)];
  const auto ranks = static_cast<int32_t>(dice.between(1, 3));
  const auto micro_batches = static_cast<int32_t>(dice.between(1, 5));
  return random_pipeline_of(dice, kind, make_schedule(kind, ranks, micro_batches, 2), 4);
}

inline RandomPipeline random_asynchronous(Dice& dice) {
  constexpr schedule::Kind kinds[] = {
      schedule::Kind::PipeDream, schedule::Kind::PipeDream2BW, schedule::Kind::PipeMare};
  const schedule::Kind kind = kinds[dice.between(0, 2)];
  const auto ranks = static_cast<int32_t>(dice.between(1, 4));
  const bool needs_one_each = kind == schedule::Kind::PipeDream2BW;
  const auto micro_batches = static_cast<int32_t>(dice.between(needs_one_each ? ranks : 1, 5));
  const auto updates = static_cast<int32_t>(dice.between(1, 4));
  return random_pipeline_of(
      dice,
      kind,
      make_schedule(kind, {.ranks = ranks, .micro_batches = micro_batches, .updates = updates}),
      1);
}

// Of any kind.
inline RandomPipeline random_pipeline(Dice& dice) {
  return dice.chance(25) ? random_asynchronous(dice) : random_synchronous(dice);
}

}  // namespace penstock::test
