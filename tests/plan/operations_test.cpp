// The simple schedules, and what is counted on any schedule.
#include "penstock/plan/operations.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "penstock/base/text.h"

#include "plan/random_chains.h"
#include "plan/schedule_checks.h"

namespace penstock::plan {

namespace {

using enum OperationKind;
using test::Dice;
using test::homogeneous;

const test::Stage kStage{.forward = 1, .backward = 2, .size = 1, .kept = 3};

}  // namespace

TEST(Operations, HaveNames) {
  EXPECT_EQ(operation_name(ForwardAll), "forward_all");
  EXPECT_EQ(operation_name(ForwardKeepInput), "forward_keep_input");
  EXPECT_EQ(operation_name(ForwardDrop), "forward_drop");
  EXPECT_EQ(operation_name(Loss), "loss");
  EXPECT_EQ(operation_name(Backward), "backward");
}

TEST(Operations, KeepEverythingRunsEachLayerOnce) {
  EXPECT_EQ(
      keep_everything(homogeneous(2, kStage)),
      (Operations{{ForwardAll, 0}, {ForwardAll, 1}, {Loss, 2}, {Backward, 1}, {Backward, 0}}));
}

TEST(Operations, RecomputeEverythingRecomputesEachLayerBeforeItsBackward) {
  EXPECT_EQ(recompute_everything(homogeneous(2, kStage)),
            (Operations{{ForwardKeepInput, 0},
                        {ForwardKeepInput, 1},
                        {Loss, 2},
                        {ForwardAll, 1},
                        {Backward, 1},
                        {ForwardAll, 0},
                        {Backward, 0}}));
}

TEST(Operations, SegmentsKeepTheLastAndRecomputeTheOthers) {
  EXPECT_EQ(recompute_segments(homogeneous(4, kStage)),
            (Operations{{ForwardKeepInput, 0},
                        {ForwardDrop, 1},
                        {ForwardAll, 2},
                        {ForwardAll, 3},
                        {Loss, 4},
                        {Backward, 3},
                        {Backward, 2},
                        {ForwardAll, 0},
                        {ForwardAll, 1},
                        {Backward, 1},
                        {Backward, 0}}));
  // One layer is one segment, and that is the last.
  EXPECT_EQ(recompute_segments(homogeneous(1, kStage)), keep_everything(homogeneous(1, kStage)));
}

TEST(Operations, SimpleSchedulesAreSoundForEveryLength) {
  Dice dice(50);
  for (int64_t layers = 1; layers <= 50; ++layers) {
    SCOPED_TRACE(cat(layers, " layers"));
    const CostTable table = test::rich_chain(dice, layers, {.has_held = false, .most_carried = 0});
    for (const Operations& operations :
         {keep_everything(table), recompute_everything(table), recompute_segments(table)}) {
      test::expect_contract(table, operations);
      test::peak_of(table, operations);
    }
    EXPECT_EQ(test::peak_of(table, keep_everything(table)), test::keep_all_bytes(table));
  }
}

TEST(Operations, SegmentsAreAboutTheSquareRootOfTheLength) {
  for (int32_t layers = 1; layers <= 50; ++layers) {
    SCOPED_TRACE(cat(layers, " layers"));
    const CostTable table = homogeneous(static_cast<size_t>(layers), kStage);
    const Operations operations = recompute_segments(table);
    std::map<OperationKind, int> count;
    for (const Operation& operation : operations) {
      ++count[operation.kind];
    }
    const int segments = count[ForwardKeepInput] + 1;
    EXPECT_NEAR(segments, std::sqrt(layers), 0.5);
    // No layer runs more than twice, and the last segment, as long as the others give or take one,
    // runs once.
    const int64_t recomputed = recomputed_forwards(table, operations);
    EXPECT_EQ(recomputed, count[ForwardKeepInput] + count[ForwardDrop]);
    EXPECT_NEAR(static_cast<double>(layers - recomputed), double{1} * layers / segments, 1);
    // A stored input per segment, and one segment kept: what the square root is for.
    const int64_t longest = (layers + segments - 1) / segments;
    EXPECT_LE(test::peak_of(table, operations), 1 + segments + 3 * longest + 2);
  }
}

TEST(Operations, SecondsCountEveryRunAndTheSaveModeOfEachLayer) {
  CostTable table = test::make_chain(1,
                                     {{.forward = 10, .backward = 20, .size = 1, .kept = 1},
                                      {.forward = 30, .backward = 40, .size = 1, .kept = 1}});
  table.loss.seconds = 5;
  // Keeping costs more than running plainly, a second save mode less than the first, and a run
  // without its output least of all.
  table.layers[0].modes[0].forward_s = 11;
  table.layers[0].modes[0].recompute_s = 9;
  table.layers[0].modes.push_back(
      {.name = "b", .forward_s = 12, .backward_s = 21, .needs_output = false, .recompute_s = 7});
  EXPECT_EQ(seconds_of(table, keep_everything(table)), 11 + 30 + 5 + 40 + 20);
  // The first save mode needs the output, so that it is not left out.
  EXPECT_EQ(seconds_of(table, recompute_everything(table)), 10 + 30 + 5 + 30 + 40 + 11 + 20);
  const Operations second_mode{{ForwardKeepInput, 0},
                               {ForwardAll, 1},
                               {Loss, 2},
                               {Backward, 1},
                               {ForwardAll, 0, 1},
                               {Backward, 0}};
  EXPECT_EQ(seconds_of(table, second_mode), 10 + 30 + 5 + 40 + 7 + 21);
  // Kept from the beginning, the second save mode runs in full.
  const Operations kept{
      {ForwardAll, 0, 1}, {ForwardAll, 1}, {Loss, 2}, {Backward, 1}, {Backward, 0}};
  EXPECT_EQ(seconds_of(table, kept), 12 + 30 + 5 + 40 + 21);
}

TEST(Operations, OnlyAForwardRightBeforeItsBackwardLeavesTheOutputOut) {
  CostTable table = homogeneous(2, kStage);
  table.layers[0].modes[0].needs_output = false;
  const Operations recomputing = recompute_everything(table);
  for (size_t i = 0; i < recomputing.size(); ++i) {
    const bool expected = recomputing[i] == Operation{ForwardAll, 0};
    EXPECT_EQ(leaves_output_out(table, recomputing, i), expected) << i;
  }
  const Operations once = keep_everything(table);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_FALSE(leaves_output_out(table, once, i)) << i;
  }
}

TEST(Operations, RecomputedForwardsAreThoseBeyondTheFirst) {
  const CostTable table = homogeneous(9, kStage);
  EXPECT_EQ(recomputed_forwards(table, keep_everything(table)), 0);
  EXPECT_EQ(recomputed_forwards(table, recompute_everything(table)), 9);
  EXPECT_EQ(recomputed_forwards(table, recompute_segments(table)), 6);
}

}  // namespace penstock::plan
