// The pass that writes how weights move.
#include "penstock/plan/update.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/held_operands.h"
#include "plan/random_pipelines.h"
#include "plan/small_model.h"
#include "support/error_text.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::ResourceKind;
using program::Shard;
using program::Unit;
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

constexpr LinkCost kLink{.latency_s = 0.5, .bytes_per_s = 64};

Program updated(const Program& turns, const Holdings& holdings) {
  const Program program = write_updates(hold(turns, holdings), holdings, kLink);
  const program::Verdict verdict = program::verify(program);
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  return program;
}

// From the first instruction that is neither work at a layer nor a sum of replicas, or of what the
// rank has itself.
Lines update_lines(const Program& program, size_t rank) {
  Lines lines = operand_lines(program, rank);
  const auto first = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("squares") || line.find("over table") != std::string::npos;
  });
  lines.erase(lines.begin(), first);
  return lines;
}

const Instruction& only(const Program& program, size_t rank, Op op) {
  const std::vector<Instruction>& list = program.ranks[rank].instructions;
  const auto is_it = [&](const Instruction& one) { return one.op == op; };
  EXPECT_EQ(std::count_if(list.begin(), list.end(), is_it), 1);
  return *std::find_if(list.begin(), list.end(), is_it);
}

schedule::Schedule one_f_one_b(int32_t ranks) {
  return schedule::make_schedule(Kind::OneFOneB, ranks, 1);
}

// A table that the first layer and the loss share, on stages of a layer each.
Holdings tied_holdings(int32_t stages, int64_t shared_bytes) {
  Holdings holdings{.units = {table_unit({0, stages})}, .num_parameters = 3};
  for (int32_t stage = 0; stage < stages; ++stage) {
    holdings.units.push_back(own_unit(stage));
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    const bool has_table = stage == 0 || stage + 1 == stages;
    holdings.ranks.push_back(has_table ? held_units({{.unit = 0}, {.unit = 1 + stage}})
                                       : held_units({{.unit = 1 + stage}}));
    holdings.ranks.back().shared_bytes.assign(holdings.units.size(), 0);
    holdings.ranks.back().shared_bytes[0] = has_table ? shared_bytes + stage : 0;
  }
  return holdings;
}

}  // namespace

TEST(WriteUpdates, OneRankDecidesByItself) {
  Holdings holdings{.units = {own_unit(0), own_unit(1)},
                    .ranks = {held_units({{.unit = 0, .has_compute = true}, {.unit = 1}})},
                    .num_parameters = 5};
  const Program program = updated(small_turns(2, 1), holdings);
  EXPECT_EQ(update_lines(program, 0),
            (Lines{"squares: reads a0 a1, makes q.0",
                   "decide: reads q.0, makes n.0, frees q.0",
                   "step [0,1]: reads a0 a1 n.0, updates m0 c0 o0 m1 o1, frees n.0"}));
  EXPECT_TRUE(program.groups.empty());
  EXPECT_EQ(program.ranks[0].sent_bytes(), 0);
}

TEST(WriteUpdates, TheStepMovesStateThatBelongsToNoUnitAndNothingThatIsFixed) {
  Holdings holdings{.units = {own_unit(0)}, .ranks = {held_units({{.unit = 0}})}};
  holdings.ranks[0].values.push_back(fixed_value("workspace", 1));
  holdings.ranks[0].values.push_back(test::rank_state("history", 2));
  EXPECT_EQ(update_lines(updated(small_turns(1, 1), holdings), 0).back(),
            "step [0]: reads a0 n.0, updates e1 m0 o0, frees n.0");
}

TEST(WriteUpdates, WithoutUnitsTheStepHasNothingToMove) {
  const Holdings holdings{.ranks = {fixed_holdings({{"all", 10}})}};
  EXPECT_EQ(update_lines(updated(small_turns(1, 1), holdings), 0),
            (Lines{"squares: makes q.0",
                   "decide: reads q.0, makes n.0, frees q.0",
                   "step: reads n.0, frees n.0"}));
}

TEST(WriteUpdates, TheStepKeepsItsSecondsAndBytes) {
  CostTable table;
  table.layers = {{.name = "layer", .input_bytes = 4, .output_bytes = 4}};
  table.layers[0].modes = {{.saved_bytes = 4}};
  table.clear_s = 0.25;
  table.step_s = 1;
  table.step_extra_bytes = 77;
  Pipeline pipeline{.schedule = one_f_one_b(1), .cuts = {0, 1}};
  pipeline.operations = keep_everything(table, pipeline.cuts, 1);
  const Program program = updated(write_turns(table, pipeline),
                                  {.units = {own_unit(0)}, .ranks = {held_units({{.unit = 0}})}});
  EXPECT_EQ(only(program, 0, Op::Step).seconds, 1.25);
  EXPECT_EQ(only(program, 0, Op::Step).working_bytes, 77);
  for (const Op op : {Op::Squares, Op::Decide}) {
    EXPECT_EQ(only(program, 0, op).seconds, 0);
    EXPECT_EQ(only(program, 0, op).working_bytes, 0);
  }
}

