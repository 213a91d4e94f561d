#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/cross_entropy.h"
#include "penstock/model/blocks.h"
#include "penstock/model/gpt2_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kTable };

// Logits that exist at a time. Each range of rows reads and writes the table's gradient once, so
// few ranges are fast and many are small; at GPT-2's vocabulary this makes ranges of 512 rows.
constexpr int64_t kLogitsAtOnce = int64_t{26} << 20;

int64_t rows_at_once(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kLogitsAtOnce / vocabulary / 16 * 16, 16, std::max<int64_t>(rows, 16));
}

class Gpt2Head final : public Loss {
 public:
  explicit Gpt2Head(const Gpt2Shape& shape) : shape_(shape), specs_(gpt2_head_specs(shape)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const at::Tensor& input) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Normed normed = layer_norm(input, weights[kNormScale], weights[kNormShift]);
    return at::matmul(normed.out, weights[kTable].t()).to(at::kFloat);
  }

  double evaluate(Weights weights,
                  const at::Tensor& input,
                  const at::Tensor& targets) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Normed normed =
        layer_norm(input.view({-1, shape_.width}), weights[kNormScale], weights[kNormShift]);
    double sum = 0;
    for_row_ranges(normed.out, targets, [&](const at::Tensor& rows, const int64_t* row_targets) {
      const at::Tensor logits = at::mm(rows, weights[kTable].t()).to(at::kFloat);
      sum += sum_over_rows(logits, row_targets, [](float* row, int64_t vocabulary, int64_t target) {
        return kernels::cross_entropy(row, vocabulary, target);
      });
    });
    return sum;
  }

  Result backward(Weights weights,
                  Gradients gradients,
                  const at::Tensor& input,
                  const at::Tensor& targets,
                  double scale) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input.view({-1, shape_.width});
    const Normed normed = layer_norm(flat, weights[kNormScale], weights[kNormShift]);
    at::Tensor normed_gradient = at::empty_like(normed.out);
    double sum = 0;
    int64_t first = 0;
    for_row_ranges(normed.out, targets, [&](const at::Tensor& rows, const int64_t* row_targets) {
      at::Tensor logits = at::mm(rows, weights[kTable].t());
      at::Tensor gradient =
          logits.to(at::kFloat);  // the same tensor where the precision is float32
      sum +=
          sum_over_rows(gradient, row_targets, [&](float* row, int64_t vocabulary, int64_t target) {
            return kernels::cross_entropy_backward(
                row, vocabulary, target, static_cast<float>(scale));
          });
      if (rows.scalar_type() != at::kFloat) {
        gradient = logits.copy_(gradient);
      }
      at::Tensor part = normed_gradient.narrow(0, first, rows.size(0));
      at::mm_out(part, gradient, weights[kTable]);
      add_product(gradients[kTable], gradient, rows);
      first += rows.size(0);
    });
    const at::Tensor dx = layer_norm_backward(
        {flat, weights[kNormScale], weights[kNormShift], normed.mean, normed.inverse_deviation},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    return {.sum = sum, .input_gradient = dx.view(input.sizes())};
  }

  // A negative target does not count.
  int64_t count(const at::Tensor& targets) const override { return count_targets(targets); }

 private:
  // Calls visit(rows of `normed`, their targets) for one range of rows after the other.
  template <typename Visit>
  void for_row_ranges(const at::Tensor& normed,
                      const at::Tensor& targets,
                      const Visit& visit) const {
    const int64_t all = normed.size(0);
    PENSTOCK_CHECK(
        targets.is_contiguous() && targets.scalar_type() == at::kLong && targets.numel() == all,
        "targets must be contiguous int64, one for each of ",
        all,
        " rows");
    PENSTOCK_CHECK(at::max(targets).item<int64_t>() < shape_.vocabulary,
                   "a target beyond the vocabulary of ",
                   shape_.vocabulary);
    const int64_t at_once = rows_at_once(all, shape_.vocabulary);
    for (int64_t first = 0; first < all; first += at_once) {
      const int64_t rows = std::min(at_once, all - first);
      visit(normed.narrow(0, first, rows), targets.const_data_ptr<int64_t>() + first);
    }
  }

  // Sum over rows of row_loss(row, vocabulary, target), added in the order of the rows. A row whose
  // target does not count becomes zero, which is its gradient.
  template <typename RowLoss>
  double sum_over_rows(const at::Tensor& logits,
                       const int64_t* targets,
                       const RowLoss& row_loss) const {
    const int64_t rows = logits.size(0);
    const int64_t vocabulary = shape_.vocabulary;
    float* values = logits.data_ptr<float>();
    std::vector<float> losses(static_cast<size_t>(rows), 0.0f);
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* row_values = values + row * vocabulary;
        if (targets[row] >= 0) {
          losses[static_cast<size_t>(row)] = row_loss(row_values, vocabulary, targets[row]);
        } else {
          std::fill(row_values, row_values + vocabulary, 0.0f);
        }
      }
    });
    double sum = 0;
    for (const float loss : losses) {
      sum += static_cast<double>(loss);
    }
    return sum;
  }

  std::string name_ = "head";
  Gpt2Shape shape_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Loss> make_gpt2_head(const Gpt2Shape& shape) {
  return std::make_unique<Gpt2Head>(shape);
}

}  // namespace penstock::model
