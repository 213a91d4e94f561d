#include "penstock/model/gpt2/floor.h"

#include <cmath>

#include "penstock/base/error.h"
#include "penstock/model/gpt2/facts.h"

namespace penstock::model {

namespace {

namespace groups = report::kernel_groups;

constexpr double kFloatBytes = 4;
constexpr double kIndexBytes = 8;  // of a token

// The sizes of a step, as factors.
struct Sizes {
  double layers, width, context, vocabulary;
  double padded_vocabulary;  // as the head's GEMMs have it
  double rows;               // tokens of the batch
  double parameters;
  double element;  // bytes
  double plane;    // bytes of [rows, width]
};

Sizes sizes_of(const config::ModelOptions& model, const report::StepSize& step) {
  PENSTOCK_CHECK(step.batch > 0 && step.element_bytes > 0,
                 "a batch of ",
                 step.batch,
                 ", elements of ",
                 step.element_bytes,
                 " bytes");
  constexpr int64_t kUnit = 64;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  Sizes sizes{.layers = number(model.layers),
              .width = number(model.width),
              .context = number(model.context),
              .vocabulary = number(model.vocabulary),
              .padded_vocabulary = number((model.vocabulary + kUnit - 1) / kUnit * kUnit),
              .rows = number(step.batch * model.context),
              .parameters = number(gpt2_parameters(model)),
              .element = number(step.element_bytes)};
  sizes.plane = sizes.rows * sizes.width * sizes.element;
  return sizes;
}

// Of one of the three GEMMs of each matrix: forward, input gradient, weight gradient.
double block_gemm_flops(const Sizes& s) {
  return 2 * s.rows * s.layers * 12 * s.width * s.width;
}

double head_gemm_flops(const Sizes& s) {
  return 2 * s.rows * s.padded_vocabulary * s.width;
}

// One of attention's GEMMs over all heads, the masked half left out. Forward has two; backward
// four, and a fifth that makes the scores again from what was kept.
double attention_gemm_flops(const Sizes& s) {
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
// GEMM, four.
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

}  // namespace

std::vector<report::StepWork> gpt2_work(const config::ModelOptions& model,
                                        const report::StepSize& step,
                                        const report::DeviceRates& rates) {
  const Sizes s = sizes_of(model, step);
  std::vector<report::StepWork> work;
  const auto add_flops = [&](const char* name, const char* group, double flops, double rate) {
    work.push_back({.name = name, .group = group, .flops = flops, .floor_s = flops / rate});
  };
  const auto add_bytes = [&](const char* group, double bytes) {
    work.push_back({.name = group, .group = group, .bytes = bytes, .floor_s = bytes / rates.bytes});
  };
  const double gemm = block_gemm_flops(s);
  add_flops("GEMMs, forward", groups::kGemms, gemm, rates.gemm_flops);
  add_flops("GEMMs, input gradients", groups::kGemms, gemm, rates.gemm_flops);
  add_flops("GEMMs, weight gradients", groups::kGemms, gemm, rates.gemm_flops);
  add_flops("head GEMMs", groups::kGemms, 3 * head_gemm_flops(s), rates.gemm_flops);
  const double attention = attention_gemm_flops(s);
  add_flops(
      groups::kAttentionForward, groups::kAttentionForward, 2 * attention, rates.attention_flops);
  add_flops(
      groups::kAttentionBackward, groups::kAttentionBackward, 5 * attention, rates.attention_flops);
  add_bytes(groups::kNormForward, norm_forward_bytes(s));
  add_bytes(groups::kNormBackward, norm_backward_bytes(s));
  add_bytes(groups::kGelu, 0);  // in the GEMMs' epilogues
  add_bytes(groups::kColumnSums, column_sum_bytes(s));
  add_bytes(groups::kCrossEntropy, cross_entropy_bytes(s));
  add_bytes(groups::kEmbedding, embedding_bytes(s));
  add_bytes(groups::kGradientNorm, s.parameters * kFloatBytes);
  add_bytes(groups::kOptimizer, optimizer_bytes(s));
  add_bytes(groups::kCopies, cleared_bytes(s, model.tied));
  add_bytes(groups::kOther, 0);
  return work;
}

}  // namespace penstock::model
