#include "penstock/plan/shard.h"

#include <algorithm>
#include <cstdio>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/slots.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "plan/random_sharding.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::Shard;
using schedule::Kind;
using test::Dice;

constexpr Kind kSynchronous[] = {Kind::GPipe,
                                 Kind::OneFOneB,
                                 Kind::Interleaved,
                                 Kind::ZeroBubbleH1,
                                 Kind::ZeroBubbleH2,
                                 Kind::ZeroBubbleV};

struct Case {
  CostTable table;
  schedule::Schedule schedule;
  std::vector<int32_t> cuts;
  Sharding sharding;
  CostTable planned_table;  // with what sharding adds
  SlotsAnswer answer;       // planned for that table, under limits that make it compute again
  Program pipeline;
};

Case random_case(Dice& dice) {
  const int32_t ranks = static_cast<int32_t>(dice.between(1, 3));
  Case one{
      .schedule = make_schedule(
          kSynchronous[dice.between(0, 5)], ranks, static_cast<int32_t>(dice.between(1, 5)), 2)};
  const int32_t stages = one.schedule.stages();
  const int32_t layers = static_cast<int32_t>(dice.between(stages, std::max(stages, 8)));
  one.table = dice.chance(50) ? test::small_chain(dice, layers)
                              : test::rich_chain(dice, layers, {.most_size = 6, .most_ways = 2});
  one.cuts = {0};
  for (int32_t stage = 1; stage < stages; ++stage) {
    one.cuts.push_back(
        static_cast<int32_t>(dice.between(one.cuts.back() + 1, layers - (stages - stage))));
  }
  one.cuts.push_back(layers);
  one.sharding = test::random_sharding(dice, layers, ranks);
  const std::vector<int32_t> rank_of =
      dice.chance(50) ? test::rank_of_layers(one.schedule, one.cuts) : std::vector<int32_t>{};
  one.planned_table = with_sharding(one.table, one.sharding, rank_of);
  const auto solve = [&](SlotMode mode, const std::vector<int64_t>& limits) {
    return choose_slots({.table = one.planned_table,
                         .schedule = one.schedule,
                         .cuts = one.cuts,
                         .limit_bytes = limits,
                         .mode = mode});
  };
  one.answer = solve(SlotMode::KeepAll, {});
  if (dice.chance(70)) {
    const SlotsAnswer least =
        solve(SlotMode::Apart, std::vector<int64_t>(static_cast<size_t>(ranks), 0));
    std::vector<int64_t> limits;
    for (size_t rank = 0; rank < least.least_bytes.size(); ++rank) {
      limits.push_back(dice.between(
          least.least_bytes[rank], std::max(least.least_bytes[rank], one.answer.peak_bytes[rank])));
    }
    one.answer = solve(SlotMode::Apart, limits);
  }
  one.pipeline =
      lower_pipeline(one.table,
                     {one.schedule, one.cuts, one.answer.operations, {.latency_s = 0.5}},
                     std::vector<std::vector<program::Resident>>(one.schedule.turns.size()),
                     0);
  return one;
}

std::string fault(const Program& program) {
  const program::Verdict verdict = program::verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

size_t count(const RankProgram& rank, Op op) {
  return static_cast<size_t>(std::count_if(rank.instructions.begin(),
                                           rank.instructions.end(),
                                           [&](const auto& one) { return one.op == op; }));
}

}  // namespace

TEST(Shard, WritesSoundProgramsOfRandomPipelines) {
  Dice dice(71);
  int replicated = 0;
  for (int i = 0; i < 800 && !HasFailure(); ++i) {
    const Case one = random_case(dice);
    const Program program = shard(one.pipeline, one.sharding);
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(one.sharding.shard)));
    ASSERT_EQ(fault(program), "") << format_program(program);
    ASSERT_EQ(program.ranks.size(),
              one.pipeline.ranks.size() * static_cast<size_t>(one.sharding.replicas));
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      EXPECT_EQ(program.ranks[rank].residents, one.sharding.residents[rank]);
    }
    // Gathering and reducing takes time, and saves none.
    EXPECT_GE(simulate(program).seconds, simulate(one.pipeline).seconds - 1e-9);
    if (i % 10 == 0) {
      EXPECT_EQ(program::parse_program(format_program(program), "written"), program);
    }
    replicated += one.sharding.replicas > 1 ? 1 : 0;
  }
  EXPECT_GT(replicated, 500);
}

