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

#include "plan/random_pipelines.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::Shard;
using schedule::Kind;
using test::Dice;
using test::random_synchronous;
using Case = test::RandomPipeline;

std::string fault(const Program& program) {
  const program::Verdict verdict = program::verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

bool is_over_stages(const Program& program, const Instruction& one) {
  return one.op == Op::Reduce &&
         program.groups[static_cast<size_t>(one.group)].axes.contains(comm::Axis::Pipeline);
}

// The most that an update works with: adding up a tied unit over its stages, merging layers' state.
int64_t most_of_update(const Program& program, const RankProgram& rank) {
  int64_t most = 0;
  for (const Instruction& one : rank.instructions) {
    const bool is_of_update = is_over_stages(program, one) || one.op == Op::Merge;
    most = std::max(most, is_of_update ? one.working_bytes : 0);
  }
  return most;
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
    const Case one = random_synchronous(dice);
    const Program& program = one.program;
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(one.sharding.shard)));
    ASSERT_EQ(fault(program), "") << format_program(program);
    ASSERT_EQ(program.ranks.size(),
              one.turns.ranks.size() * static_cast<size_t>(one.sharding.replicas));
    // Gathering and reducing takes time, and saves none.
    EXPECT_GE(simulate(program).seconds, simulate(one.turns).seconds - 1e-9);
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
    const Case one = random_synchronous(dice);
    const Program& program = one.program;
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(one.sharding.shard)));
    const program::Verdict verdict = program::verify(program);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const auto stage = static_cast<size_t>(program.stage_of(static_cast<int32_t>(rank)));
      const int64_t held = verdict.peaks[rank].bytes - program.ranks[rank].persistent_bytes();
      // The update comes when all else is gone.
      EXPECT_LE(
          held,
          std::max(one.answer.peak_bytes[stage], most_of_update(program, program.ranks[rank])))
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
  Case one = random_synchronous(dice);
  one.sharding.replicas = 1;
  EXPECT_EQ(shard(one.turns, one.sharding), one.turns);
  EXPECT_EQ(format_costs(with_sharding(one.table, one.sharding)), format_costs(one.table));
}

TEST(Shard, RefusesProgramsThatAreReplicatedAlreadyOrHoldSomething) {
  Dice dice(74);
  Case one = random_synchronous(dice);
  one.sharding.replicas = 2;
  const Program program = shard(one.turns, one.sharding);
  EXPECT_THROW(shard(program, one.sharding), InternalError);
  const Holdings nothing{.ranks = std::vector<RankHoldings>(one.turns.ranks.size())};
  EXPECT_THROW(shard(finish_program(one.turns, nothing, one.link(), 0), one.sharding),
               InternalError);
  Holdings something = nothing;
  something.ranks.front() = fixed_holdings({{"pages", 1}});
  EXPECT_THROW(shard(hold(one.turns, something), one.sharding), InternalError);
}

