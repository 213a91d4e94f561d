// The pass that gives ranks what they hold, and instructions what they do with it.
#include "penstock/plan/holdings.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/program/program_text.h"
#include "penstock/program/verify.h"

#include "plan/held_operands.h"
#include "plan/random_holdings.h"
#include "plan/random_pipelines.h"
#include "plan/small_model.h"
#include "support/error_text.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::Shard;
using program::Unit;
using program::ValueId;
using program::ValueKind;
using schedule::Kind;
using test::both_replicas;
using test::Dice;
using test::held_units;
using test::operand_lines;
using test::own_unit;
using test::small_turns;
using test::table_unit;
using test::two_replicas;

using Lines = std::vector<std::string>;

Lines held_lines(const Program& turns,
                 const std::vector<Unit>& units,
                 const std::vector<RankHoldings>& ranks,
                 size_t rank = 0) {
  return operand_lines(hold(turns, {.units = units, .ranks = ranks}), rank);
}

// One rank of two replicas.
Lines replica_lines(Shard shard_kind,
                    int32_t layers,
                    int32_t micro_batches,
                    const std::vector<Unit>& units,
                    const RankHoldings& held) {
  const Program sharded =
      shard(small_turns(layers, micro_batches), two_replicas(shard_kind, units));
  const Program program = hold(sharded, both_replicas(shard_kind, units, {held}));
  EXPECT_EQ(operand_lines(program, 0), operand_lines(program, 1));
  return operand_lines(program, 0);
}

}  // namespace

TEST(Hold, FirstWorkSetsAGradientAndLaterWorkUpdatesIt) {
  EXPECT_EQ(
      held_lines(
          small_turns(2, 3), {own_unit(0), own_unit(1)}, {held_units({{.unit = 0}, {.unit = 1}})}),
      (Lines{"forward 0.0: reads m0",
             "forward 1.0: reads m1",
             "loss.0",
             "backward 1.0: reads m1, sets a1",
             "backward 0.0: reads m0, sets a0",
             "forward 0.1: reads m0",
             "forward 1.1: reads m1",
             "loss.1",
             "backward 1.1: reads m1, updates a1",
             "backward 0.1: reads m0, updates a0",
             "forward 0.2: reads m0",
             "forward 1.2: reads m1",
             "loss.2",
             "backward 1.2: reads m1, updates a1",
             "backward 0.2: reads m0, updates a0",
             "step"}));
}

TEST(Hold, LayersReadTheComputeCopyToo) {
  EXPECT_EQ(held_lines(small_turns(2, 1),
                       {own_unit(0), own_unit(1)},
                       {held_units({{.unit = 0, .has_compute = true}, {.unit = 1}})}),
            (Lines{"forward 0.0: reads c0 m0",
                   "forward 1.0: reads m1",
                   "loss.0",
                   "backward 1.0: reads m1, sets a1",
                   "backward 0.0: reads c0 m0, sets a0",
                   "step"}));
}

TEST(Hold, ABackwardThatNeedsNoWeightsReadsNone) {
  EXPECT_EQ(held_lines(small_turns(2, 1),
                       {own_unit(0, {0}), own_unit(1)},
                       {held_units({{.unit = 0, .has_compute = true}, {.unit = 1}})}),
            (Lines{"forward 0.0: reads c0 m0",
                   "forward 1.0: reads m1",
                   "loss.0",
                   "backward 1.0: reads m1, sets a1",
                   "backward 0.0: sets a0",
                   "step"}));
}

TEST(Hold, EveryLayerSetsItsPartOfAUnit) {
  // Layers 0 and 1 have weights of their own in unit 0; layer 1 and the loss also in unit 1.
  EXPECT_EQ(held_lines(small_turns(2, 2),
                       {{.name = "both", .layers = {0, 1}}, {.name = "end", .layers = {1, 2}}},
                       {held_units({{.unit = 0}, {.unit = 1}})}),
            (Lines{"forward 0.0: reads m0",
                   "forward 1.0: reads m0 m1",
                   "loss.0: reads m1, sets a1",
                   "backward 1.0: reads m0 m1, sets a0 a1",
                   "backward 0.0: reads m0, sets a0",
                   "forward 0.1: reads m0",
                   "forward 1.1: reads m0 m1",
                   "loss.1: reads m1, updates a1",
                   "backward 1.1: reads m0 m1, updates a0 a1",
                   "backward 0.1: reads m0, updates a0",
                   "step"}));
}

