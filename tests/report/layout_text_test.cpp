#include "penstock/report/layout_text.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

constexpr int64_t kMiB = 1 << 20;

LayoutRow planned(int64_t pipeline, int64_t data, const std::string& shard, double step_s) {
  return {.pipeline = pipeline,
          .data = data,
          .shard = shard,
          .is_feasible = true,
          .step_s = step_s,
          .peak_bytes = 100 * pipeline * kMiB,
          .sent_bytes = 10 * data * kMiB};
}

LayoutRow too_large(int64_t pipeline, int64_t data, const std::string& shard) {
  LayoutRow row = planned(pipeline, data, shard, 9);
  row.is_feasible = false;
  row.peak_bytes = 1234567;
  return row;
}

LayoutRow unplanned(int64_t pipeline, int64_t data, const std::string& shard) {
  return {.pipeline = pipeline, .data = data, .shard = shard, .why_not = "7 samples, 2 replicas"};
}

TEST(LayoutLine, NamesTheBestAndTheNext) {
  EXPECT_EQ(layout_line({planned(2, 2, "optimizer", 1.2), planned(4, 1, "none", 1.5)}),
            "plan.pipeline = 2, plan.data = 2, plan.shard = \"optimizer\": step 1.2 s, peak "
            "200.0 MiB predicted; next plan.pipeline = 4, plan.data = 1: 1.5 s, 400.0 MiB");
}

TEST(LayoutLine, NamesNoNextThatCannotRun) {
  const std::string alone =
      "plan.pipeline = 4, plan.data = 1: step 1.5 s, peak 400.0 MiB predicted";
  EXPECT_EQ(layout_line({planned(4, 1, "none", 1.5)}), alone);
  EXPECT_EQ(layout_line({planned(4, 1, "none", 1.5), too_large(1, 4, "none")}), alone);
  EXPECT_EQ(layout_line({planned(4, 1, "none", 1.5), unplanned(1, 4, "none")}), alone);
}

TEST(LayoutTable, SaysWhatWasChosenAndWhyOthersWereNot) {
  EXPECT_EQ(
      layout_table({planned(2, 2, "optimizer", 1.2),
                    planned(4, 1, "none", 1.5),
                    too_large(1, 4, "gradients"),
                    unplanned(2, 2, "parameters")}),
      "pipeline  data  shard        step       peak  sent to replicas\n"
      "-------------------------------------------------------------------------------------\n"
      "       2     2  optimizer   1.2 s  200.0 MiB          20.0 MiB  chosen\n"
      "       4     1              1.5 s  400.0 MiB\n"
      "       1     4  gradients            1.2 MiB          40.0 MiB  does not fit\n"
      "       2     2  parameters                                      7 samples, 2 replicas\n");
}

TEST(LayoutTable, ChoosesNothingWhereTheFirstDoesNotFit) {
  EXPECT_EQ(layout_table({too_large(1, 2, "none")}),
            "pipeline  data  shard  step     peak  sent to replicas\n"
            "--------------------------------------------------------------------\n"
            "       1     2  none         1.2 MiB          20.0 MiB  does not fit\n");
}

TEST(NoLayoutFits, SaysWhatTheLeanestNeeds) {
  EXPECT_EQ(
      no_layout_fits({too_large(1, 4, "parameters"), too_large(4, 1, "none")}, 1000000),
      "does not fit: of 2 layouts of the ranks the leanest, plan.pipeline = 1, plan.data = 4, "
      "plan.shard = \"parameters\", needs at least 1,234,567 bytes on a rank, and plan.memory "
      "allows 1,000,000; try more ranks, more plan.micro_batches or a smaller train.batch");
}

TEST(NoLayoutFits, SaysWhyNothingWasPlanned) {
  EXPECT_EQ(no_layout_fits({unplanned(2, 2, "none"), unplanned(4, 1, "none")}, 1000000),
            "no layout of the ranks can be planned; plan.pipeline = 2, plan.data = 2, plan.shard = "
            "\"none\": 7 samples, 2 replicas");
}

}  // namespace
}  // namespace penstock::report
