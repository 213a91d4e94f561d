#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/model/gpt2/facts.h"
#include "penstock/model/gpt2/floor.h"

namespace penstock::model {
namespace {

using report::by_group;
using report::DeviceRates;
using report::group_text;
using report::kernel_group;
using report::KernelBreakdown;
using report::KernelRow;
using report::StepWork;

struct Gpt2Step {
  config::ModelOptions model;
  report::StepSize size;
};

std::vector<StepWork> work_of(const Gpt2Step& step, const DeviceRates& rates = {}) {
  return gpt2_work(step.model, step.size, rates);
}

// A line of h200_floor.csv: GPT-2 on an H200, sequences of 1024, bfloat16.
struct FloorCase {
  const char* name;
  int64_t layers, width, batch;
  double gemm_ms, gemm_tflops, elementwise_ms, logits_ms, adamw_ms;

  Gpt2Step step() const {
    return {.model = {.layers = layers, .width = width, .context = 1024, .vocabulary = 50257},
            .size = {.batch = batch}};
  }
};

constexpr FloorCase kCases[] = {{"124M", 12, 768, 64, 70.03, 694, 5.66, 3.09, 0.87},
                                {"355M", 24, 1024, 32, 95.83, 725, 7.55, 1.55, 2.49},
                                {"774M", 36, 1280, 16, 109.11, 696, 7.08, 0.77, 5.44},
                                {"1558M", 48, 1600, 8, 109.80, 696, 5.90, 0.39, 10.94},
                                {"1558M, 32", 48, 1600, 32, 439.84, 695, 23.59, 1.55, 10.94}};

double sum_of(const std::vector<StepWork>& work,
              const std::set<std::string>& groups,
              double StepWork::*figure) {
  return std::accumulate(work.begin(), work.end(), 0.0, [&](double sum, const StepWork& one) {
    return groups.count(one.group) > 0 ? sum + one.*figure : sum;
  });
}

double floor_ms(const std::vector<StepWork>& work, const std::set<std::string>& groups) {
  return 1e3 * sum_of(work, groups, &StepWork::floor_s);
}

const std::set<std::string> kAttention = {"attention forward", "attention backward"};

const config::ModelOptions kSmall{.layers = 12, .width = 768, .context = 1024, .vocabulary = 50257};

TEST(Gpt2Facts, ParametersAreThoseOfThePublishedModels) {
  EXPECT_EQ(gpt2_parameters(kSmall), 124439808);
  EXPECT_EQ(gpt2_parameters({.layers = 24, .width = 1024, .context = 1024, .vocabulary = 50257}),
            354823168);
  EXPECT_EQ(gpt2_parameters({.layers = 48, .width = 1600, .context = 1024, .vocabulary = 50257}),
            1557611200);
}

TEST(Gpt2Facts, AHeadOfItsOwnIsATableMoreAndNoMoreWork) {
  config::ModelOptions untied = kSmall;
  untied.tied = false;
  EXPECT_EQ(gpt2_parameters(untied), 124439808 + 50257 * 768);
  EXPECT_DOUBLE_EQ(gpt2_flop_per_token(untied), gpt2_flop_per_token(kSmall));
}

TEST(Gpt2Facts, FlopPerTokenIsSixNPlusAttention) {
  EXPECT_DOUBLE_EQ(gpt2_flop_per_token(kSmall), 6.0 * 124439808 + 12.0 * 12 * 768 * 1024);
}

TEST(Gpt2Floor, FlopsAreSixForEveryWeightOfAGemmAndFourteenForAttention) {
  const std::vector<StepWork> work = work_of(kCases[0].step());
  const double tokens = 64.0 * 1024;
  const double weights = 12.0 * 12 * 768 * 768 + 50304.0 * 768;
  const double gemms = sum_of(work, {"GEMMs"}, &StepWork::flops);
  const double attention = sum_of(work, kAttention, &StepWork::flops);
  EXPECT_DOUBLE_EQ(gemms, 6 * weights * tokens);
  EXPECT_DOUBLE_EQ(attention, 0.5 * 14 * 12 * 768 * 1024 * tokens);  // half is masked

  // 6 N + 12 L d T has the masked half, not the scores made again, and vectors among the weights.
  const double usual = gpt2_flop_per_token(kCases[0].step().model) * tokens;
  EXPECT_NEAR((gemms + 2 * attention * 12 / 14) / usual, 1, 0.01);
}

TEST(Gpt2Floor, GemmsAreThoseOfTheMeasuredFloors) {
  for (const FloorCase& one : kCases) {
    const DeviceRates rates{.gemm_flops = 1e12 * one.gemm_tflops};
    const double ms = floor_ms(work_of(one.step(), rates), {"GEMMs"});
    EXPECT_NEAR(ms / one.gemm_ms, 1, 0.005) << one.name;
  }
}

TEST(Gpt2Floor, BytesAreThoseOfTheMeasuredFloors) {
  for (const FloorCase& one : kCases) {
    const std::vector<StepWork> work = work_of(one.step());
    EXPECT_NEAR(floor_ms(work, {"optimizer"}) / one.adamw_ms, 1, 0.01) << one.name;
    EXPECT_NEAR(floor_ms(work, {"cross-entropy"}) / one.logits_ms, 1, 0.01) << one.name;
    // There, 20 planes of [rows, width] a layer. Here 19, as a bias gradient rides with each norm,
    // and the last norm.
    const double elementwise = floor_ms(work, {"norm forward", "norm backward", "column sums"});
    EXPECT_NEAR(elementwise / one.elementwise_ms, 1, 0.05) << one.name;
    EXPECT_LT(elementwise, one.elementwise_ms) << one.name;
  }
}

TEST(Gpt2Floor, AdamWMovesThirtyBytesAParameterWithACopyAndTwentyEightWithout) {
  Gpt2Step step = kCases[0].step();
  const double parameters = static_cast<double>(gpt2_parameters(step.model));
  EXPECT_DOUBLE_EQ(sum_of(work_of(step), {"optimizer"}, &StepWork::bytes), 30 * parameters);
  step.size.element_bytes = 4;
  EXPECT_DOUBLE_EQ(sum_of(work_of(step), {"optimizer"}, &StepWork::bytes), 28 * parameters);
}

TEST(Gpt2Floor, AnEmbeddingThatIsNotTheHeadsIsUpdatedAndClearedAsWell) {
  const Gpt2Step tied = kCases[0].step();
  Gpt2Step untied = tied;
  untied.model.tied = false;
  const double table = 50257.0 * 768;
  const auto more = [&](const char* group) {
    return sum_of(work_of(untied), {group}, &StepWork::bytes) -
           sum_of(work_of(tied), {group}, &StepWork::bytes);
  };
  EXPECT_DOUBLE_EQ(more("optimizer"), 30 * table);
  EXPECT_DOUBLE_EQ(more("gradient norm"), 4 * table);
  EXPECT_DOUBLE_EQ(more("copies and memsets"), 4 * table);
  EXPECT_DOUBLE_EQ(more("cross-entropy"), 0);
}

TEST(Gpt2Floor, RatesAreParameters) {
  const Gpt2Step step = kCases[0].step();
  const DeviceRates twice{.gemm_flops = 1600e12, .attention_flops = 1600e12, .bytes = 8534e9};
  const std::vector<StepWork> slow = work_of(step), fast = work_of(step, twice);
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_DOUBLE_EQ(slow[i].floor_s, 2 * fast[i].floor_s) << slow[i].name;
  }
}

TEST(Gpt2Floor, AStepWithoutSequencesIsRefused) {
  EXPECT_THROW(work_of({.model = kCases[0].step().model}), InternalError);
}

TEST(Gpt2Floor, KernelsBelongToTheGroupOfTheirName) {
  const std::multimap<std::string, std::string> names = {
      {"GEMMs", "nvjet_sm90_tst_128x160_64x5_2x1_v_bz_TNT"},
      {"GEMMs", "nvjet_sm90_tss_320x128_64x3_1x2_h_bz_coopB_NTT"},
      {"GEMMs", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroup"},
      {"GEMMs", "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nt>"},
      {"GEMMs", "cublasLt::splitKreduce_kernel"},
      {"attention forward", "cudnn_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1"},
      {"attention backward", "cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_128x64x64_1x1x1"},
      {"attention backward", "cudnn::compute_dot_do_o_specialized"},
      {"attention backward", "cudnn::convert_dq_to_16bits"},
      {"norm forward", "norm_register_kernel"},
      {"norm forward", "norm_plain_kernel"},
      {"norm backward", "norm_team_backward_kernel"},
      {"norm backward", "norm_plain_backward_kernel"},
      {"GELU", "gelu_kernel"},
      {"column sums", "walk_columns"},
      {"column sums", "partial_sums_kernel"},
      {"cross-entropy", "shared_kernel"},
      {"cross-entropy", "global_kernel"},
      {"cross-entropy", "sum_kernel"},
      {"optimizer", "update_chunks"},
      {"gradient norm", "square_sums"},
      {"gradient norm", "finish_norm"},
      {"embedding", "sum_chunks"},
      {"embedding", "join_chunks"},
      {"embedding", "sum_samples"},
      {"embedding", "embed_rows"},
      {"embedding", "make_pairs"},
      {"embedding", "DeviceRadixSortOnesweepKernel"},
      {"embedding", "DeviceRadixSortHistogramKernel"},
      {"copies and memsets", "memset"},
      {"copies and memsets", "memcpy host to device"},
      {"copies and memsets", "memcpy device to host (pageable)"},
      {"copies and memsets", "vectorized_elementwise_kernel<FillFunctor>"},
      {"other", "vectorized_elementwise_kernel<CUDAFunctor_add>"},
      {"other", "my_sum_kernel_of_tomorrow"},
      {"other", ""}};
  for (const auto& [group, name] : names) {
    EXPECT_EQ(kernel_group(name), group) << name;
  }
}

TEST(Gpt2Floor, EveryGroupHasWorkAndEveryWorkAGroup) {
  std::set<std::string> groups;
  for (const StepWork& one : work_of(kCases[0].step())) {
    groups.insert(one.group);
    EXPECT_TRUE(one.flops == 0 || one.bytes == 0) << one.name;
  }
  EXPECT_EQ(groups.size(), 13u);
  for (const char* name : {"nvjet_a", "walk_columns", "gelu_kernel", "memset", "strange"}) {
    EXPECT_EQ(groups.count(std::string(kernel_group(name))), 1u) << name;
  }
}

KernelBreakdown example() {
  return {.rows = {{.name = "nvjet_a", .count = 20, .seconds = 0.006},
                   {.name = "walk_columns", .count = 4, .seconds = 0.003},
                   {.name = "nvjet_b", .count = 2, .seconds = 0.002},
                   {.name = "strange", .count = 2, .seconds = 0.001}},
          .num_steps = 2};
}

const std::vector<StepWork> kExampleWork = {
    {.name = "GEMMs, forward", .group = "GEMMs", .flops = 1, .floor_s = 0.001},
    {.name = "head GEMMs", .group = "GEMMs", .flops = 2, .floor_s = 0.002},
    {.name = "column sums", .group = "column sums", .bytes = 3, .floor_s = 0.0005},
    {.name = "optimizer", .group = "optimizer", .bytes = 4, .floor_s = 0.0005},
    {.name = "GELU", .group = "GELU"},
    {.name = "other", .group = "other"}};

TEST(Gpt2Floor, KernelsOfAGroupAddUpBesideTheFloorOfAllTracedSteps) {
  const std::vector<KernelRow> rows = by_group(example(), kExampleWork);
  ASSERT_EQ(rows.size(), 4u);  // GELU has neither kernels nor a floor
  EXPECT_EQ(rows[0].name, "GEMMs");
  EXPECT_EQ(rows[0].count, 22);
  EXPECT_DOUBLE_EQ(rows[0].seconds, 0.008);
  EXPECT_DOUBLE_EQ(*rows[0].floor_s, 0.006);
  EXPECT_DOUBLE_EQ(rows[0].share, 8.0 / 12);
  EXPECT_EQ(rows[2].name, "other");
  EXPECT_DOUBLE_EQ(*rows[2].floor_s, 0);
  EXPECT_EQ(rows[3].name, "optimizer");  // untraced, and still part of the floor
  EXPECT_EQ(rows[3].count, 0);
}

TEST(Gpt2Floor, GroupsWithoutAFloorSayNothingOfIt) {
  for (const KernelRow& row : by_group(example(), {})) {
    EXPECT_FALSE(row.floor_s) << row.name;
  }
}

TEST(Gpt2Floor, PrintsEachGroupBesideItsFloor) {
  const std::vector<KernelRow> rows = by_group(example(), kExampleWork);
  EXPECT_EQ(group_text(rows, 2, 700),
            R"(work of a step  count     ms    share  floor ms  over floor  ms above  J (by time)
----------------------------------------------------------------------------------
GEMMs              11  4.000   66.7 %     3.000        1.33     1.000         2.80
column sums         2  1.500   25.0 %     0.500        3.00     1.000         1.05
other               1  0.500    8.3 %         -           -     0.500         0.35
optimizer           0  0.000    0.0 %     0.500        0.00    -0.500         0.00
----------------------------------------------------------------------------------
all                14  6.000  100.0 %     4.000        1.50     2.000         4.20
)");
  const std::string without = group_text(by_group(example(), {}), 2);
  EXPECT_EQ(without.find("(by time)"), std::string::npos);
}

TEST(Gpt2Floor, GroupsPrintAsKernelsDo) {
  const KernelBreakdown groups{.rows = by_group(example(), kExampleWork), .num_steps = 2};
  EXPECT_NE(kernel_text(groups).find("GEMMs                 11  4.000   66.7 %     3.000"),
            std::string::npos)
      << kernel_text(groups);
}

}  // namespace
}  // namespace penstock::model