TEST(Hold, LayersThatShareWeightsAddToOneGradient) {
  EXPECT_EQ(held_lines(small_turns(1, 2), {table_unit({0, 1})}, {held_units({{.unit = 0}})}),
            (Lines{"forward 0.0: reads m0",
                   "loss.0: reads m0, sets a0",
                   "backward 0.0: reads m0, updates a0",
                   "forward 0.1: reads m0",
                   "loss.1: reads m0, updates a0",
                   "backward 0.1: reads m0, updates a0",
                   "step"}));
}

TEST(Hold, SharesAreAddedWhenTheLastPartIsThere) {
  EXPECT_EQ(held_lines(small_turns(2, 2),
                       {table_unit({0, 2}), own_unit(1)},
                       {held_units({{.unit = 0, .shares = {0}}, {.unit = 1}})}),
            (Lines{"forward 0.0: reads m0",
                   "forward 1.0: reads m1",
                   "loss.0: reads m0, sets a0",
                   "backward 1.0: reads m1, sets a1",
                   "backward 0.0: reads m0, sets b0.0",
                   "forward 0.1: reads m0",
                   "forward 1.1: reads m1",
                   "loss.1: reads m0, updates a0",
                   "backward 1.1: reads m1, updates a1",
                   "backward 0.1: reads m0, updates b0.0",
                   "add 0 [0]: reads b0.0, updates a0",
                   "step"}));
  // The other way round: the loss has the share, and the last part is layer 0's all the same. Three
  // layers have two.
  EXPECT_EQ(held_lines(small_turns(2, 1),
                       {table_unit({0, 1, 2})},
                       {held_units({{.unit = 0, .shares = {1, 2}}})}),
            (Lines{"forward 0.0: reads m0",
                   "forward 1.0: reads m0",
                   "loss.0: reads m0, sets b0.2",
                   "backward 1.0: reads m0, sets b0.1",
                   "backward 0.0: reads m0, sets a0",
                   "add 1 [0]: reads b0.1, updates a0",
                   "add 2 [0]: reads b0.2, updates a0",
                   "step"}));
}

TEST(Hold, SharesAreAddedBeforeReplicasReduceTheirSum) {
  for (const Shard shard_kind : {Shard::None, Shard::Optimizer}) {
    Lines lines{"forward 0.0: reads m0 m1",
                "loss.0: reads m0, sets a0",
                "backward 0.0: reads m0 m1, sets b0.0 a1",
                "add 0 [0]: reads b0.0, updates a0",
                "reduce [0] over data: updates a0",
                "reduce [1] over data: updates a1",
                "step"};
    if (shard_kind == Shard::Optimizer) {
      lines[4] = "reduce-scatter [0] over data: updates a0";
      lines[5] = "reduce-scatter [1] over data: updates a1";
      lines.push_back("gather [0] over data: updates m0");
      lines.push_back("gather [1] over data: updates m1");
    }
    EXPECT_EQ(replica_lines(shard_kind,
                            1,
                            1,
                            {table_unit({0, 1}), own_unit(0)},
                            held_units({{.unit = 0, .shares = {0}}, {.unit = 1}})),
              lines);
  }
}

TEST(Hold, WhatReplicasMovedGoesFromTheirMastersToEveryCopy) {
  EXPECT_EQ(replica_lines(Shard::Optimizer,
                          1,
                          1,
                          {own_unit(0), own_unit(1)},
                          held_units({{.unit = 0, .has_compute = true}, {.unit = 1}})),
            (Lines{"forward 0.0: reads c0",
                   "loss.0: reads m1, sets a1",
                   "reduce-scatter [1] over data: updates a1",
                   "backward 0.0: reads c0, sets a0",
                   "reduce-scatter [0] over data: updates a0",
                   "step",
                   "gather [0] over data: reads m0, updates c0",
                   "gather [1] over data: updates m1"}));
}