TEST(Shard, HoldsNoMoreThanWasPlannedWithWhatItAdds) {
  Dice dice(72);
  int exact = 0, cases = 0;
  for (int i = 0; i < 800 && !HasFailure(); ++i) {
    const Case one = random_case(dice);
    const Program program = shard(one.pipeline, one.sharding);
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(one.sharding.shard)));
    const program::Verdict verdict = program::verify(program);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const size_t stage = rank / static_cast<size_t>(one.sharding.replicas);
      const int64_t held = verdict.peaks[rank].bytes - program.ranks[rank].resident_bytes();
      EXPECT_LE(held, one.answer.peak_bytes[stage])
          << "rank " << rank << ", instruction " << verdict.peaks[rank].instruction << "\n"
          << format_program(program);
      exact += held == one.answer.peak_bytes[stage] ? 1 : 0;
      ++cases;
    }
  }
  std::printf("%d of %d ranks hold exactly what was planned\n", exact, cases);
  EXPECT_GT(exact, cases / 10);
}

TEST(Shard, LeavesThePipelineAsItIsForOneReplica) {
  Dice dice(73);
  Case one = random_case(dice);
  one.sharding.replicas = 1;
  one.sharding.residents.resize(one.pipeline.ranks.size());
  Program expected = one.pipeline;
  for (size_t rank = 0; rank < expected.ranks.size(); ++rank) {
    expected.ranks[rank].residents = one.sharding.residents[rank];
  }
  EXPECT_EQ(shard(one.pipeline, one.sharding), expected);
  EXPECT_EQ(format_costs(with_sharding(one.table, one.sharding)), format_costs(one.table));
}

TEST(Shard, RefusesResidentsOfOtherRanksAndProgramsThatAreReplicatedAlready) {
  Dice dice(74);
  Case one = random_case(dice);
  one.sharding.replicas = 2;
  one.sharding.residents.assign(one.pipeline.ranks.size() * 2, {});
  const Program program = shard(one.pipeline, one.sharding);
  EXPECT_THROW(shard(program, one.sharding), InternalError);
  one.sharding.residents.pop_back();
  EXPECT_THROW(shard(one.pipeline, one.sharding), InternalError);
}

namespace {

// Two layers of one rank and a loss, two micro-batches: a table shared by layer 0 and the loss, and
// weights of each layer.
struct SmallCase {
  CostTable table;
  Sharding sharding;

  explicit SmallCase(Shard shard_kind) {
    for (int i = 0; i < 2; ++i) {
      LayerCost layer{
          .name = cat("layer ", i), .input_bytes = 4, .output_bytes = 4, .forward_s = 1};
      layer.ways = {{.forward_s = 1, .backward_s = 2, .saved_bytes = 10, .needs_output = false}};
      table.layers.push_back(layer);
    }
    table.loss.seconds = 1;
    table.target_bytes = 1;
    sharding = {.replicas = 2,
                .shard = shard_kind,
                .units = {{{"layer 0", {0}}, 100, 1000, 0.5, 0.25},
                          {{"layer 1", {1}}, 200, 2000, 0.5, 0.25},
                          {{"table", {0, 2}}, 400, 4000, 0.5, 0.25}},
                .residents = {{{"rest", 1}}, {{"rest", 2}}}};
  }

  Program program(int32_t micro_batches = 2) const {
    const Operations all = keep_everything(table);
    return shard(lower(table, all, micro_batches, 0), sharding);
  }
};

// "forward 0.0", "gather table", "reduce table.1", "drop g2.0": what a rank does.
std::string list_of(const Program& program, const RankProgram& rank) {
  const std::vector<std::string> names = value_names(rank);
  std::vector<std::string> words;
  for (const Instruction& one : rank.instructions) {
    std::string word(op_name(one.op));
    if (is_collective(one.op)) {
      word += " " + program.units[static_cast<size_t>(one.layer)].name;
    } else if (one.layer >= 0) {
      word += cat(" ", one.layer);
    }
    word += one.micro_batch < 0 ? "" : cat(".", one.micro_batch);
    for (const program::ValueId id : one.op == Op::Drop ? one.frees : std::vector<int32_t>{}) {
      word += " " + names[static_cast<size_t>(id)];
    }
    words.push_back(word);
  }
  return join(words, ", ");
}

}  // namespace