TEST(WriteUpdates, RanksGatherTheSquaresOfAll) {
  const Holdings holdings{
      .units = {own_unit(0), own_unit(1), own_unit(2)},
      .ranks = {held_units({{.unit = 0}}), held_units({{.unit = 1}}), held_units({{.unit = 2}})},
      .num_parameters = 12};
  const Program program = updated(small_turns({0, 1, 2, 3}, one_f_one_b(3)), holdings);
  ASSERT_EQ(program.groups, std::vector{comm::all()});
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(update_lines(program, rank),
              (Lines{cat("squares: reads a", rank, ", makes q.0"),
                     cat("gather [] over ", comm::all().name, ": reads q.0, makes z.0, frees q.0"),
                     "decide: reads z.0, makes n.0, frees z.0",
                     cat("step [",
                         rank,
                         "]: reads a",
                         rank,
                         " n.0, updates m",
                         rank,
                         " o",
                         rank,
                         ", frees n.0")}));
    const Instruction& gather = only(program, rank, Op::Gather);
    // Two doubles of each parameter to each of the other ranks.
    EXPECT_EQ(gather.sent_bytes, 2 * 8 * 12 * 2);
    EXPECT_EQ(gather.seconds, 0.5 + 2 * 8 * 12 * 2 / 64.0);
    EXPECT_EQ(gather.working_bytes, 0);
    EXPECT_EQ(gather.resource, program::Resource{});
  }
}

TEST(WriteUpdates, ATiedTableIsAddedUpOverItsStagesFirst) {
  const Program program = updated(small_turns({0, 1, 2}, one_f_one_b(2)), tied_holdings(2, 1000));
  const comm::RankGroup both = comm::among_stages("table", {0, 1});
  for (size_t rank = 0; rank < 2; ++rank) {
    const size_t own = rank + 1;
    EXPECT_EQ(update_lines(program, rank),
              (Lines{"reduce [0] over table: updates a0",
                     cat("squares: reads a0 a", own, ", makes q.0"),
                     cat("gather [] over ", comm::all().name, ": reads q.0, makes z.0, frees q.0"),
                     "decide: reads z.0, makes n.0, frees z.0",
                     cat("step [0,",
                         own,
                         "]: reads a0 a",
                         own,
                         " n.0, updates m0 o0 m",
                         own,
                         " o",
                         own,
                         ", frees n.0")}));
    const Instruction& reduce = only(program, rank, Op::Reduce);
    const auto bytes = 1000 + static_cast<int64_t>(rank);
    EXPECT_EQ(program.groups[static_cast<size_t>(reduce.group)], both);
    EXPECT_EQ(reduce.resource, program::Resource{});
    EXPECT_EQ(reduce.sent_bytes, bytes);
    EXPECT_EQ(reduce.working_bytes, bytes);
    EXPECT_EQ(reduce.seconds, 0.5 + static_cast<double>(bytes) / 64);
    EXPECT_FALSE(reduce.scatters);
  }
}

TEST(WriteUpdates, OnlyStagesThatHaveATableAddItUp) {
  const Program program =
      updated(small_turns({0, 1, 2, 3}, one_f_one_b(3)), tied_holdings(3, 1000));
  ASSERT_EQ(program.groups.size(), 2u);
  EXPECT_EQ(program.groups[0], comm::among_stages("table", {0, 2}));
  EXPECT_EQ(program.groups[1], comm::all());
  EXPECT_TRUE(update_lines(program, 0).front().starts_with("reduce [0] over table"));
  EXPECT_TRUE(update_lines(program, 1).front().starts_with("squares: reads a2,"));
  EXPECT_TRUE(update_lines(program, 2).front().starts_with("reduce [0] over table"));
}

TEST(WriteUpdates, EachStageSendsItsPartToAllOthersThatHaveIt) {
  Holdings holdings{.units = {table_unit({0, 1, 2, 3})}};
  for (int64_t stage = 0; stage < 3; ++stage) {
    holdings.ranks.push_back(held_units({{.unit = 0}}));
    holdings.ranks.back().shared_bytes = {10 + stage};
  }
  holdings.ranks[2] = held_units({{.unit = 0, .shares = {2}}});
  holdings.ranks[2].shared_bytes = {12};
  const Program program = updated(small_turns({0, 1, 2, 3}, one_f_one_b(3)), holdings);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(only(program, rank, Op::Reduce).sent_bytes, 2 * (10 + static_cast<int64_t>(rank)));
  }
  // The rank's own share comes first.
  const Lines last = operand_lines(program, 2);
  const auto add = std::find(last.begin(), last.end(), "add 2 [0]: reads b0.2, updates a0");
  const auto reduce = std::find(last.begin(), last.end(), "reduce [0] over table: updates a0");
  EXPECT_LT(add, reduce);
  EXPECT_NE(reduce, last.end());
}

