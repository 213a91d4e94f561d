// The floor of a training step on a GPU, by kind of work: the FLOPs that its GEMMs and its attention
// need and the bytes that its other kernels must move, each at the best rate that was measured; and
// which kind a traced kernel belongs to, by its name. A family says what work a step has
// (model/family.h). The floor is of a step that keeps everything: what is recomputed under a memory
// limit is time above it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/report/bench_text.h"

namespace penstock::report {

// Of an H200, in short bursts: a bfloat16 GEMM of 8192 cubed, and a copy. A long run, held down
// by its 700 W, reaches less.
struct DeviceRates {
  double gemm_flops = 800e12;       // FLOP/s
  double attention_flops = 800e12;  // attention's GEMMs, as if they were as fast
  double bytes = 4267e9;            // bytes/s, read and written together
};

struct StepSize {
  int64_t batch = 0;
  int64_t element_bytes = 2;  // of what is computed with; master weights and gradients are float32
};

// Work of one kind in a step; either FLOPs or bytes bound it.
struct StepWork {
  std::string name;   // "GEMMs, forward"
  std::string group;  // of kernel_group(): as far as the names of kernels tell kinds apart
  double flops = 0;
  double bytes = 0;
  double floor_s = 0;
};

// The groups that kernels of ours and of NVIDIA's belong to.
namespace kernel_groups {
inline constexpr const char* kGemms = "GEMMs";
inline constexpr const char* kAttentionForward = "attention forward";
inline constexpr const char* kAttentionBackward = "attention backward";
inline constexpr const char* kNormForward = "norm forward";
inline constexpr const char* kNormBackward = "norm backward";
inline constexpr const char* kGelu = "GELU";
inline constexpr const char* kColumnSums = "column sums";
inline constexpr const char* kCrossEntropy = "cross-entropy";
inline constexpr const char* kEmbedding = "embedding";
inline constexpr const char* kGradientNorm = "gradient norm";
inline constexpr const char* kOptimizer = "optimizer";
inline constexpr const char* kCopies = "copies and memsets";
inline constexpr const char* kOther = "other";
}  // namespace kernel_groups

// The group of a kernel as a trace names it: "GEMMs" of "nvjet_sm90_tst_128x160_64x5";
// "other" of a name that is not known. Kernels that serve two groups go to the one that has most of
// them: walk_columns and partial_sums_kernel to "column sums".
std::string_view kernel_group(std::string_view kernel_name);

// A row per group, the most seconds first, with the floor of its work where `work` names it. Groups
// with a floor but no kernel have a row too, so that floors add up to the step's.
std::vector<KernelRow> by_group(const KernelBreakdown& kernels, const std::vector<StepWork>& work);

// A row per group and the sum, all per step; with the power, also the joules that fall to a group
// if all kernels draw alike.
std::string group_text(const std::vector<KernelRow>& groups,
                       int64_t num_steps,
                       std::optional<double> watts = std::nullopt);

}  // namespace penstock::report