// What each rank sends is what its replica was given to send, as often as it gathers and reduces.
TEST(Shard, SendsWhatItWasGivenToSend) {
  Dice dice(77);
  int64_t sent = 0;
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const Case one = random_synchronous(dice);
    SCOPED_TRACE(cat("case ", i, ", ", shard_name(one.sharding.shard)));
    SentBytes most;
    for (int32_t rank = 0; rank < one.program.mesh.ranks(); ++rank) {
      SentBytes own;
      std::vector<bool> was_gathered(one.program.units.size());
      for (const Instruction& each : one.program.ranks[static_cast<size_t>(rank)].instructions) {
        if (each.op == Op::Merge) {
          own.all += each.sent_bytes;  // tests/plan/update_test.cpp has it by its values
          continue;
        }
        if (each.units.size() != 1 || !is_collective(each.op) ||
            is_over_stages(one.program, each)) {
          continue;
        }
        const UnitCost& unit = one.sharding.units[static_cast<size_t>(each.units[0])];
        const std::vector<int64_t>& given =
            each.op == Op::Gather ? unit.gather_sent : unit.reduce_sent;
        const int64_t bytes =
            given.empty() ? 0 : given[static_cast<size_t>(one.program.replica_of(rank))];
        EXPECT_EQ(each.sent_bytes, bytes);
        own.all += bytes;
        if (each.op == Op::Gather) {
          own.gathered_again += was_gathered[static_cast<size_t>(each.units[0])] ? bytes : 0;
          was_gathered[static_cast<size_t>(each.units[0])] = true;
        }
      }
      most = own.all > most.all ? own : most;
      sent += own.all;
    }
    EXPECT_EQ(count_sent(one.program).all, most.all);
    EXPECT_EQ(count_sent(one.program).gathered_again, most.gathered_again);
  }
  EXPECT_GT(sent, 10'000);
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
      layer.modes = {{.forward_s = 1, .backward_s = 2, .saved_bytes = 10, .needs_output = false}};
      table.layers.push_back(layer);
    }
    table.loss.seconds = 1;
    table.target_bytes = 1;
    sharding = {.replicas = 2,
                .shard = shard_kind,
                .units = {unit_of("layer 0", {0}, 100, 1000),
                          unit_of("layer 1", {1}, 200, 2000),
                          unit_of("table", {0, 2}, 400, 4000)}};
    sharding.units[2].unit.is_shared = true;
  }

  static UnitCost unit_of(const std::string& name,
                          const std::vector<int32_t>& layers,
                          int64_t gathered_bytes,
                          int64_t bucket_bytes) {
    return {.unit = {.name = name, .layers = layers, .elements = 4},
            .gathered_bytes = gathered_bytes,
            .bucket_bytes = bucket_bytes,
            .gather_s = 0.5,
            .reduce_s = 0.25};
  }

  // Beside units, of which no value counts, 1 byte and 2.
  Holdings holdings() const {
    using enum program::ValueKind;
    Holdings holdings{.units = sharding.program_units()};
    for (const int64_t replica : {0, 1}) {
      RankHoldings rank{.values = {fixed_value("rest", replica + 1)}};
      for (int32_t unit = 0; unit < 3; ++unit) {
        const std::vector<program::Slice> half{{2 * replica, 2 * replica + 2}};
        const std::vector<program::Slice> all;
        const bool has_slices = sharding.shard == Shard::Gradients;
        const bool is_sharded = sharding.shard == Shard::Parameters;
        rank.values.push_back({{.kind = Master, .unit = unit, .slices = is_sharded ? half : all}});
        rank.values.push_back(
            {{.kind = GradientSum, .unit = unit, .slices = is_sharded || has_slices ? half : all}});
        rank.values.push_back(
            {{.kind = State, .unit = unit, .slices = sharding.shard == Shard::None ? all : half}});
      }
      holdings.ranks.push_back(rank);
    }
    return holdings;
  }

  Program turns(const Operations& operations,
                int32_t micro_batches,
                Kind kind = Kind::OneFOneB) const {
    const auto loss = std::find_if(operations.begin(), operations.end(), [](const auto& one) {
      return one.kind == OperationKind::Loss;
    });
    const StageOperations both{{operations.begin(), loss}, {loss, operations.end()}};
    // With one rank, each micro-batch goes forward and back before the next.
    return write_turns(
        table,
        {.schedule = schedule::make_schedule(kind, 1, micro_batches),
         .cuts = {0, static_cast<int32_t>(table.layers.size())},
         .operations = {std::vector<StageOperations>(static_cast<size_t>(micro_batches), both)}});
  }

  Program program(const Operations& operations, int32_t micro_batches) const {
    return finish_program(shard(turns(operations, micro_batches), sharding), holdings(), {}, 0);
  }
  Program program(int32_t micro_batches = 2) const {
    return program(keep_everything(table), micro_batches);
  }
  // Of one micro-batch, whose backward comes as input gradient and weight gradient.
  Program split_program() const {
    const Program all = turns(keep_everything(table), 1, Kind::ZeroBubbleH1);
    return finish_program(shard(all, sharding), holdings(), {}, 0);
  }
};

// "forward 0.0", "gather table", "reduce table.1", "drop g2.0": what a rank does.
std::string list_of(const Program& program, const RankProgram& rank) {
  const std::vector<std::string> names = value_names(rank);
  std::vector<std::string> words;
  for (const Instruction& one : rank.instructions) {
    std::string word(op_name(one.op));
    if (is_collective(one.op)) {
      word += " " + (one.units.empty() ? "squares"
                                       : program.units[static_cast<size_t>(one.units[0])].name);
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
            "forward 0.0, forward 1.0, loss.0, backward 1.0, backward 0.0, forward 0.1, "
            "forward 1.1, loss.1, backward 1.1, reduce layer 1, backward 0.1, reduce layer 0, "
            "reduce table, squares, gather squares, decide, step");
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(program.ranks[0].instructions, program.ranks[1].instructions);
}

TEST(Shard, GathersMovedShardsAfterTheStep) {
  const SmallCase one(Shard::Optimizer);
  const Program program = one.program();
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "forward 0.0, forward 1.0, loss.0, backward 1.0, backward 0.0, forward 0.1, "
            "forward 1.1, loss.1, backward 1.1, reduce layer 1, backward 0.1, reduce layer 0, "
            "reduce table, squares, gather squares, decide, step, gather layer 0, gather layer 1, "
            "gather table");
  EXPECT_EQ(fault(program), "");
}