TEST(WriteUpdates, WhatComesInNeedsRoomForABlock) {
  constexpr int64_t kBlock = 4 << 20;
  const Program program =
      updated(small_turns({0, 1, 2}, one_f_one_b(2)), tied_holdings(2, 10 * kBlock));
  EXPECT_EQ(only(program, 0, Op::Reduce).sent_bytes, 10 * kBlock);
  EXPECT_EQ(only(program, 0, Op::Reduce).working_bytes, kBlock);
  EXPECT_EQ(only(program, 1, Op::Reduce).sent_bytes, 10 * kBlock + 1);
}

TEST(WriteUpdates, ReplicasReduceBeforeStagesDo) {
  const Holdings one = tied_holdings(2, 1000);
  const Program sharded =
      shard(small_turns({0, 1, 2}, one_f_one_b(2)), two_replicas(Shard::Optimizer, one.units));
  Holdings holdings = both_replicas(Shard::Optimizer, one.units, one.ranks);
  holdings.num_parameters = 3;
  for (size_t rank = 0; rank < 4; ++rank) {
    holdings.ranks[rank].shared_bytes[0] = 100 * static_cast<int64_t>(rank);
  }
  const Program program = updated(sharded, holdings);
  for (size_t rank = 0; rank < 4; ++rank) {
    const Lines lines = operand_lines(program, rank);
    const auto first =
        std::find(lines.begin(), lines.end(), "reduce-scatter [0] over data: updates a0");
    const auto second = std::find(lines.begin(), lines.end(), "reduce [0] over table: updates a0");
    EXPECT_LT(first, second);
    EXPECT_NE(second, lines.end());
    // Its slices to the same replica of the other stage; the squares to three ranks.
    int64_t sent = 0;
    for (const Instruction& each : program.ranks[rank].instructions) {
      sent += each.op == Op::Reduce || each.op == Op::Gather ? each.sent_bytes : 0;
    }
    const int64_t replica = program.replica_of(static_cast<int32_t>(rank));
    EXPECT_EQ(
        sent,
        2 * (7 + replica) + 2 * (5 + replica) + 100 * static_cast<int64_t>(rank) + 3 * 2 * 8 * 3);
  }
  // After the step, what each replica has moved.
  EXPECT_EQ(operand_lines(program, 3).back(), "gather [2] over data: updates m2");
}

TEST(WriteUpdates, RanksOfAnAsynchronousPipelineDecideForThemselves) {
  const schedule::Schedule schedule =
      schedule::make_schedule(Kind::PipeDream, {.ranks = 2, .micro_batches = 1, .updates = 2});
  const Holdings holdings{.units = {own_unit(0), own_unit(1)},
                          .ranks = {held_units({{.unit = 0}}), held_units({{.unit = 1}})},
                          .num_parameters = 4};
  const Program program = updated(small_turns({0, 1, 2}, schedule), holdings);
  EXPECT_TRUE(program.groups.empty());
  EXPECT_EQ(operand_lines(program, 1),
            (Lines{"forward 1.0: reads m1",
                   "loss.0",
                   "backward 1.0: reads m1, sets a1",
                   "squares: reads a1, makes q.0",
                   "decide: reads q.0, makes n.0, frees q.0",
                   "step [1]: reads a1 n.0, updates m1 o1, frees n.0",
                   "forward 1.1: reads m1",
                   "loss.1",
                   "backward 1.1: reads m1, sets a1",
                   "squares: reads a1, makes q.1",
                   "decide: reads q.1, makes n.1, frees q.1",
                   "step [1]: reads a1 n.1, updates m1 o1, frees n.1"}));
}

TEST(WriteUpdates, WantsTheBytesOfATiedTable) {
  Holdings holdings = tied_holdings(2, 1000);
  holdings.ranks[1].shared_bytes.clear();
  const Program program = hold(small_turns({0, 1, 2}, one_f_one_b(2)), holdings);
  EXPECT_NE(test::error_text<InternalError>([&] {
              write_updates(program, holdings, kLink);
            }).find("no bytes of a shared unit"),
            std::string::npos);
}