TEST(Shard, ReducesWhatIsResidentAfterItsLastContribution) {
  const SmallCase one(Shard::None);
  const Program program = one.program();
  EXPECT_EQ(list_of(program, program.ranks[1]),
            "clear, forward 0.0, forward 1.0, loss.0, backward 1.0, backward 0.0, forward 0.1, "
            "forward 1.1, loss.1, backward 1.1, reduce layer 1, backward 0.1, reduce layer 0, "
            "reduce table, step");
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(program.ranks[0].instructions, program.ranks[1].instructions);
}

TEST(Shard, GathersMovedPiecesAfterTheStep) {
  const SmallCase one(Shard::Optimizer);
  const Program program = one.program();
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "clear, forward 0.0, forward 1.0, loss.0, backward 1.0, backward 0.0, forward 0.1, "
            "forward 1.1, loss.1, backward 1.1, reduce layer 1, backward 0.1, reduce layer 0, "
            "reduce table, step, gather layer 0, gather layer 1, gather table");
  EXPECT_EQ(fault(program), "");
}

TEST(WithoutReduces, LeavesReducesToTheStep) {
  for (const Shard shard_kind : {Shard::None, Shard::Optimizer}) {
    const Program program = without_reduces(SmallCase(shard_kind).program());
    EXPECT_TRUE(program.step_reduces);
    EXPECT_EQ(fault(program), "");
    for (const RankProgram& rank : program.ranks) {
      EXPECT_EQ(
          list_of(program, rank),
          cat("clear, forward 0.0, forward 1.0, loss.0, backward 1.0, backward 0.0, forward 0.1, "
              "forward 1.1, loss.1, backward 1.1, backward 0.1, step",
              shard_kind == Shard::Optimizer ? ", gather layer 0, gather layer 1, gather table"
                                             : ""));
      const Instruction& step = *std::find_if(rank.instructions.begin(),
                                              rank.instructions.end(),
                                              [](const auto& one) { return one.op == Op::Step; });
      EXPECT_TRUE(step.reads.empty());
      EXPECT_TRUE(step.frees.empty());
    }
  }
}

TEST(WithoutReduces, ChangesNothingElseOfRandomPipelines) {
  Dice dice(76);
  int cases = 0;
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    const Case one = random_case(dice);
    const Program before = shard(one.pipeline, one.sharding);
    if (before.replicas == 1 || !before.keeps_gradients()) {
      continue;
    }
    ++cases;
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(before.shard)));
    const Program after = without_reduces(before);
    ASSERT_EQ(fault(after), "") << format_program(after);
    EXPECT_EQ(program::parse_program(format_program(after), "written"), after);
    EXPECT_LE(simulate(after).seconds, simulate(before).seconds + 1e-9);
    for (size_t rank = 0; rank < after.ranks.size(); ++rank) {
      const RankProgram& had = before.ranks[rank];
      const RankProgram& has = after.ranks[rank];
      EXPECT_EQ(count(has, Op::Reduce), 0u);
      EXPECT_EQ(has.instructions.size() + count(had, Op::Reduce), had.instructions.size());
      EXPECT_EQ(has.values.size() + count(had, Op::Reduce), had.values.size());
      EXPECT_EQ(has.residents, had.residents);
      EXPECT_EQ(has.limit_bytes, had.limit_bytes);
      EXPECT_EQ(replay_peak(has).bytes, replay_peak(had).bytes);
    }
  }
  EXPECT_GT(cases, 100);
}

TEST(WithoutReduces, WantsReplicasWithWholeGradients) {
  EXPECT_THROW(without_reduces(SmallCase(Shard::Gradients).program()), InternalError);
  EXPECT_THROW(without_reduces(SmallCase(Shard::Parameters).program()), InternalError);
  const SmallCase one(Shard::None);
  EXPECT_THROW(without_reduces(lower(one.table, keep_everything(one.table), 2, 0)), InternalError);
}

