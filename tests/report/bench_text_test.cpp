#include "penstock/report/bench_text.h"

#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"

namespace penstock::report {
namespace {

constexpr int64_t kTokens = 64 * 1024;
constexpr double kFlopPerToken = 6.0 * 124439808 + 12.0 * 12 * 768 * 1024;  // GPT-2's smallest

StepFigures small_figures(const std::string& who, double tokens_per_second) {
  return step_figures(who, tokens_per_second, kTokens, kFlopPerToken);
}

TEST(BenchText, FiguresFollowFromTheRate) {
  const StepFigures figures = step_figures("penstock", 500000, kTokens, 1e9, 1e15);
  EXPECT_DOUBLE_EQ(figures.step_s, 0.131072);
  EXPECT_DOUBLE_EQ(figures.tflops, 500);
  EXPECT_DOUBLE_EQ(figures.peak_tflops, 1000);
  EXPECT_DOUBLE_EQ(figures.mfu, 0.5);
  EXPECT_DOUBLE_EQ(small_figures("penstock", 500000).peak_tflops, 989.5);
}

TEST(BenchText, ARateOfNothingIsRefused) {
  EXPECT_THROW(small_figures("penstock", 0), InternalError);
  EXPECT_THROW(small_figures("penstock", std::numeric_limits<double>::quiet_NaN()), InternalError);
  EXPECT_THROW(step_figures("penstock", 1, 1, 1, 0), InternalError);
}

TEST(BenchText, TheRatioIsOverTheFastestPeer) {
  const StepFigures ours = small_figures("penstock", 600000);
  const auto best = over_best_peer(
      ours,
      {small_figures("eager", 400000), small_figures("compile", 500000), StepFigures{"llm.c"}});
  ASSERT_TRUE(best);
  EXPECT_EQ(best->who, "compile");
  EXPECT_DOUBLE_EQ(best->ratio, 1.2);
  EXPECT_FALSE(over_best_peer(ours, {}));
  EXPECT_FALSE(over_best_peer(ours, {StepFigures{"failed"}}));
}

TEST(BenchText, PrintsOursBesideThePeers) {
  StepFigures ours = small_figures("penstock", 600000);
  ours.joules_per_token = 0.00115;
  ours.watts = 690.4;
  ours.peak_bytes = int64_t{20} << 30;
  StepFigures peer = small_figures("torch compile", 524874);
  peer.watts = 695;
  EXPECT_EQ(
      step_text(ours, {peer}),
      R"(               tokens/s  step ms  TFLOP/s              MFU  mJ/token    W  peak memory
--------------------------------------------------------------------------------------
penstock        600,000   109.23    515.9  52.1 % of 989.5     1.150  690    20.00 GiB
torch compile   524,874   124.86    451.3  45.6 % of 989.5         -  695            -

1.143 times torch compile, the fastest peer
)");
}

TEST(BenchText, WithoutMetersOrPeersTheTableHasNoColumnsForThem) {
  const std::string text = step_text(small_figures("penstock", 600000), {});
  EXPECT_EQ(text.find("MHz"), std::string::npos);
  EXPECT_EQ(text.find("mJ"), std::string::npos);
  EXPECT_EQ(text.find("peer"), std::string::npos);
}

TEST(BenchText, JsonHasEveryFigureAndNullForThoseNotTaken) {
  StepFigures ours = small_figures("penstock", 600000);
  ours.joules_per_token = 0.00115;
  const auto json = step_json(ours, {small_figures("torch compile", 500000)});
  EXPECT_EQ(json["ours"]["who"], "penstock");
  EXPECT_EQ(json["ours"]["joules_per_token"], 0.00115);
  EXPECT_TRUE(json["ours"]["watts"].is_null());
  EXPECT_EQ(json["peers"].size(), 1u);
  EXPECT_EQ(json["best_peer"], "torch compile");
  EXPECT_DOUBLE_EQ(json["ratio"].get<double>(), 1.2);
  const auto alone = step_json(ours, {});
  EXPECT_TRUE(alone["best_peer"].is_null());
  EXPECT_TRUE(alone["ratio"].is_null());
  EXPECT_TRUE(alone["peers"].is_array());
}

KernelBreakdown two_steps() {
  KernelBreakdown kernels;
  kernels.rows = {{"gemm", 24, 0.120, 0.100}, {"norm", 25, 0.060, {}}, {"memset", 2, 0.020, {}}};
  set_shares(kernels.rows);
  kernels.num_steps = 2;
  kernels.busy_s = 0.19;
  kernels.span_s = 0.20;
  return kernels;
}

TEST(BenchText, SharesAreOfAllRows) {
  const KernelBreakdown kernels = two_steps();
  EXPECT_DOUBLE_EQ(kernels.rows[0].share, 0.6);
  EXPECT_DOUBLE_EQ(kernels.rows[2].share, 0.1);
  std::vector<KernelRow> idle = {{"nothing", 1, 0, {}}};
  set_shares(idle);
  EXPECT_EQ(idle[0].share, 0);
}

TEST(BenchText, PrintsKernelsPerStep) {
  EXPECT_EQ(kernel_text(two_steps()),
            R"(kernels of a step  count       ms    share  floor ms  over floor
----------------------------------------------------------------
gemm                  12   60.000   60.0 %    50.000        1.20
norm                12.5   30.000   30.0 %         -           -
memset                 1   10.000   10.0 %         -           -
----------------------------------------------------------------
all                 25.5  100.000  100.0 %         -           -
the device worked 95.00 ms of 100.00 ms a step, and waited 5.0 %
)");
}

TEST(BenchText, TheFloorIsSummedWhereEveryRowHasOne) {
  KernelBreakdown kernels;
  kernels.rows = {{"a", 1, 0.003, 0.002}, {"b", 1, 0.001, 0.001}};
  set_shares(kernels.rows);
  EXPECT_NE(
      kernel_text(kernels).find("all                    2  4.000  100.0 %     3.000        1.33"),
      std::string::npos)
      << kernel_text(kernels);
}

TEST(BenchText, RowsBeyondTheLimitBecomeOne) {
  const std::string text = kernel_text(two_steps(), 1);
  EXPECT_NE(text.find("2 others            13.5   40.000   40.0 %"), std::string::npos) << text;
  EXPECT_EQ(text.find("norm"), std::string::npos);
  // One row in place of one row would hide its name for nothing.
  EXPECT_NE(kernel_text(two_steps(), 2).find("memset"), std::string::npos);
}

TEST(BenchText, LongKernelNamesAreCut) {
  KernelBreakdown kernels;
  kernels.rows = {{std::string(100, 'k'), 1, 0.001, {}, 1}};
  const std::string text = kernel_text(kernels);
  EXPECT_NE(text.find(std::string(61, 'k') + "...  "), std::string::npos) << text;
  EXPECT_EQ(text.find("floor"), std::string::npos);
  EXPECT_EQ(text.find("waited"), std::string::npos);
}

TEST(BenchText, KernelJsonIsPerStep) {
  const auto json = kernel_json(two_steps());
  EXPECT_EQ(json["num_steps"], 2);
  EXPECT_DOUBLE_EQ(json["kernels"][0]["seconds"].get<double>(), 0.060);
  EXPECT_DOUBLE_EQ(json["kernels"][1]["count"].get<double>(), 12.5);
  EXPECT_DOUBLE_EQ(json["kernels"][0]["floor_s"].get<double>(), 0.050);
  EXPECT_TRUE(json["kernels"][1]["floor_s"].is_null());
  EXPECT_DOUBLE_EQ(json["span_s"].get<double>(), 0.1);
  EXPECT_THROW(kernel_json({.rows = {}, .num_steps = 0}), InternalError);
}

}  // namespace
}  // namespace penstock::report