TEST(Hold, BucketsAreReducedIntoTheGradientOfTheLayerThatFilledThem) {
  EXPECT_EQ(replica_lines(Shard::Gradients,
                          1,
                          2,
                          {table_unit({0, 1}), own_unit(0)},
                          held_units({{.unit = 0}, {.unit = 1}})),
            (Lines{"forward 0.0: reads m0 m1",
                   "loss.0: reads m0, makes g0.0",
                   "reduce-scatter [0].0 over data: reads g0.0, sets a0",
                   "backward 0.0: reads m0 m1, makes g0.0#2 g1.0",
                   "reduce-scatter [0].0 over data: reads g0.0#2, updates a0",
                   "reduce-scatter [1].0 over data: reads g1.0, sets a1",
                   "drop: frees g0.0",
                   "forward 0.1: reads m0 m1",
                   "drop: frees g0.0#2 g1.0",
                   "loss.1: reads m0, makes g0.1",
                   "reduce-scatter [0].1 over data: reads g0.1, updates a0",
                   "backward 0.1: reads m0 m1, makes g0.1#2 g1.1",
                   "reduce-scatter [0].1 over data: reads g0.1#2, updates a0",
                   "reduce-scatter [1].1 over data: reads g1.1, updates a1",
                   "drop: frees g0.1 g0.1#2 g1.1",
                   "step",
                   "gather [0] over data: updates m0",
                   "gather [1] over data: updates m1"}));
}

TEST(Hold, SharesOfBucketsAreAddedWhenAllAreReduced) {
  EXPECT_EQ(replica_lines(Shard::Gradients,
                          1,
                          2,
                          {table_unit({0, 1})},
                          held_units({{.unit = 0, .has_compute = true, .shares = {0}}})),
            (Lines{"forward 0.0: reads c0",
                   "loss.0: reads c0, makes g0.0",
                   "reduce-scatter [0].0 over data: reads g0.0, sets a0",
                   "backward 0.0: reads c0, makes g0.0#2",
                   "reduce-scatter [0].0 over data: reads g0.0#2, sets b0.0",
                   "drop: frees g0.0",
                   "forward 0.1: reads c0",
                   "drop: frees g0.0#2",
                   "loss.1: reads c0, makes g0.1",
                   "reduce-scatter [0].1 over data: reads g0.1, updates a0",
                   "backward 0.1: reads c0, makes g0.1#2",
                   "reduce-scatter [0].1 over data: reads g0.1#2, updates b0.0",
                   "add 0 [0]: reads b0.0, updates a0",
                   "drop: frees g0.1 g0.1#2",
                   "step",
                   "gather [0] over data: reads m0, updates c0"}));
}

TEST(Hold, ShardedWeightsAreReadAsTheyWereGathered) {
  EXPECT_EQ(replica_lines(Shard::Parameters,
                          1,
                          1,
                          {table_unit({0, 1}), own_unit(0, {0})},
                          held_units({{.unit = 0}, {.unit = 1}})),
            (Lines{"gather [0].0 over data: reads m0, makes p0.0",
                   "gather [1].0 over data: reads m1, makes p1.0",
                   "forward 0.0: reads p0.0 p1.0, frees p1.0",
                   "loss.0: reads p0.0, makes g0.0",
                   "reduce-scatter [0].0 over data: reads g0.0, sets a0",
                   "backward 0.0: reads p0.0, makes g0.0#2 g1.0, frees p0.0",
                   "reduce-scatter [0].0 over data: reads g0.0#2, updates a0",
                   "reduce-scatter [1].0 over data: reads g1.0, sets a1",
                   "drop: frees g0.0 g0.0#2 g1.0",
                   "step"}));
}

TEST(Hold, InputAndWeightGradientsBothChangeAGradient) {
  const schedule::Schedule schedule = schedule::make_schedule(Kind::ZeroBubbleH1, 1, 2);
  EXPECT_EQ(held_lines(small_turns({0, 1}, schedule),
                       {table_unit({0, 1}), own_unit(0)},
                       {held_units({{.unit = 0, .shares = {0}}, {.unit = 1}})}),
            (Lines{"forward 0.0: reads m0 m1",
                   "loss.0: reads m0, sets a0",
                   "backward-input 0.0: reads m0 m1, sets b0.0 a1",
                   "backward-weight 0.0: updates b0.0 a1",
                   "forward 0.1: reads m0 m1",
                   "loss.1: reads m0, updates a0",
                   "backward-input 0.1: reads m0 m1, updates b0.0 a1",
                   "backward-weight 0.1: updates b0.0 a1",
                   "add 0 [0]: reads b0.0, updates a0",
                   "step"}));
}

