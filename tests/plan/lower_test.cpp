// The program that a schedule becomes.
#include "penstock/plan/lower.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/plan/rotor.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "support/error_text.h"

namespace penstock::plan {

namespace {

using enum OperationKind;
using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::ValueId;
using program::ValueKind;
using test::Dice;
using test::error_text;

// Two layers of which no two numbers are equal.
CostTable two_layers() {
  CostTable table = test::make_chain(100,
                                     {{.forward = 1,
                                       .backward = 2,
                                       .size = 20,
                                       .kept = 25,
                                       .forward_extra = 3,
                                       .backward_extra = 4},
                                      {.forward = 5,
                                       .backward = 6,
                                       .size = 40,
                                       .kept = 47,
                                       .forward_extra = 8,
                                       .backward_extra = 9}},
                                     /*loss_extra=*/11);
  table.loss.seconds = 7;
  table.target_bytes = 13;
  table.held = {{"parameters", 1000}, {"optimizer", 2000}};
  table.clear_s = 0.5;
  table.step_s = 0.25;
  table.step_extra_bytes = 17;
  return table;
}

// By name, because a number says nothing to a reader: "x1.0".
std::vector<std::string> names_of(const RankProgram& rank, const std::vector<ValueId>& ids) {
  const std::vector<std::string> names = program::value_names(rank);
  std::vector<std::string> result;
  for (const ValueId id : ids) {
    result.push_back(names[static_cast<size_t>(id)]);
  }
  std::sort(result.begin(), result.end());
  return result;
}

struct Line {
  Op op;
  std::vector<std::string> reads, makes, frees;
  double seconds;
  int64_t working_bytes;
};

void expect_line(const RankProgram& rank, size_t index, const Line& line) {
  SCOPED_TRACE("instruction " + std::to_string(index));
  ASSERT_LT(index, rank.instructions.size());
  const Instruction& instruction = rank.instructions[index];
  EXPECT_EQ(instruction.op, line.op);
  EXPECT_EQ(names_of(rank, instruction.reads), line.reads);
  EXPECT_EQ(names_of(rank, instruction.makes), line.makes);
  EXPECT_EQ(names_of(rank, instruction.frees), line.frees);
  EXPECT_EQ(instruction.seconds, line.seconds);
  EXPECT_EQ(instruction.working_bytes, line.working_bytes);
}

}  // namespace

TEST(Lower, WritesTheWholeStepOfAKeptChain) {
  const CostTable table = two_layers();
  const Program program = lower(table, keep_everything(table), 1, 9999);
  ASSERT_EQ(program.ranks.size(), 1u);
  const RankProgram& rank = program.ranks[0];
  EXPECT_EQ(rank.limit_bytes, 9999);
  EXPECT_EQ(program::held_by_name(rank), table.held);
  EXPECT_EQ(names_of(rank, rank.persistent), (std::vector<std::string>{"k0", "k1"}));
  EXPECT_EQ(names_of(rank, rank.given), (std::vector<std::string>{"t.0", "x0.0"}));
  ASSERT_EQ(rank.instructions.size(), 8u);
  expect_line(rank, 0, {Op::Forward, {"x0.0"}, {"s0.0", "x1.0"}, {}, 1, 25 + 3});
  expect_line(rank, 1, {Op::Forward, {"x1.0"}, {"s1.0", "x2.0"}, {}, 5, 47 + 8});
  expect_line(rank, 2, {Op::Loss, {"t.0", "x2.0"}, {"d2.0"}, {"t.0"}, 7, 40 + 11});
  expect_line(rank,
              3,
              {Op::Backward,
               {"d2.0", "s1.0", "x1.0", "x2.0"},
               {"d1.0"},
               {"d2.0", "s1.0", "x2.0"},
               6,
               20 + 9});
  // Nobody reads the gradient of the model's input, but its room is counted while it is computed.
  expect_line(rank,
              4,
              {Op::Backward,
               {"d1.0", "s0.0", "x0.0", "x1.0"},
               {},
               {"d1.0", "s0.0", "x0.0", "x1.0"},
               2,
               100 + 4});
  // What the table says of clearing gradients is part of the step.
  expect_line(rank, 5, {Op::Squares, {}, {"q.0"}, {}, 0, 0});
  expect_line(rank, 6, {Op::Decide, {"q.0"}, {"n.0"}, {"q.0"}, 0, 0});
  expect_line(rank, 7, {Op::Step, {"n.0"}, {}, {"n.0"}, 0.5 + 0.25, 17});
  EXPECT_TRUE(program::verify(program).is_sound());
}

TEST(Lower, TakesHoldingsInsteadOfTheTablesSums) {
  const CostTable table = two_layers();
  const Holdings holdings{.ranks = {{{fixed_value("workspace", 7), fixed_value("pages", 70)}}}};
  const Program program = lower(table, keep_everything(table), 1, 0, holdings);
  EXPECT_EQ(program::held_by_name(program.ranks[0]),
            (std::vector<program::Held>{{"workspace", 7}, {"pages", 70}}));
  EXPECT_EQ(program.ranks[0].persistent_bytes(), 77);
}

TEST(Lower, GivesValuesTheBytesOfTheTable) {
  const CostTable table = two_layers();
  const Program program = lower(table, keep_everything(table), 1, 0);
  const RankProgram& rank = program.ranks[0];
  for (const program::Value& value : rank.values) {
    const int64_t sizes[] = {100, 20, 40};
    const int64_t states[] = {25 - 20, 47 - 40};  // the output is a value of its own
    const size_t layer = static_cast<size_t>(value.layer);
    switch (value.kind) {
      case ValueKind::Activation:
      case ValueKind::Gradient:
        EXPECT_EQ(value.bytes, sizes[layer]);
        break;
      case ValueKind::Saved:
        EXPECT_EQ(value.bytes, states[layer]);
        break;
      case ValueKind::Targets:
        EXPECT_EQ(value.bytes, 13);
        EXPECT_EQ(value.layer, -1);
        break;
      case ValueKind::Fixed:
        EXPECT_EQ(value.bytes, 1000 * (1 + value.label));
        break;
      case ValueKind::Squares:
      case ValueKind::Decision:
        EXPECT_EQ(value.bytes, 0);
        EXPECT_EQ(value.version, 0);
        break;
      case ValueKind::Carried:
      case ValueKind::CarriedGradient:
        ADD_FAILURE() << "nothing is carried here";
        break;
      case ValueKind::WeightWork:
        ADD_FAILURE() << "backward is whole here";
        break;
      case ValueKind::Stashed:
        ADD_FAILURE() << "there is one update here";
        break;
      case ValueKind::Gathered:
      case ValueKind::Bucket:
      case ValueKind::AllSquares:
      case ValueKind::Sketches:
      case ValueKind::AllSketches:
      case ValueKind::Filled:
      case ValueKind::Prepared:
      case ValueKind::Lengths:
      case ValueKind::AllLengths:
        ADD_FAILURE() << "there is one rank here";
        break;
      case ValueKind::Master:
      case ValueKind::Compute:
      case ValueKind::GradientSum:
      case ValueKind::Share:
      case ValueKind::State:
      case ValueKind::LayerState:
      case ValueKind::RankState:
        ADD_FAILURE() << "the table names sums alone";
        break;
    }
  }
}

TEST(Lower, NamesLayersAndSaveModesAsTheTableDoes) {
  CostTable table = two_layers();
  table.layers[1].modes.push_back({.name = "lean", .needs_output = false});
  const Program program = lower(table, keep_everything(table), 1, 0);
  ASSERT_EQ(program.layers.size(), 2u);
  EXPECT_EQ(program.layers[0], (program::LayerInfo{"layer0", {{"all", true}}}));
  EXPECT_EQ(program.layers[1], (program::LayerInfo{"layer1", {{"all", true}, {"lean", false}}}));
}

TEST(Lower, RunsOneMicroBatchAfterTheOther) {
  const CostTable table = two_layers();
  const Operations operations = recompute_everything(table);
  const Program program = lower(table, operations, 3, 0);
  EXPECT_EQ(program.micro_batches, 3);
  const RankProgram& rank = program.ranks[0];
  // The inputs of all are there from the beginning.
  EXPECT_EQ(names_of(rank, rank.given),
            (std::vector<std::string>{"t.0", "t.1", "t.2", "x0.0", "x0.1", "x0.2"}));
  ASSERT_EQ(rank.instructions.size(), 3 * operations.size() + 3);
  for (size_t i = 0; i < 3 * operations.size(); ++i) {
    EXPECT_EQ(rank.instructions[i].micro_batch, static_cast<int32_t>(i / operations.size()));
  }
  const std::vector<Op> update{Op::Squares, Op::Decide, Op::Step};
  for (size_t i = 0; i < update.size(); ++i) {
    EXPECT_EQ(rank.instructions[3 * operations.size() + i].op, update[i]);
  }
  EXPECT_TRUE(program::verify(program).is_sound());
}

TEST(Lower, ARecomputedActivationIsANewValue) {
  const CostTable table = two_layers();
  const Program program = lower(table, recompute_everything(table), 1, 0);
  const RankProgram& rank = program.ranks[0];
  // Two forwards, loss, then layer 1 recomputed and back, layer 0 recomputed and back.
  expect_line(rank, 0, {Op::Forward, {"x0.0"}, {"x1.0"}, {}, 1, 20 + 3});
  expect_line(rank, 1, {Op::Forward, {"x1.0"}, {"x2.0"}, {}, 5, 40 + 8});
  expect_line(rank, 2, {Op::Loss, {"t.0", "x2.0"}, {"d2.0"}, {"t.0", "x2.0"}, 7, 51});
  expect_line(rank, 3, {Op::Forward, {"x1.0"}, {"s1.0", "x2.0#2"}, {}, 5, 47 + 8});
  expect_line(rank,
              4,
              {Op::Backward,
               {"d2.0", "s1.0", "x1.0", "x2.0#2"},
               {"d1.0"},
               {"d2.0", "s1.0", "x1.0", "x2.0#2"},
               6,
               29});
  expect_line(rank, 5, {Op::Forward, {"x0.0"}, {"s0.0", "x1.0#2"}, {}, 1, 28});
}

TEST(Lower, AForwardWhoseOutputNobodyReadsLeavesItOut) {
  CostTable table = two_layers();
  SaveModeCost& mode = table.layers[1].modes[0];
  mode.needs_output = false;
  mode.recompute_s = 0.125;
  mode.recompute_extra_bytes = 2;
  const Program program = lower(table, recompute_everything(table), 1, 0);
  const RankProgram& rank = program.ranks[0];
  expect_line(rank, 3, {Op::Forward, {"x1.0"}, {"s1.0"}, {}, 0.125, 7 + 2});
  expect_line(
      rank,
      4,
      {Op::Backward, {"d2.0", "s1.0", "x1.0"}, {"d1.0"}, {"d2.0", "s1.0", "x1.0"}, 6, 20 + 9});
  EXPECT_EQ(rank.instructions[3].keep, 0);
  EXPECT_TRUE(program::verify(program).is_sound());
}

TEST(Lower, AnOutputThatBackwardDoesNotNeedGoesWithItsLastReader) {
  CostTable table = two_layers();
  table.layers[0].modes[0].needs_output = false;
  table.layers[1].modes[0].needs_output = false;
  const RankProgram rank = lower(table, keep_everything(table), 1, 0).ranks[0];
  EXPECT_EQ(names_of(rank, rank.instructions[2].frees), (std::vector<std::string>{"t.0", "x2.0"}));
  EXPECT_EQ(names_of(rank, rank.instructions[3].frees),
            (std::vector<std::string>{"d2.0", "s1.0", "x1.0"}));
}

TEST(Lower, TheSaveModeOfAScheduleIsThatOfTheProgram) {
  CostTable table = two_layers();
  table.layers[0].modes.push_back({.name = "lean",
                                   .forward_s = 1.5,
                                   .backward_s = 2.5,
                                   .saved_bytes = 22,
                                   .forward_extra_bytes = 1,
                                   .backward_extra_bytes = -6,
                                   .needs_output = true});
  const Operations operations{
      {ForwardAll, 0, 1}, {ForwardAll, 1}, {Loss, 2}, {Backward, 1}, {Backward, 0}};
  const RankProgram rank = lower(table, operations, 1, 0).ranks[0];
  EXPECT_EQ(rank.instructions[0].keep, 1);
  EXPECT_EQ(rank.instructions[1].keep, 0);
  expect_line(rank, 0, {Op::Forward, {"x0.0"}, {"s0.0", "x1.0"}, {}, 1.5, 22 + 1});
  EXPECT_EQ(rank.instructions[4].seconds, 2.5);
  EXPECT_EQ(rank.instructions[4].working_bytes, 100 - 6);
}

TEST(Lower, FreesEveryValueAtItsLastUse) {
  Dice dice(60);
  for (int i = 0; i < 500; ++i) {
    const CostTable table = test::rich_chain(dice, dice.between(1, 9), {});
    const int64_t least = solve_rotor(table, 0, {.threads = 1}).least_bytes;
    const int64_t limit = dice.between(least, std::max(least, test::keep_all_bytes(table)));
    const Operations operations = solve_rotor(table, limit, {.threads = 1}).operations;
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    const Program program = lower(table, operations, micro_batches, 0);
    const RankProgram& rank = program.ranks[0];
    constexpr size_t kNever = SIZE_MAX;
    std::vector<size_t> last_use(rank.values.size(), kNever), freed_at(rank.values.size(), kNever);
    double seconds = 0;
    for (size_t at = 0; at < rank.instructions.size(); ++at) {
      const Instruction& instruction = rank.instructions[at];
      seconds += instruction.seconds;
      for (const auto* list : {&instruction.reads, &instruction.makes}) {
        for (const ValueId id : *list) {
          last_use[static_cast<size_t>(id)] = at;
        }
      }
      for (const ValueId id : instruction.frees) {
        EXPECT_EQ(freed_at[static_cast<size_t>(id)], kNever) << "freed twice";
        freed_at[static_cast<size_t>(id)] = at;
      }
    }
    EXPECT_EQ(freed_at, last_use);  // never: what is held
    EXPECT_EQ(seconds,
              table.clear_s + table.step_s + micro_batches * seconds_of(table, operations));
  }
}

TEST(Lower, RefusesWhatIsNoSchedule) {
  const CostTable table = two_layers();
  const auto text_of = [&](const Operations& operations) {
    return error_text<InternalError>([&] { lower(table, operations, 1, 0); });
  };
  EXPECT_NE(text_of({{ForwardAll, 1}}).find("uses layer 1 before it is run"), std::string::npos);
  EXPECT_NE(text_of({{Loss, 2}}).find("uses layer 2 before it is run"), std::string::npos);
  EXPECT_NE(text_of({{ForwardKeepInput, 0}, {ForwardKeepInput, 1}, {Loss, 2}, {Backward, 1}})
                .find("goes back over layer 1 before it was kept"),
            std::string::npos);
  EXPECT_NE(text_of({{ForwardAll, 0}}).find("leaves an input unused"), std::string::npos);
  EXPECT_NE(error_text<InternalError>([] {
              lower(CostTable{}, {}, 1, 0);
            }).find("a cost table without layers"),
            std::string::npos);
}

}  // namespace penstock::plan
