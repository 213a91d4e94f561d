// The tables and the JSON of `penstock bench step`: our step beside its peers, and where its time
// goes kernel by kernel. Pure functions of what was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace penstock::report {

// Dense bf16 of an H200's data sheet, in FLOP/s: without sparsity, at a clock that long work does
// not hold.
inline constexpr double kH200PeakFlops = 989.5e12;

struct StepFigures {
  std::string who;
  double tokens_per_second = 0;
  double step_s = 0;
  double tflops = 0;       // TFLOP/s, by the flop_per_token that is given
  double mfu = 0;          // tflops / peak_tflops
  double peak_tflops = 0;  // what mfu divides by
  std::optional<double> joules_per_token, watts, clock_mhz;
  int64_t peak_bytes = 0;  // of device memory
};

// Fills what follows from the rate; energy and memory are the caller's.
StepFigures step_figures(const std::string& who,
                         double tokens_per_second,
                         int64_t tokens_per_step,
                         double flop_per_token,
                         double peak_flops = kH200PeakFlops);

struct PeerRatio {
  std::string who;   // the fastest peer
  double ratio = 0;  // our tokens per second over its
};

// Nothing without a peer that ran.
std::optional<PeerRatio> over_best_peer(const StepFigures& ours,
                                        const std::vector<StepFigures>& peers);

// A row each, ours first. Columns that no row has a figure for are left out. Then "1.123 times
// torch compile, the fastest peer", where there is one.
std::string step_text(const StepFigures& ours, const std::vector<StepFigures>& peers);

// {"ours": {...}, "peers": [{...}], "best_peer": "torch compile", "ratio": 1.123}, the last two
// null without a peer. Figures that were not taken are null.
nlohmann::ordered_json step_json(const StepFigures& ours, const std::vector<StepFigures>& peers);

struct KernelRow {
  std::string name;
  int64_t count = 0;  // this, seconds and floor_s are of all traced steps together
  double seconds = 0;
  std::optional<double> floor_s;  // the least it could take, where that is known
  double share = 0;               // of the seconds of all rows
};

struct KernelBreakdown {
  std::vector<KernelRow> rows;  // the most seconds first
  int64_t num_steps = 1;        // that were traced; tables and JSON are per step
  double busy_s = 0;            // in which the device worked, overlapping work once
  double span_s = 0;            // from the first start to the last end
};

void set_shares(std::vector<KernelRow>& rows);

// A row per kernel, those after `max_rows` in one row together, then the sum, the floor where one
// is known, and how long the device waited.
std::string kernel_text(const KernelBreakdown& kernels, size_t max_rows = 30);

nlohmann::ordered_json kernel_json(const KernelBreakdown& kernels);

}  // namespace penstock::report