TEST(Shard, DropsABucketAfterTheNextWork) {
  const SmallCase one(Shard::Gradients);
  const Program program = one.program();
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "clear, forward 0.0, forward 1.0, loss.0, reduce table.0, backward 1.0, "
            "reduce layer 1.0, drop g2.0, backward 0.0, reduce layer 0.0, reduce table.0, "
            "drop g1.0, forward 0.1, drop g0.0 g2.0#2, forward 1.1, loss.1, reduce table.1, "
            "backward 1.1, reduce layer 1.1, drop g2.1, backward 0.1, reduce layer 0.1, "
            "reduce table.1, drop g1.1 g0.1 g2.1#2, step, gather layer 0, gather layer 1, "
            "gather table");
  EXPECT_EQ(fault(program), "");
  // In the backward of layer 0: residents, the other micro-batch's input and targets (5), input,
  // saved and arriving gradient (4 + 6 + 4), the bucket of layer 1 and both of its own, and the 4
  // bytes of the input's gradient that it works with.
  EXPECT_EQ(program::verify(program).peaks[0].bytes, 1 + 5 + 14 + 4 + 2000 + 1000 + 4000);
  EXPECT_EQ(program::verify(program).peaks[1].bytes, 2 + 5 + 14 + 4 + 2000 + 1000 + 4000);
}

TEST(Shard, GathersOneUseAhead) {
  const SmallCase one(Shard::Parameters);
  const Program program = one.program(1);
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "clear, gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, "
            "gather table.0, forward 1.0, gather layer 1.0, loss.0, reduce table.0, "
            "gather layer 0.0, gather table.0, backward 1.0, reduce layer 1.0, drop g2.0, "
            "backward 0.0, reduce layer 0.0, reduce table.0, drop g1.0 g0.0 g2.0#2, step");
  EXPECT_EQ(fault(program), "");
  // In the backward of layer 0 there are its own weights, in that of layer 1 those of layer 0, too.
  const int64_t first = 1 + 14 + 4 + 2000 + 1000 + 4000 + 100 + 400;
  const int64_t second = 1 + 4 + 6 + 4 + 6 + 4 + 4 + 4000 + 2000 + 200 + 100 + 400;
  EXPECT_EQ(program::verify(program).peaks[0].bytes, std::max(first, second));
}

TEST(Shard, GathersNothingForABackwardThatNeedsNoWeights) {
  SmallCase one(Shard::Parameters);
  one.sharding.units[0].unit.forward_only = {0};
  one.sharding.units[2].unit.forward_only = {0};
  const Program program = one.program(1);
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "clear, gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, "
            "gather table.0, forward 1.0, gather layer 1.0, loss.0, reduce table.0, "
            "backward 1.0, reduce layer 1.0, drop g2.0, "
            "backward 0.0, reduce layer 0.0, reduce table.0, drop g1.0 g0.0 g2.0#2, step");
  EXPECT_EQ(fault(program), "");
  // Without what the other program gathers for it (100 + 400).
  const int64_t first = 1 + 14 + 4 + 2000 + 1000 + 4000;
  const int64_t second = 1 + 4 + 6 + 4 + 6 + 4 + 4 + 4000 + 2000 + 200;
  EXPECT_EQ(program::verify(program).peaks[0].bytes, std::max(first, second));
  // What comes next may be gathered while it runs, its own weights for another micro-batch
  // included.
  const CostTable table = with_sharding(one.table, one.sharding);
  EXPECT_EQ(table.layers[0].ways[0].backward_extra_bytes, 5000 + 500 + 5000);
  EXPECT_EQ(table.layers[1].ways[0].backward_extra_bytes, 2000 + 200 + 500 + 5000);
}

TEST(Shard, KeepsWhatItHasGathered) {
  SmallCase one(Shard::Parameters);
  one.sharding.keeps_gathered = true;
  const Program program = one.program();
  EXPECT_EQ(count(program.ranks[0], Op::Gather), 3u);
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(list_of(program, program.ranks[0]).substr(0, 92),
            "clear, gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, forward 1.0, "
            "loss.0,");
}

TEST(Shard, GathersWhereTheListJumpsWithoutHoldingBoth) {
  SmallCase one(Shard::Parameters);
  LayerCost third = one.table.layers.back();
  third.name = "layer 2";
  one.table.layers.push_back(third);
  one.sharding.units = {{{"layer 0", {0}}, 100, 1000, 0.5, 0.25},
                        {{"layer 1", {1}}, 200, 2000, 0.5, 0.25},
                        {{"layer 2", {2}}, 400, 4000, 0.5, 0.25}};
  // All of the chain is computed again for each backward.
  const Operations operations = {{OperationKind::ForwardKeepInput, 0},
                                 {OperationKind::ForwardDrop, 1},
                                 {OperationKind::ForwardAll, 2},
                                 {OperationKind::Loss, 3},
                                 {OperationKind::Backward, 2},
                                 {OperationKind::ForwardKeepInput, 0},
                                 {OperationKind::ForwardAll, 1},
                                 {OperationKind::Backward, 1},
                                 {OperationKind::ForwardAll, 0},
                                 {OperationKind::Backward, 0}};
  const Program program = shard(lower(one.table, operations, 1, 0), one.sharding);
  EXPECT_EQ(
      list_of(program, program.ranks[0]),
      "clear, gather layer 0.0, gather layer 1.0, forward 0.0, gather layer 2.0, forward 1.0, "
      "forward 2.0, loss.0, backward 2.0, reduce layer 2.0, drop g2.0, gather layer 0.0, "
      "gather layer 1.0, forward 0.0, forward 1.0, gather layer 0.0, backward 1.0, "
      "reduce layer 1.0, forward 0.0, drop g1.0, backward 0.0, reduce layer 0.0, drop g0.0, "
      "step");
  EXPECT_EQ(fault(program), "");
}

