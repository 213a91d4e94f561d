#include "penstock/report/step_floor.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "penstock/base/error.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using namespace kernel_groups;

struct GroupOfName {
  std::string_view name;
  const char* group;
};

constexpr GroupOfName kWholeNames[] = {{"norm_register_kernel", kNormForward},
                                       {"norm_plain_kernel", kNormForward},
                                       {"norm_team_backward_kernel", kNormBackward},
                                       {"norm_plain_backward_kernel", kNormBackward},
                                       {"gelu_kernel", kGelu},
                                       {"walk_columns", kColumnSums},
                                       {"partial_sums_kernel", kColumnSums},
                                       {"shared_kernel", kCrossEntropy},
                                       {"global_kernel", kCrossEntropy},
                                       {"sum_kernel", kCrossEntropy},
                                       {"embed_rows", kEmbedding},
                                       {"make_pairs", kEmbedding},
                                       {"sum_chunks", kEmbedding},
                                       {"join_chunks", kEmbedding},
                                       {"sum_samples", kEmbedding},
                                       {"square_sums", kGradientNorm},
                                       {"finish_norm", kGradientNorm},
                                       {"update_chunks", kOptimizer},
                                       {"direct_chunks", kOptimizer},
                                       {"set_rates", kOptimizer},
                                       {"memset", kCopies},
                                       {"convert", kCopies}};

// Looked for in this order: attention's kernels may name what they are made of.
constexpr GroupOfName kNameParts[] = {{"dot_do_o", kAttentionBackward},
                                      {"convert_dq", kAttentionBackward},
                                      {"bprop", kAttentionBackward},
                                      {"flash_bwd", kAttentionBackward},
                                      {"fprop", kAttentionForward},
                                      {"flash_fwd", kAttentionForward},
                                      {"DeviceRadixSort", kEmbedding},
                                      {"memcpy", kCopies},
                                      {"FillFunctor", kCopies},
                                      {"nvjet", kGemms},
                                      {"gemm", kGemms},
                                      {"gemv", kGemms},
                                      {"cutlass", kGemms},
                                      {"cublas", kGemms},
                                      {"splitKreduce", kGemms}};

std::string print(const char* format, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

KernelRow& row_of(std::vector<KernelRow>& rows, std::string_view group) {
  for (KernelRow& row : rows) {
    if (row.name == group) {
      return row;
    }
  }
  return rows.emplace_back(KernelRow{.name = std::string(group)});
}

std::vector<std::string> group_cells(const KernelRow& row,
                                     int64_t num_steps,
                                     std::optional<double> watts) {
  const double steps = static_cast<double>(num_steps);
  const double seconds = row.seconds / steps;
  const double floor_s = row.floor_s.value_or(0) / steps;
  std::vector<std::string> cells = {row.name,
                                    print("%.5g", static_cast<double>(row.count) / steps),
                                    print("%.3f", 1e3 * seconds),
                                    print("%.1f %%", 100 * row.share),
                                    floor_s > 0 ? print("%.3f", 1e3 * floor_s) : "-",
                                    floor_s > 0 ? print("%.2f", seconds / floor_s) : "-",
                                    row.floor_s ? print("%.3f", 1e3 * (seconds - floor_s)) : "-"};
  if (watts) {
    cells.push_back(print("%.2f", seconds * *watts));
  }
  return cells;
}

}  // namespace

std::string_view kernel_group(std::string_view kernel_name) {
  for (const GroupOfName& known : kWholeNames) {
    if (kernel_name == known.name) {
      return known.group;
    }
  }
  for (const GroupOfName& known : kNameParts) {
    if (kernel_name.find(known.name) != std::string_view::npos) {
      return known.group;
    }
  }
  return kOther;
}

std::vector<KernelRow> by_group(const KernelBreakdown& kernels, const std::vector<StepWork>& work) {
  std::vector<KernelRow> rows;
  for (const KernelRow& kernel : kernels.rows) {
    KernelRow& row = row_of(rows, kernel_group(kernel.name));
    row.count += kernel.count;
    row.seconds += kernel.seconds;
  }
  for (const StepWork& one : work) {
    KernelRow& row = row_of(rows, one.group);
    row.floor_s = row.floor_s.value_or(0) + one.floor_s * static_cast<double>(kernels.num_steps);
  }
  std::erase_if(
      rows, [](const KernelRow& row) { return row.count == 0 && row.floor_s.value_or(0) == 0; });
  std::stable_sort(rows.begin(), rows.end(), [](const KernelRow& a, const KernelRow& b) {
    return a.seconds > b.seconds;
  });
  set_shares(rows);
  return rows;
}

std::string group_text(const std::vector<KernelRow>& groups,
                       int64_t num_steps,
                       std::optional<double> watts) {
  PENSTOCK_CHECK(num_steps > 0, num_steps, " traced steps");
  std::vector<Column> columns = {{"work of a step"},
                                 {"count", Align::Right},
                                 {"ms", Align::Right},
                                 {"share", Align::Right},
                                 {"floor ms", Align::Right},
                                 {"over floor", Align::Right},
                                 {"ms above", Align::Right}};
  if (watts) {
    columns.push_back({"J (by time)", Align::Right});
  }
  Table table(columns);
  KernelRow all{.name = "all"};
  bool has_all_floors = true;
  for (const KernelRow& row : groups) {
    table.add_row(group_cells(row, num_steps, watts));
    all.count += row.count;
    all.seconds += row.seconds;
    all.share += row.share;
    all.floor_s = all.floor_s.value_or(0) + row.floor_s.value_or(0);
    has_all_floors = has_all_floors && row.floor_s.has_value();
  }
  if (!has_all_floors) {
    all.floor_s.reset();
  }
  table.add_rule();
  table.add_row(group_cells(all, num_steps, watts));
  return table.text();
}

}  // namespace penstock::report