TEST(Shard, DropsABucketAfterTheNextWork) {
  const SmallCase one(Shard::Gradients);
  const Program program = one.program();
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "forward 0.0, forward 1.0, loss.0, reduce table.0, backward 1.0, "
            "reduce layer 1.0, drop g2.0, backward 0.0, reduce layer 0.0, reduce table.0, "
            "drop g1.0, forward 0.1, drop g0.0 g2.0#2, forward 1.1, loss.1, reduce table.1, "
            "backward 1.1, reduce layer 1.1, drop g2.1, backward 0.1, reduce layer 0.1, "
            "reduce table.1, drop g1.1 g0.1 g2.1#2, squares, gather squares, decide, step, "
            "gather layer 0, gather layer 1, gather table");
  EXPECT_EQ(fault(program), "");
  // In the backward of layer 0: what is held always, the other micro-batch's input and targets (5), input,
  // saved and arriving gradient (4 + 6 + 4), the bucket of layer 1 and both of its own, and the 4
  // bytes of the input's gradient that it works with.
  EXPECT_EQ(program::verify(program).peaks[0].bytes, 1 + 5 + 14 + 4 + 2000 + 1000 + 4000);
  EXPECT_EQ(program::verify(program).peaks[1].bytes, 2 + 5 + 14 + 4 + 2000 + 1000 + 4000);
}

TEST(Shard, GathersOneUseAhead) {
  const SmallCase one(Shard::Parameters);
  const Program program = one.program(1);
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, "
            "gather table.0, forward 1.0, gather layer 1.0, loss.0, reduce table.0, "
            "gather layer 0.0, gather table.0, backward 1.0, reduce layer 1.0, drop g2.0, "
            "backward 0.0, reduce layer 0.0, reduce table.0, drop g1.0 g0.0 g2.0#2, "
            "squares, gather squares, decide, step");
  EXPECT_EQ(fault(program), "");
  // In the backward of layer 0 there are its own weights, in that of layer 1 those of layer 0, too.
  const int64_t first = 1 + 14 + 4 + 2000 + 1000 + 4000 + 100 + 400;
  const int64_t second = 1 + 4 + 6 + 4 + 6 + 4 + 4 + 4000 + 2000 + 200 + 100 + 400;
  EXPECT_EQ(program::verify(program).peaks[0].bytes, std::max(first, second));
}

TEST(Shard, GathersForAWeightGradientThatNeedsWeights) {
  const auto count_reads = [](const Program& program) {
    int gathered = 0;
    for (const program::Instruction& one : program.ranks[0].instructions) {
      for (const program::ValueId id : one.reads) {
        gathered += one.op == program::Op::BackwardWeight &&
                    program.ranks[0].value(id).kind == program::ValueKind::Gathered;
      }
    }
    return gathered;
  };
  SmallCase one(Shard::Parameters);
  const CostTable before = with_sharding(one.table, one.sharding);
  EXPECT_EQ(count_reads(one.split_program()), 0);
  one.sharding.units[0].unit.weight_too = {0};
  const Program program = one.split_program();
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(count_reads(program), 1);
  // Its own weights and a neighbour's, where it had the larger of both.
  const CostTable after = with_sharding(one.table, one.sharding);
  EXPECT_GT(after.layers[0].weight_extra_bytes, before.layers[0].weight_extra_bytes);
  EXPECT_EQ(after.layers[1].weight_extra_bytes, before.layers[1].weight_extra_bytes);
}

TEST(Shard, GathersNothingForABackwardThatNeedsNoWeights) {
  SmallCase one(Shard::Parameters);
  one.sharding.units[0].unit.forward_only = {0};
  one.sharding.units[2].unit.forward_only = {0};
  const Program program = one.program(1);
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, "
            "gather table.0, forward 1.0, gather layer 1.0, loss.0, reduce table.0, "
            "backward 1.0, reduce layer 1.0, drop g2.0, "
            "backward 0.0, reduce layer 0.0, reduce table.0, drop g1.0 g0.0 g2.0#2, "
            "squares, gather squares, decide, step");
  EXPECT_EQ(fault(program), "");
  // Without what the other program gathers for it (100 + 400).
  const int64_t first = 1 + 14 + 4 + 2000 + 1000 + 4000;
  const int64_t second = 1 + 4 + 6 + 4 + 6 + 4 + 4 + 4000 + 2000 + 200;
  EXPECT_EQ(program::verify(program).peaks[0].bytes, std::max(first, second));
  // What comes next may be gathered while it runs, its own weights for another micro-batch
  // included.
  const CostTable table = with_sharding(one.table, one.sharding);
  EXPECT_EQ(table.layers[0].modes[0].backward_extra_bytes, 5000 + 500 + 5000);
  EXPECT_EQ(table.layers[1].modes[0].backward_extra_bytes, 2000 + 200 + 500 + 5000);
}