TEST(Hold, TheInputGradientMakesTheBucketThatTheWeightGradientUpdates) {
  const std::vector<Unit> units{own_unit(0)};
  const schedule::Schedule schedule = schedule::make_schedule(Kind::ZeroBubbleH1, 1, 1);
  const Program sharded =
      shard(small_turns({0, 1}, schedule), two_replicas(Shard::Gradients, units));
  EXPECT_EQ(
      operand_lines(
          hold(sharded, both_replicas(Shard::Gradients, units, {held_units({{.unit = 0}})})), 1),
      (Lines{"forward 0.0: reads m0",
             "loss.0",
             "backward-input 0.0: reads m0, makes g0.0",
             "backward-weight 0.0: updates g0.0",
             "reduce-scatter [0].0 over data: reads g0.0, sets a0",
             "drop: frees g0.0",
             "step",
             "gather [0] over data: updates m0"}));
}

TEST(Hold, EveryUpdateOfAnAsynchronousPipelineBeginsItsGradientsAnew) {
  const schedule::Schedule schedule =
      schedule::make_schedule(Kind::PipeDream, {.ranks = 2, .micro_batches = 1, .updates = 3});
  const std::vector<Unit> units{own_unit(0), table_unit({1, 2})};
  const std::vector<RankHoldings> held{held_units({{.unit = 0, .has_compute = true}}),
                                       held_units({{.unit = 1, .shares = {1}}})};
  // The first rank is a micro-batch ahead: its copies are of all that layers see.
  EXPECT_EQ(held_lines(small_turns({0, 1, 2}, schedule), units, held, 0),
            (Lines{"forward 0.0: reads c0 m0",
                   "forward 0.1: reads c0 m0",
                   "backward 0.0: reads c0 m0, sets a0",
                   "stash: reads c0 m0, makes v.0",
                   "step",
                   "forward 0.2: reads c0 m0",
                   "backward 0.1: reads v.0, sets a0, frees v.0",
                   "stash: reads c0 m0, makes v.1",
                   "step",
                   "backward 0.2: reads v.1, sets a0, frees v.1",
                   "step"}));
  Lines second;
  for (const char* k : {"0", "1", "2"}) {
    second.push_back(cat("forward 1.", k, ": reads m1"));
    second.push_back(cat("loss.", k, ": reads m1, sets a1"));
    second.push_back(cat("backward 1.", k, ": reads m1, sets b1.1"));
    second.push_back("add 1 [1]: reads b1.1, updates a1");
    second.push_back("step");
  }
  EXPECT_EQ(held_lines(small_turns({0, 1, 2}, schedule), units, held, 1), second);
}

TEST(Hold, MicroBatchesOfOneUpdateAddUp) {
  const schedule::Schedule schedule =
      schedule::make_schedule(Kind::PipeDream, {.ranks = 1, .micro_batches = 2, .updates = 2});
  EXPECT_EQ(held_lines(small_turns({0, 1}, schedule),
                       {table_unit({0, 1})},
                       {held_units({{.unit = 0, .shares = {1}}})}),
            (Lines{"forward 0.0: reads m0",
                   "loss.0: reads m0, sets b0.1",
                   "backward 0.0: reads m0, sets a0",
                   "forward 0.1: reads m0",
                   "loss.1: reads m0, updates b0.1",
                   "backward 0.1: reads m0, updates a0",
                   "add 1 [0]: reads b0.1, updates a0",
                   "step",
                   "forward 0.2: reads m0",
                   "loss.2: reads m0, sets b0.1",
                   "backward 0.2: reads m0, sets a0",
                   "forward 0.3: reads m0",
                   "loss.3: reads m0, updates b0.1",
                   "backward 0.3: reads m0, updates a0",
                   "add 1 [0]: reads b0.1, updates a0",
                   "step"}));
}

