// What is known of pipeline schedules, from the one simulator.
#include "penstock/plan/bare_pipeline.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/verify.h"

namespace penstock::plan {

namespace {

using schedule::Kind;

constexpr BareTimes kUnits{.forward = 1, .backward_input = 1, .backward_weight = 1};

double step_of(Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks = 2) {
  return run_bare_pipeline(kind, {ranks, micro_batches, chunks}, kUnits).step;
}

std::vector<double> in_flight(Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks = 2) {
  return run_bare_pipeline(kind, {ranks, micro_batches, chunks}, kUnits).in_flight;
}

}  // namespace

TEST(BarePipeline, TakesTheKnownSteps) {
  EXPECT_DOUBLE_EQ(step_of(Kind::GPipe, 4, 8), 33);
  EXPECT_DOUBLE_EQ(step_of(Kind::OneFOneB, 4, 8), 33);
  EXPECT_DOUBLE_EQ(step_of(Kind::Interleaved, 4, 8, 2), 28.5);
  EXPECT_DOUBLE_EQ(step_of(Kind::Interleaved, 4, 8, 4), 26.25);
  EXPECT_DOUBLE_EQ(step_of(Kind::ZeroBubbleH1, 4, 8), 27);
  EXPECT_DOUBLE_EQ(step_of(Kind::GPipe, 8, 32), 117);
  EXPECT_DOUBLE_EQ(step_of(Kind::OneFOneB, 8, 32), 117);
  EXPECT_DOUBLE_EQ(step_of(Kind::Interleaved, 8, 32, 2), 106.5);
  EXPECT_DOUBLE_EQ(step_of(Kind::Interleaved, 8, 32, 4), 101.25);
  EXPECT_DOUBLE_EQ(step_of(Kind::ZeroBubbleH1, 8, 32), 103);
}

TEST(BarePipeline, HasTheKnownNumbersInFlight) {
  using Numbers = std::vector<double>;
  EXPECT_EQ(in_flight(Kind::GPipe, 4, 8), Numbers(4, 8));
  EXPECT_EQ(in_flight(Kind::OneFOneB, 4, 8), (Numbers{4, 3, 2, 1}));
  EXPECT_EQ(in_flight(Kind::Interleaved, 4, 8, 2), (Numbers{5.5, 4.5, 3.5, 2.5}));
  EXPECT_EQ(in_flight(Kind::ZeroBubbleH1, 4, 8), Numbers(4, 4));
  EXPECT_EQ(in_flight(Kind::OneFOneB, 8, 32), (Numbers{8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(in_flight(Kind::Interleaved, 8, 32, 2),
            (Numbers{11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5}));
  EXPECT_EQ(in_flight(Kind::Interleaved, 8, 32, 4),
            (Numbers{9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25}));
  EXPECT_EQ(in_flight(Kind::ZeroBubbleH1, 8, 32), Numbers(8, 8));
}

// The zero-bubble paper's calculated bubbles of 1F1B and ZB-H1, from times measured on A100s.
TEST(BarePipeline, HasThePublishedBubbles) {
  struct Row {
    int32_t ranks, micro_batches;
    double forward, backward_input, backward_weight, transfer, one_f_one_b, zb_h1;
  };
  const Row rows[] = {{8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585},
                      {8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242},
                      {8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674},
                      {8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323},
                      {8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045},
                      {8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554}};
  for (const Row& row : rows) {
    const BareTimes times{row.forward, row.backward_input, row.backward_weight, row.transfer};
    const auto bubble = [&](Kind kind) {
      return run_bare_pipeline(kind, {row.ranks, row.micro_batches, 1}, times).bubble;
    };
    EXPECT_NEAR(bubble(Kind::OneFOneB), row.one_f_one_b, 5e-5) << row.micro_batches;
    EXPECT_NEAR(bubble(Kind::ZeroBubbleH1), row.zb_h1, 5e-5) << row.micro_batches;
  }
}

// The pipeline fills once and drains once for all updates between.
TEST(BarePipeline, AsynchronousOnesFillAndDrainOnce) {
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDream2BW, Kind::PipeMare}) {
    for (const int32_t ranks : {1, 2, 4}) {
      for (const int32_t micro_batches : {4, 7}) {
        for (const int32_t updates : {1, 2, 16}) {
          const BarePipeline bare = run_bare_pipeline(
              kind, {.ranks = ranks, .micro_batches = micro_batches, .updates = updates}, kUnits);
          const double all = micro_batches * updates;
          EXPECT_DOUBLE_EQ(bare.step, (all + ranks - 1) * 3 / updates) << ranks << " " << updates;
          EXPECT_DOUBLE_EQ(bare.bubble, (ranks - 1) / (all + ranks - 1)) << ranks << " " << updates;
          EXPECT_EQ(bare.in_flight, in_flight(Kind::OneFOneB, ranks, micro_batches * updates));
        }
      }
    }
  }
}

// A rank's peak is that of its parameters, what micro-batches hold, and a copy for each version but
// the newest.
TEST(BarePipeline, AsynchronousProgramsHoldTheirVersions) {
  constexpr int64_t kWeights = 1000;  // beside which all else is small
  CostTable table;
  for (int i = 0; i < 4; ++i) {
    table.layers.push_back({.name = cat("layer ", i),
                            .input_bytes = 1,
                            .output_bytes = 1,
                            .modes = {{.saved_bytes = 1}}});
  }
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDream2BW, Kind::PipeMare}) {
    for (const int32_t micro_batches : {1, 2, 4}) {
      if (kind == Kind::PipeDream2BW && micro_batches < 4) {
        continue;
      }
      Pipeline pipeline{.schedule = schedule::make_schedule(
                            kind, {.ranks = 4, .micro_batches = micro_batches, .updates = 8}),
                        .cuts = {0, 1, 2, 3, 4},
                        .weight_bytes = std::vector<int64_t>(4, kWeights)};
      pipeline.operations = keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
      const program::Program program =
          lower_pipeline(table, pipeline, {.ranks = std::vector<RankHoldings>(4)}, 0);
      const program::Verdict verdict = program::verify(program);
      ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
      EXPECT_EQ(program.mixes_weights, kind == Kind::PipeMare);
      const std::vector<int32_t> versions = schedule::most_versions(pipeline.schedule);
      for (size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(verdict.peaks[rank].bytes / kWeights, versions[rank] - 1)
            << schedule::kind_name(kind) << ", rank " << rank << ", " << micro_batches;
      }
    }
  }
}

}  // namespace penstock::plan