TEST(Shard, AddsToTheTableWhatALayerFinds) {
  const SmallCase one(Shard::Parameters);
  const CostTable table = with_sharding(one.table, one.sharding);
  // Own weights, the larger of the neighbours', and the largest bucket that one of them left.
  EXPECT_EQ(table.layers[0].forward_extra_bytes, 500 + 200 + 5000);
  EXPECT_EQ(table.layers[1].forward_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].ways[0].forward_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].ways[0].recompute_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].ways[0].backward_extra_bytes, 2000 + 200 + 500 + 5000);
  EXPECT_EQ(table.loss.extra_bytes, 4000 + 400 + 200 + 4000);
  // The halves: without a figure of their own, input and gradient of the output stay between them.
  EXPECT_EQ(table.layers[1].weight_half_bytes(), 8 + 2000);
  EXPECT_EQ(table.layers[1].weight_extra_bytes, 500 + 5000);
  EXPECT_EQ(table.layers[1].input_half_extra_bytes(table.layers[1].ways[0]),
            8 + 2000 + 200 + 500 + 5000);
  // On ranks of their own, layers find nothing of others'.
  const CostTable apart = with_sharding(one.table, one.sharding, {0, 1, 1});
  EXPECT_EQ(apart.layers[0].forward_extra_bytes, 500 + 5000);
  EXPECT_EQ(apart.layers[1].forward_extra_bytes, 200 + 400 + 4000);
  SmallCase kept(Shard::Parameters);
  kept.sharding.keeps_gathered = true;
  EXPECT_EQ(with_sharding(kept.table, kept.sharding, {0, 1, 1}).layers[0].forward_extra_bytes,
            500 + 5000);
  EXPECT_EQ(with_sharding(kept.table, kept.sharding).layers[1].weight_extra_bytes, 700 + 5000);
  const SmallCase resident(Shard::Optimizer);
  EXPECT_EQ(with_sharding(resident.table, resident.sharding).layers[0].ways[0].backward_extra_bytes,
            0);
}

TEST(Shard, FaultsThatArePlantedAreRefused) {
  Dice dice(75);
  int planted = 0;
  for (int i = 0; i < 800 && !HasFailure(); ++i) {
    const Case one = random_case(dice);
    Program program = shard(one.pipeline, one.sharding);
    RankProgram& rank = program.ranks[static_cast<size_t>(
        dice.between(0, static_cast<int64_t>(program.ranks.size()) - 1))];
    std::vector<size_t> places;
    for (size_t at = 0; at < rank.instructions.size(); ++at) {
      if (is_collective(rank.instructions[at].op)) {
        places.push_back(at);
      }
    }
    if (places.empty()) {
      continue;
    }
    const size_t at =
        places[static_cast<size_t>(dice.between(0, static_cast<int64_t>(places.size()) - 1))];
    Instruction& collective = rank.instructions[at];
    const int64_t kind = dice.between(0, 3);
    if (kind == 0) {
      rank.instructions.erase(rank.instructions.begin() + static_cast<int64_t>(at));
    } else if (kind == 1) {
      collective.op = collective.op == Op::Gather ? Op::Reduce : Op::Gather;
    } else if (kind == 2 && program.units.size() > 1) {
      collective.layer = (collective.layer + 1) % static_cast<int32_t>(program.units.size());
    } else {
      collective.resource = {};
    }
    SCOPED_TRACE(cat("case ", i, ", fault ", kind));
    EXPECT_NE(fault(program), "") << format_program(program);
    ++planted;
  }
  EXPECT_GT(planted, 400);
}

}  // namespace penstock::plan
