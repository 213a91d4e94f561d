#include "penstock/report/plan_text.h"

#include <gtest/gtest.h>

#include "penstock/base/text.h"

namespace penstock::report {
namespace {

using enum plan::OperationKind;
using plan::CostTable;
using plan::Outcome;
using plan::Recompute;

constexpr int64_t kKiB = 1024;

// An embedding and `blocks` blocks with two save modes; 1 MiB of state.
CostTable small_table(int blocks) {
  CostTable table{.description = "a small chain"};
  table.layers.push_back(
      {.name = "embedding",
       .input_bytes = 1 * kKiB,
       .output_bytes = 16 * kKiB,
       .forward_s = 1e-3,
       .modes = {{.forward_s = 1e-3, .backward_s = 1e-3, .saved_bytes = 16 * kKiB}}});
  for (int block = 0; block < blocks; ++block) {
    table.layers.push_back(
        {.name = cat("block ", block),
         .input_bytes = 16 * kKiB,
         .output_bytes = 16 * kKiB,
         .forward_s = 10e-3,
         .modes = {
             {.name = "all", .forward_s = 10e-3, .backward_s = 20e-3, .saved_bytes = 128 * kKiB},
             {.name = "less", .forward_s = 10e-3, .backward_s = 24e-3, .saved_bytes = 96 * kKiB}}});
  }
  table.loss = {.name = "head", .seconds = 5e-3, .extra_bytes = 64 * kKiB};
  table.held = {{"weights", 512 * kKiB}, {"gradients", 512 * kKiB}};
  table.step_s = 2e-3;
  return table;
}

Outcome plan_of(const CostTable& table,
                Recompute recompute,
                int64_t limit_bytes = 0,
                int64_t micro_batches = 1) {
  config::PlanOptions options{.micro_batches = micro_batches,
                              .recompute = std::string(plan::recompute_name(recompute))};
  if (limit_bytes > 0) {
    options.memory = cat(limit_bytes);
  }
  return plan::make_plan({.options = options}, table, plan::Machine());
}

Outcome with_operations(const plan::Operations& operations) {
  Outcome result;
  result.plan.operations = {{{.forward = operations, .backward = {}}}};
  return result;
}

TEST(PlanText, LineOfAPlanUnderALimit) {
  const CostTable table = small_table(3);
  EXPECT_EQ(plan_line(plan_of(table, Recompute::Rotor, 1400 * kKiB)),
            "rotor, 1 forward recomputed; peak 1.4 MiB of 1.4 MiB; step 109.0 ms, 10.1 % over "
            "keeping everything");
}

TEST(PlanText, LineWithoutALimit) {
  const CostTable table = small_table(3);
  EXPECT_EQ(
      plan_line(plan_of(table, Recompute::None)),
      "none, 0 forwards recomputed; peak 1.5 MiB; step 99.0 ms, 0.0 % over keeping everything");
}

TEST(PlanText, LineWithoutSeconds) {
  CostTable table = small_table(1);
  table.loss.seconds = table.step_s = 0;
  for (plan::LayerCost& layer : table.layers) {
    layer.forward_s = 0;
    for (plan::SaveModeCost& mode : layer.modes) {
      mode.forward_s = mode.backward_s = 0;
    }
  }
  EXPECT_EQ(plan_line(plan_of(table, Recompute::None)),
            "none, 0 forwards recomputed; peak 1.2 MiB");
}

TEST(PlanText, LineOfMicroBatches) {
  const CostTable table = small_table(3);
  EXPECT_EQ(plan_line(plan_of(table, Recompute::All, 0, 2)),
            "all, 4 forwards recomputed per micro-batch; peak 1.2 MiB; step 258.0 ms, 31.6 % over "
            "keeping everything");
}

TEST(PlanText, TitleHasTheDescription) {
  CostTable table = small_table(1);
  EXPECT_EQ(plan_title(table, plan_of(table, Recompute::None)), "a small chain; none");
  EXPECT_EQ(plan_title(table, plan_of(table, Recompute::Rotor, 3 << 20)),
            "a small chain; rotor within 3.0 MiB");
  table.description = "";
  EXPECT_EQ(plan_title(table, plan_of(table, Recompute::None)), "none");
}

// What was predicted is no part of it: the picture may be of what was measured.
TEST(PlanText, TitleOfSeveralRanksIsWhatWasDecided) {
  config::PlanOptions options{
      .micro_batches = 2, .recompute = "all", .pipeline = 2, .schedule = "1f1b"};
  const CostTable table = small_table(3);
  const Outcome outcome = plan::make_plan({.options = options}, table, plan::Machine());
  const std::string title = plan_title(table, outcome);
  EXPECT_EQ(title.substr(0, title.find(", cut")), "1f1b on 2 ranks, 2 micro-batches");
  EXPECT_NE(title.find(" forwards recomputed"), std::string::npos) << title;
  for (const char* text : {"; step ", "peak", "bubble"}) {
    EXPECT_EQ(title.find(text), std::string::npos) << title;
    EXPECT_NE(plan_line(outcome).find(text), std::string::npos) << plan_line(outcome);
  }
}

TEST(PlanText, OverheadIsOverOrUnder) {
  const auto text = [](double step, double unlimited) {
    return overhead_text(Outcome{.step_s = step, .unlimited_s = unlimited});
  };
  EXPECT_EQ(text(1.5, 1), "50.0 % over keeping everything");
  EXPECT_EQ(text(1, 1), "0.0 % over keeping everything");
  EXPECT_EQ(text(0.9999, 1), "0.0 % over keeping everything");
  EXPECT_EQ(text(0.9, 1), "10.0 % under keeping everything");
  EXPECT_EQ(text(0, 0), "-");
}

TEST(PlanText, DoesNotFitIsOneLine) {
  EXPECT_EQ(does_not_fit(plan_of(small_table(3), Recompute::Rotor, 1100 * kKiB)),
            "does not fit: plan.memory = 1,126,400 bytes, but recompute = \"rotor\" needs at least "
            "1,197,056 (1.1 MiB), where backward of block 2, micro-batch 0 binds; penstock plan "
            "shows what the cheapest changes would do");
  EXPECT_EQ(does_not_fit(plan_of(small_table(3), Recompute::None, 1100 * kKiB)),
            "does not fit: plan.memory = 1,126,400 bytes, but recompute = \"none\" needs at least "
            "1,541,120 (1.5 MiB), where loss, micro-batch 0 binds; penstock plan shows what the "
            "cheapest changes would do");
}

TEST(PlanText, TableOfSaveModes) {
  const CostTable table = small_table(3);
  EXPECT_EQ(
      plan_table(table,
                 with_operations({{ForwardAll, 0},
                                  {ForwardAll, 1, /*mode=*/1},
                                  {ForwardKeepInput, 2},
                                  {ForwardAll, 3},
                                  {Loss, 4},
                                  {Backward, 3},
                                  {ForwardAll, 2},
                                  {Backward, 2},
                                  {Backward, 1},
                                  {Backward, 0}})),
      R"(layer      keeps                        forwards  held for backward  forward ms  backward ms
--------------------------------------------------------------------------------------------
embedding  all                                 1           16.0 KiB        1.00         1.00
block 0    less                                1           96.0 KiB       10.00        24.00
block 1    input; recomputed, then all         2           16.0 KiB       20.00        20.00
block 2    all                                 1          128.0 KiB       10.00        20.00
head                                           1                           5.00
)");
}

TEST(PlanText, TableOfSegments) {
  const CostTable table = small_table(3);
  EXPECT_EQ(
      plan_table(table, plan_of(table, Recompute::Sqrt)),
      R"(layer      keeps                        forwards  held for backward  forward ms  backward ms
--------------------------------------------------------------------------------------------
embedding  input; recomputed, then all         2            1.0 KiB        2.00         1.00
block 0    recomputed, then all                2                0 B       20.00        20.00
block 1    all                                 1          128.0 KiB       10.00        20.00
block 2    all                                 1          128.0 KiB       10.00        20.00
head                                           1                           5.00
)");
}

TEST(PlanText, InputsThatARecomputationKeepsAreNotHeldBefore) {
  const CostTable table = small_table(3);
  EXPECT_EQ(
      plan_table(table,
                 with_operations({{ForwardKeepInput, 0},
                                  {ForwardDrop, 1},
                                  {ForwardDrop, 2},
                                  {ForwardAll, 3},
                                  {Loss, 4},
                                  {Backward, 3},
                                  {ForwardAll, 0},
                                  {ForwardKeepInput, 1},
                                  {ForwardAll, 2},
                                  {Backward, 2},
                                  {ForwardAll, 1},
                                  {Backward, 1},
                                  {Backward, 0}})),
      R"(layer      keeps                        forwards  held for backward  forward ms  backward ms
--------------------------------------------------------------------------------------------
embedding  input; recomputed, then all         2            1.0 KiB        2.00         1.00
block 0    recomputed, then all                3                0 B       30.00        20.00
block 1    recomputed, then all                2                0 B       20.00        20.00
block 2    all                                 1          128.0 KiB       10.00        20.00
head                                           1                           5.00
)");
}

TEST(PlanText, TotalsUnderALimit) {
  const CostTable table = small_table(3);
  EXPECT_EQ(plan_totals(table, plan_of(table, Recompute::Rotor, 1400 * kKiB)),
            R"(recomputation       rotor, 1 forward recomputed
  weights           512.0 KiB
  gradients         512.0 KiB
peak                1.4 MiB of 1.4 MiB allowed
least limit         1.1 MiB (1,197,056 bytes); backward of block 2, micro-batch 0 binds there
keeping everything  99.0 ms with 1.5 MiB
step                109.0 ms predicted, 10.1 % over keeping everything
)");
}

TEST(PlanText, TotalsWithoutALimit) {
  const CostTable table = small_table(3);
  EXPECT_EQ(plan_totals(table, plan_of(table, Recompute::None)),
            R"(recomputation       none, 0 forwards recomputed
  weights           512.0 KiB
  gradients         512.0 KiB
peak                1.5 MiB, no limit
least limit         1.5 MiB (1,541,120 bytes); loss, micro-batch 0 binds there
keeping everything  99.0 ms with 1.5 MiB
step                99.0 ms predicted, 0.0 % over keeping everything
)");
}

}  // namespace
}  // namespace penstock::report