TEST(Shard, KeepsWhatItHasGathered) {
  SmallCase one(Shard::Parameters);
  one.sharding.keeps_gathered = true;
  const Program program = one.program();
  EXPECT_EQ(count(program.ranks[0], Op::Gather), 3u + 1);  // the squares too
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(list_of(program, program.ranks[0]).substr(0, 85),
            "gather layer 0.0, gather table.0, gather layer 1.0, forward 0.0, forward 1.0, "
            "loss.0,");
}

TEST(Shard, GathersWhereTheListJumpsWithoutHoldingBoth) {
  SmallCase one(Shard::Parameters);
  LayerCost third = one.table.layers.back();
  third.name = "layer 2";
  one.table.layers.push_back(third);
  one.sharding.units = {SmallCase::unit_of("layer 0", {0}, 100, 1000),
                        SmallCase::unit_of("layer 1", {1}, 200, 2000),
                        SmallCase::unit_of("layer 2", {2}, 400, 4000)};
  // All of the chain is recomputed for each backward.
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
  const Program program = one.program(operations, 1);
  EXPECT_EQ(list_of(program, program.ranks[0]),
            "gather layer 0.0, gather layer 1.0, forward 0.0, gather layer 2.0, forward 1.0, "
            "forward 2.0, loss.0, backward 2.0, reduce layer 2.0, drop g2.0, gather layer 0.0, "
            "gather layer 1.0, forward 0.0, forward 1.0, gather layer 0.0, backward 1.0, "
            "reduce layer 1.0, forward 0.0, drop g1.0, backward 0.0, reduce layer 0.0, drop g0.0, "
            "squares, gather squares, decide, step");
  EXPECT_EQ(fault(program), "");
}

TEST(Shard, AddsToTheTableWhatALayerFinds) {
  const SmallCase one(Shard::Parameters);
  const CostTable table = with_sharding(one.table, one.sharding);
  // Own weights, the larger of the neighbours', and the largest bucket that one of them left.
  EXPECT_EQ(table.layers[0].forward_extra_bytes, 500 + 200 + 5000);
  EXPECT_EQ(table.layers[1].forward_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].modes[0].forward_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].modes[0].recompute_extra_bytes, 200 + 500 + 5000);
  EXPECT_EQ(table.layers[1].modes[0].backward_extra_bytes, 2000 + 200 + 500 + 5000);
  EXPECT_EQ(table.loss.extra_bytes, 4000 + 400 + 200 + 4000);
  // The split backward: without a figure of its own, input and gradient of the output stay between
  // input gradient and weight gradient.
  EXPECT_EQ(table.layers[1].weight_work_bytes(), 8 + 2000);
  EXPECT_EQ(table.layers[1].weight_extra_bytes, 500 + 5000);
  EXPECT_EQ(table.layers[1].input_gradient_extra_bytes(table.layers[1].modes[0]),
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
  EXPECT_EQ(
      with_sharding(resident.table, resident.sharding).layers[0].modes[0].backward_extra_bytes, 0);
}

TEST(Shard, FaultsThatArePlantedAreRefused) {
  Dice dice(75);
  int planted = 0;
  for (int i = 0; i < 800 && !HasFailure(); ++i) {
    Program program = random_synchronous(dice).program;
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
    const int64_t kind = dice.between(0, 4);
    if (kind == 0) {
      rank.instructions.erase(rank.instructions.begin() + static_cast<int64_t>(at));
    } else if (kind == 1) {
      collective.op = collective.op == Op::Gather ? Op::Reduce : Op::Gather;
    } else if (kind == 2 && program.units.size() > 1 && !collective.units.empty()) {
      int32_t& unit = collective.units[0];
      unit = (unit + 1) % static_cast<int32_t>(program.units.size());
    } else if (kind == 3) {
      collective.group = (collective.group + 1) % static_cast<int32_t>(program.groups.size() + 1);
    } else {
      collective.resource = {program::ResourceKind::Line, collective.group + 1};
    }
    SCOPED_TRACE(cat("case ", i, ", fault ", kind));
    EXPECT_NE(fault(program), "") << format_program(program);
    ++planted;
  }
  EXPECT_GT(planted, 400);
}

}  // namespace penstock::plan
