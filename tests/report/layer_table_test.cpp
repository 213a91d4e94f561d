#include "penstock/report/layer_table.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

#include "report/pipeline_example.h"
#include "report/step_example.h"

namespace penstock::report {
namespace {

using program::Program;
using program::Timeline;

TEST(LayerTable, SumsAreThoseOfTheInstructions) {
  const Program program = example_program({.ranks = 2});
  const Timeline predicted = program::simulate(program);
  const Timeline measured = example_measurement(program);
  const StepSums sums = step_sums({"", program, predicted, &measured});
  ASSERT_EQ(sums.layers.size(), 6u);
  const LayerRow& first = sums.layers[0];
  EXPECT_EQ(first.name, "block 0 attention");
  // Two micro-batches on two ranks, each once in the sweep and once before the backward.
  EXPECT_EQ(first.num_forwards, 8);
  EXPECT_EQ(first.num_again, 4);
  EXPECT_EQ(first.num_keep_nothing, 4);
  EXPECT_EQ(first.num_kept, std::vector<int64_t>{4});
  EXPECT_NEAR(first.forward.predicted, 8 * 2e-3, 1e-12);
  EXPECT_NEAR(first.backward.predicted, 4 * 4e-3, 1e-12);
  EXPECT_EQ(sums.layers[5].num_again, 0);

  double all = 0;
  for (const program::RankTimeline& rank : measured.ranks) {
    for (const program::Span& span : rank.spans) {
      all += span.end - span.start;
    }
  }
  EXPECT_NEAR(sums.all.measured, all, 1e-12);
  double parts = sums.forward.measured + sums.backward.measured;
  for (const OpRow& row : sums.others) {
    parts += row.seconds.measured;
  }
  EXPECT_NEAR(parts, all, 1e-12);
  EXPECT_NEAR(sums.again.predicted, 4 * (2e-3 + 3e-3 + 2e-3), 1e-12);
  EXPECT_EQ(sums.step.predicted, predicted.seconds);
  EXPECT_EQ(sums.step.measured, measured.seconds);
}

TEST(LayerTable, SplitBackwardsAreBackwardsAndTransfersAreNoWork) {
  const Program program = pipeline_program(3);
  const Timeline predicted = program::simulate(program);
  const StepSums sums = step_sums({"", program, predicted});
  EXPECT_NEAR(sums.layers[1].backward.predicted, 3 * (3e-3 + 2.5e-3), 1e-12);
  EXPECT_NEAR(sums.backward.predicted, 4 * 3 * 5.5e-3, 1e-12);
  ASSERT_EQ(sums.transfers.size(), 3u);
  EXPECT_EQ(sums.transfers[0].name, "send");
  EXPECT_EQ(sums.transfers[0].count, 6);
  EXPECT_NEAR(sums.transfers[0].seconds.predicted, 6e-3, 1e-12);
  EXPECT_EQ(sums.transfers[1].name, "receive");
  EXPECT_EQ(sums.transfers[2].name, "gather");
  EXPECT_NEAR(sums.transfers[2].seconds.predicted, 2e-3, 1e-12);
  double work = sums.forward.predicted + sums.backward.predicted;
  for (const OpRow& row : sums.others) {
    work += row.seconds.predicted;
  }
  EXPECT_NEAR(sums.all.predicted, work, 1e-12);
}

TEST(LayerTable, OtherWorkIsNamedOnce) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const StepSums sums = step_sums({"", program, predicted});
  ASSERT_EQ(sums.others.size(), 3u);
  EXPECT_EQ(sums.others[0].name, "loss");
  EXPECT_EQ(sums.others[0].count, 2);
  EXPECT_EQ(sums.others[1].name, "step");
  EXPECT_EQ(sums.others[2].name, "squares");
  EXPECT_EQ(sums.all.measured, 0);
}

TEST(LayerTable, WorkThatTakesNoTimeHasNoRow) {
  const Program program = pipeline_program(2);  // its drops, squares and decisions take none
  const Timeline predicted = program::simulate(program);
  const auto names_of = [](const std::vector<OpRow>& rows) {
    std::vector<std::string> names;
    for (const OpRow& row : rows) {
      names.emplace_back(row.name);
    }
    return names;
  };
  EXPECT_EQ(names_of(step_sums({"", program, predicted}).others),
            (std::vector<std::string>{"loss", "step"}));
  Timeline measured = predicted;
  measured.ranks[0].spans.back().end += 1e-3;
  const auto& instructions = program.ranks[1].instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].op == program::Op::Squares) {
      measured.ranks[1].spans[i].end += 1e-6;
    }
  }
  EXPECT_EQ(names_of(step_sums({"", program, predicted, &measured}).others),
            (std::vector<std::string>{"loss", "step", "squares"}));
}

TEST(LayerTable, PrintsMeasuredBesidePredicted) {
  const Program program = example_program({.layers = 2, .micro_batches = 1, .recomputed = 1});
  const Timeline predicted = program::simulate(program);
  Program slower = program;
  for (program::Instruction& instruction : slower.ranks[0].instructions) {
    instruction.seconds *= 1.5;
  }
  const Timeline measured = program::simulate(slower);
  EXPECT_EQ(measured_beside_predicted({"A step", program, predicted, &measured}), R"(A step

layer                forwards  recomputed  kept                  forward  measured  ratio  backward  measured  ratio
--------------------------------------------------------------------------------------------------------------------
0 block 0 attention         2           1  1 x all, 1 x nothing   4.0 ms    6.0 ms   1.50    4.0 ms    6.0 ms   1.50
1 block 0 mlp               1           0  1 x all                3.0 ms    4.5 ms   1.50    6.0 ms    9.0 ms   1.50
--------------------------------------------------------------------------------------------------------------------
all layers                                                        7.0 ms   10.5 ms   1.50   10.0 ms   15.0 ms   1.50

                        predicted  measured  ratio
--------------------------------------------------
forward                    7.0 ms   10.5 ms   1.50
  of it recomputed         2.0 ms    3.0 ms   1.50
backward                  10.0 ms   15.0 ms   1.50
loss                       6.0 ms    9.0 ms   1.50
step                       7.0 ms   10.5 ms   1.50
squares                    1.0 ms    1.5 ms   1.50
all work                  31.0 ms   46.5 ms   1.50
--------------------------------------------------
step, beginning to end    31.0 ms   46.5 ms   1.50

peak    predicted   measured  ratio     limit
---------------------------------------------
rank 0  464.0 MiB  464.0 MiB   1.00  1.00 GiB
)");
}

TEST(LayerTable, WithoutAMeasurementThereIsOnlyThePrediction) {
  Program program = example_program({});
  program.ranks[0].limit_bytes = 0;
  const Timeline predicted = program::simulate(program);
  const std::string text = measured_beside_predicted({"", program, predicted});
  EXPECT_EQ(text.find("measured"), std::string::npos);
  EXPECT_EQ(text.find("ratio"), std::string::npos);
  EXPECT_NE(text.find("rank 0  537.0 MiB   none"), std::string::npos) << text;
}

TEST(LayerTable, RatiosThatSayNothingAreADash) {
  EXPECT_EQ(ratio_text(2, 3), "1.50");
  EXPECT_EQ(ratio_text(0, 3), "-");
  EXPECT_EQ(ratio_text(2, 0), "-");
}

TEST(LayerTable, TimelinesOfOtherProgramsAreRefused) {
  const Timeline other = program::simulate(example_program({.layers = 4}));
  EXPECT_THROW(measured_beside_predicted({"", example_program({}), other}), InternalError);
}

}  // namespace
}  // namespace penstock::report
