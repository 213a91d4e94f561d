#include "penstock/report/gpt2_floor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "penstock/base/error.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

constexpr const char* kProducts = "matrix products";
constexpr const char* kAttentionForward = "attention forward";
constexpr const char* kAttentionBackward = "attention backward";
constexpr const char* kNormForward = "norm forward";
constexpr const char* kNormBackward = "norm backward";
constexpr const char* kGelu = "GELU";
constexpr const char* kColumnSums = "column sums";
constexpr const char* kCrossEntropy = "cross-entropy";
constexpr const char* kEmbedding = "embedding";
constexpr const char* kGradientNorm = "gradient norm";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kCopies = "copies and memsets";
constexpr const char* kOther = "other";

constexpr double kFloatBytes = 4;
constexpr double kIndexBytes = 8;  // of a token

// The sizes of a step, as factors.
struct Sizes {
  double layers, width, context, vocabulary;
  double padded_vocabulary;  // as the head's products have it
  double rows;               // tokens of the batch
  double parameters;
  double element;  // bytes
  double plane;    // bytes of [rows, width]
};

Sizes sizes_of(const Gpt2Step& step) {
  PENSTOCK_CHECK(step.batch > 0 && step.element_bytes > 0,
                 "a batch of ",
                 step.batch,
                 ", elements of ",
                 step.element_bytes,
                 " bytes");
  constexpr int64_t kUnit = 64;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  Sizes sizes{.layers = number(step.size.layers),
              .width = number(step.size.width),
              .context = number(step.size.context),
              .vocabulary = number(step.size.vocabulary),
              .padded_vocabulary = number((step.size.vocabulary + kUnit - 1) / kUnit * kUnit),
              .rows = number(step.batch * step.size.context),
              .parameters = number(gpt2_parameters(step.size)),
              .element = number(step.element_bytes)};
  sizes.plane = sizes.rows * sizes.width * sizes.element;
  return sizes;
}

// Of one of the three products of each matrix: forward, input gradient, weight gradient.
double block_product_flops(const Sizes& s) {
  return 2 * s.rows * s.layers * 12 * s.width * s.width;
}

double head_product_flops(const Sizes& s) {
  return 2 * s.rows * s.padded_vocabulary * s.width;
}

// One of attention's products over all heads, the masked half left out. Forward has two; backward
// four, and a fifth that makes the scores again from what was kept.
double attention_product_flops(const Sizes& s) {
  return s.rows * s.context * s.width * s.layers;
}

// Two norms a layer and the last: input and output, and two floats a row.
double norm_forward_bytes(const Sizes& s) {
  return (2 * s.layers + 1) * (2 * s.plane + 2 * kFloatBytes * s.rows);
}

// As much in gradients, the input once more, and in a layer the residual's gradient. The column
// sums of the result, a bias gradient, come with it.
double norm_backward_bytes(const Sizes& s) {
  return norm_forward_bytes(s) + (2 * s.layers + 1) * s.plane + 2 * s.layers * s.plane;
}

// The bias gradients that no norm has on its way: of QKV, three planes, and of the MLP's first
// product, four.
double column_sum_bytes(const Sizes& s) {
  return 7 * s.layers * s.plane;
}

// Every logit read once and written once.
double cross_entropy_bytes(const Sizes& s) {
  return 2 * s.rows * s.padded_vocabulary * s.element;
}

// Forward reads the rows of the tokens that occur and writes a plane; backward reads a plane and
// adds to the float32 gradients of those rows. Positions likewise.
double embedding_bytes(const Sizes& s) {
  const double distinct = s.vocabulary * -std::expm1(-s.rows / s.vocabulary);
  return 2 * s.plane + 2 * kIndexBytes * s.rows +
         (distinct + s.context) * s.width * (s.element + 2 * kFloatBytes);
}

// AdamW: weight, gradient and two moments in; weight, moments and the copy to compute with out.
double optimizer_bytes(const Sizes& s) {
  const double copy = s.element < kFloatBytes ? s.element : 0;
  return s.parameters * (7 * kFloatBytes + copy);
}

// Gradients that are added to, and so begin at zero: of biases, norms, positions, and of a token
// embedding that is not the head's. A matrix's is overwritten.
double cleared_bytes(const Sizes& s, bool is_tied) {
  const double rows = s.context + (is_tied ? 0 : s.vocabulary);
  return kFloatBytes * s.width * (13 * s.layers + 2 + rows);
}

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
                                       {"update_pieces", kOptimizer},
                                       {"direct_pieces", kOptimizer},
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
                                      {"nvjet", kProducts},
                                      {"gemm", kProducts},
                                      {"gemv", kProducts},
                                      {"cutlass", kProducts},
                                      {"cublas", kProducts},
                                      {"splitKreduce", kProducts}};

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

std::vector<StepWork> gpt2_work(const Gpt2Step& step, const DeviceRates& rates) {
  const Sizes s = sizes_of(step);
  std::vector<StepWork> work;
  const auto add_flops = [&](const char* name, const char* group, double flops, double rate) {
    work.push_back({.name = name, .group = group, .flops = flops, .floor_s = flops / rate});
  };
  const auto add_bytes = [&](const char* group, double bytes) {
    work.push_back({.name = group, .group = group, .bytes = bytes, .floor_s = bytes / rates.bytes});
  };
  const double product = block_product_flops(s);
  add_flops("products, forward", kProducts, product, rates.product_flops);
  add_flops("products, input gradients", kProducts, product, rates.product_flops);
  add_flops("products, weight gradients", kProducts, product, rates.product_flops);
  add_flops("head products", kProducts, 3 * head_product_flops(s), rates.product_flops);
  const double attention = attention_product_flops(s);
  add_flops(kAttentionForward, kAttentionForward, 2 * attention, rates.attention_flops);
  add_flops(kAttentionBackward, kAttentionBackward, 5 * attention, rates.attention_flops);
  add_bytes(kNormForward, norm_forward_bytes(s));
  add_bytes(kNormBackward, norm_backward_bytes(s));
  add_bytes(kGelu, 0);  // in the products' epilogues
  add_bytes(kColumnSums, column_sum_bytes(s));
  add_bytes(kCrossEntropy, cross_entropy_bytes(s));
  add_bytes(kEmbedding, embedding_bytes(s));
  add_bytes(kGradientNorm, s.parameters * kFloatBytes);
  add_bytes(kOptimizer, optimizer_bytes(s));
  add_bytes(kCopies, cleared_bytes(s, step.size.is_tied));
  add_bytes(kOther, 0);
  return work;
}

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