namespace {

bool is_over_stages(const Program& program, const Instruction& one) {
  return one.op == Op::Reduce &&
         program.groups[static_cast<size_t>(one.group)].axes.contains(comm::Axis::Pipeline);
}

// What a rank is to send in a step, counted in another way: by what it is given, and how often.
int64_t expected_sent(const test::RandomPipeline& one, const Program& program, int32_t number) {
  const RankProgram& rank = program.ranks[static_cast<size_t>(number)];
  const std::set<int32_t> layers = test::layers_of(program, rank);
  const auto replica = static_cast<size_t>(program.replica_of(number));
  int64_t sent = 0;
  for (const Instruction& each : rank.instructions) {
    if (each.op == Op::Send) {
      sent += rank.value(each.reads[0]).bytes;
    } else if (each.op == Op::Merge) {
      for (const program::ValueId id : each.updates) {
        sent += (program.replicas() - 1) * (rank.value(id).bytes / 2);  // one of its two copies
      }
    } else if (is_collective(each.op) && each.resource.kind == ResourceKind::Line) {
      const UnitCost& unit = one.sharding.units[static_cast<size_t>(each.units[0])];
      const std::vector<int64_t>& given =
          each.op == Op::Gather ? unit.gather_sent : unit.reduce_sent;
      sent += given.empty() ? 0 : given[replica];
    }
  }
  const auto stages_with = [&](const Unit& unit) {
    int64_t stages = 0;
    for (int32_t other = 0; other < program.mesh.ranks(); ++other) {
      const RankProgram& list = program.ranks[static_cast<size_t>(other)];
      stages += program.replica_of(other) == program.replica_of(number) &&
                        !test::own_layers(unit, test::layers_of(program, list)).empty()
                    ? 1
                    : 0;
    }
    return stages;
  };
  for (size_t i = 0; i < program.units.size(); ++i) {
    if (!program.units[i].is_frozen && !test::own_layers(program.units[i], layers).empty()) {
      sent += program.updates * (stages_with(program.units[i]) - 1) *
              one.holdings.ranks[static_cast<size_t>(number)].shared_bytes[i];
    }
  }
  if (program.updates == 1) {
    sent += (program.mesh.ranks() - 1) * 16 * one.holdings.num_parameters;
  }
  return sent;
}

}  // namespace

// Sound, and as much is held and sent as was given to be.
TEST(WriteUpdates, RandomPipelinesHoldAndSendWhatTheyWereGiven) {
  Dice dice(81);
  int asynchronous = 0, tied = 0;
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const test::RandomPipeline one = test::random_pipeline(dice);
    SCOPED_TRACE(cat("case ", i, ", ", one.text()));
    const Program& program = one.program;
    const program::Verdict verdict = program::verify(program);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text << "\n"
                                    << program::format_program(program);
    EXPECT_GE(program::simulate(program).seconds, program::simulate(one.turns).seconds - 1e-9);
    for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
      const RankProgram& list = program.ranks[static_cast<size_t>(rank)];
      const RankHoldings& held = one.holdings.ranks[static_cast<size_t>(rank)];
      int64_t between_stages = 0, of_update = 0;
      // The gradient sent last, where it is dropped after the sum: pipelines that are not drained
      // do so, the others drop it before.
      int64_t late = 0;
      for (auto each = list.instructions.rbegin(); each != list.instructions.rend(); ++each) {
        const bool is_sum = is_over_stages(program, *each);
        if ((is_sum || each->op == Op::Merge) && each->working_bytes > 0) {
          between_stages = std::max(between_stages, is_sum ? each->working_bytes : 0);
          of_update = std::max(of_update, each->working_bytes + late);
        }
        for (const program::ValueId id : each->frees) {
          const program::Value& value = list.value(id);
          const bool is_late =
              each->op == program::Op::Drop && value.kind == program::ValueKind::Gradient;
          late += is_late ? value.bytes : 0;
        }
      }
      const int64_t before =
          program::replay_peak(one.sharded.ranks[static_cast<size_t>(rank)]).bytes;
      const int64_t peak = verdict.peaks[static_cast<size_t>(rank)].bytes;
      EXPECT_EQ(list.persistent_bytes(), held.bytes());
      if (program.updates == 1) {
        // The update comes when all else is gone, but for that gradient.
        EXPECT_EQ(peak, held.bytes() + std::max(before, of_update));
      } else {
        EXPECT_GE(peak, held.bytes() + before);
        EXPECT_LE(peak, held.bytes() + before + between_stages);
      }
      EXPECT_EQ(list.sent_bytes(), expected_sent(one, program, rank));
      tied += between_stages > 0 ? 1 : 0;
    }
    if (i % 10 == 0) {
      EXPECT_EQ(program::parse_program(format_program(program), "written"), program);
    }
    asynchronous += one.program.updates > 1 ? 1 : 0;
  }
  EXPECT_GT(asynchronous, 100);
  EXPECT_GT(tied, 500);
}

}  // namespace penstock::plan