TEST(Hold, RanksHoldWhatTheyWereGiven) {
  RankHoldings held = held_units({{.unit = 0, .has_compute = true, .shares = {1}}});
  held.values.insert(held.values.begin(), fixed_value("workspace", 7));
  held.values.push_back(test::rank_state("history", 3));
  held.values.push_back(fixed_value("pages", 1));
  for (HeldValue& one : held.values) {
    if (one.value.kind == ValueKind::State) {
      one.value.tier = program::Tier::Host;
    }
  }
  const Program program = hold(small_turns(1, 1), {.units = {table_unit({0, 1})}, .ranks = {held}});
  const RankProgram& rank = program.ranks[0];
  EXPECT_EQ(program.units, std::vector{table_unit({0, 1})});
  EXPECT_EQ(rank.labels, (std::vector<std::string>{"workspace", "history", "pages"}));
  ASSERT_EQ(rank.persistent.size(), held.values.size());
  const std::vector<std::string> names = value_names(rank);
  Lines found;
  for (const ValueId id : rank.persistent) {
    found.push_back(cat(names[static_cast<size_t>(id)], " ", rank.value(id).bytes));
  }
  EXPECT_EQ(found, (Lines{"k0 7", "m0 100", "c0 50", "a0 40", "b0.1 30", "o0 20", "e1 3", "k2 1"}));
  EXPECT_EQ(rank.persistent_bytes(), 7 + 100 + 50 + 40 + 30 + 3 + 1);
  EXPECT_EQ(rank.persistent_bytes(program::Tier::Host), 20);
  EXPECT_EQ(held.bytes(), rank.persistent_bytes());
}

TEST(Hold, SumsOfATableAreFixedValues) {
  const RankHoldings held = fixed_holdings({{"weights", 10}, {"state", 20}});
  EXPECT_EQ(held.bytes(), 30);
  const Program turns = small_turns(1, 1);
  const Program program = hold(turns, {.ranks = {held}});
  EXPECT_EQ(program::held_by_name(program.ranks[0]),
            (std::vector<program::Held>{{"weights", 10}, {"state", 20}}));
  EXPECT_EQ(operand_lines(program, 0), (Lines{"forward 0.0", "loss.0", "backward 0.0", "step"}));
}

TEST(Hold, RefusesHoldingsOfOtherRanksAndProgramsThatHoldSomething) {
  const Program turns = small_turns(1, 1);
  EXPECT_NE(
      test::error_text<InternalError>([&] { hold(turns, {}); }).find("holdings of 0 ranks for 1"),
      std::string::npos);
  EXPECT_THROW(hold(turns, {.ranks = std::vector<RankHoldings>(2)}), InternalError);
  const Holdings holdings{.ranks = {fixed_holdings({{"pages", 1}})}};
  EXPECT_THROW(hold(hold(turns, holdings), holdings), InternalError);
}

// Random pipelines with random holdings: what the pass adds is of units alone, and nothing else
// has changed.
TEST(Hold, ChangesNothingElseOfRandomPipelines) {
  Dice dice(80);
  int added = 0;
  for (int i = 0; i < 600 && !HasFailure(); ++i) {
    const test::RandomPipeline one = test::random_pipeline(dice);
    SCOPED_TRACE(cat("case ", i, ", ", one.text()));
    const Program program = hold(one.sharded, one.holdings);
    EXPECT_EQ(program.units, one.holdings.units);
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const RankProgram& before = one.sharded.ranks[rank];
      RankProgram after = program.ranks[rank];
      const auto held = static_cast<ValueId>(one.holdings.ranks[rank].values.size());
      EXPECT_EQ(after.persistent_bytes(), one.holdings.ranks[rank].bytes());
      EXPECT_EQ(program::replay_peak(after).bytes,
                program::replay_peak(before).bytes + one.holdings.ranks[rank].bytes());
      // Without what is held it is what it was.
      std::erase_if(after.instructions, [](const Instruction& each) { return each.op == Op::Add; });
      for (Instruction& each : after.instructions) {
        for (auto list : {&Instruction::reads,
                          &Instruction::makes,
                          &Instruction::sets,
                          &Instruction::updates,
                          &Instruction::frees}) {
          added +=
              static_cast<int>(std::erase_if(each.*list, [&](ValueId id) { return id < held; }));
          for (ValueId& id : each.*list) {
            id -= held;
          }
        }
      }
      for (ValueId& id : after.given) {
        id -= held;
      }
      EXPECT_EQ(after.instructions, before.instructions);
      EXPECT_EQ(after.given, before.given);
      after.values.erase(after.values.begin(), after.values.begin() + held);
      EXPECT_EQ(after.values, before.values);
    }
  }
  EXPECT_GT(added, 20'000);
}

}  // namespace penstock::plan
