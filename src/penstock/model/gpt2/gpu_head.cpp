#include <algorithm>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/gpu/cross_entropy.h"
#include "penstock/gpu/sums.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kTable };

// Logits that exist at a time. Each range of rows reads and writes the table's float32 gradient
// once, so few ranges are fast and many are small.
constexpr int64_t kLogitBytes = int64_t{1} << 30;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Final norm, head and cross-entropy. Logits are made for a range of rows at a time, read once,
// and become their own gradient in place: no float32 logits exist.
class GpuHead final : public Loss {
 public:
  GpuHead(const Gpt2Shape& shape, std::shared_ptr<device::GpuContext> context)
      : shape_(shape),
        ops_(std::move(context)),
        specs_(with_overwritten_gradients(gpt2_head_specs(shape))),
        stride_(padded_vocabulary(shape)) {
    specs_[kTable].padding = table_padding(shape);
  }

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const at::Tensor& input) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor normed = ops_.norm(input, weights[kNormScale], weights[kNormShift]).out;
    return at::matmul(normed, weights[kTable].t()).to(at::kFloat);
  }

  double evaluate(Weights weights,
                  const at::Tensor& input,
                  const at::Tensor& targets) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor normed =
        ops_.norm(input.view({-1, shape_.width}), weights[kNormScale], weights[kNormShift]).out;
    const device::GpuContext::LossSlot slot = context().next_loss_slot();
    for_row_ranges(normed, targets, [&](const Rows& rows) {
      make_logits(rows, weights[kTable]);
      losses_of(rows, /*scale=*/0, /*writes_gradient=*/false, slot);
    });
    context().fetch(slot);
    context().wait();
    return *slot.on_host;
  }

  Result backward(Weights weights,
                  Gradients gradients,
                  const at::Tensor& input,
                  const at::Tensor& targets,
                  double scale) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input.view({-1, shape_.width});
    const GpuOps::Normed normed = ops_.norm(flat, weights[kNormScale], weights[kNormShift]);
    at::Tensor normed_gradient = at::empty_like(normed.out);
    const device::GpuContext::LossSlot slot = context().next_loss_slot();
    for_row_ranges(normed.out, targets, [&](const Rows& rows) {
      make_logits(rows, weights[kTable]);
      losses_of(rows, scale, /*writes_gradient=*/true, slot);
      const at::Tensor part = normed_gradient.narrow(0, rows.first, rows.normed.size(0));
      context().gemms().run({.rows = part.size(0),
                             .columns = shape_.width,
                             .depth = rows_of(weights[kTable]),
                             .type = gpu_type(part.scalar_type()),
                             .a = rows.logits.const_data_ptr(),
                             .b = weights[kTable].const_data_ptr(),
                             .d = part.data_ptr(),
                             .d_type = gpu_type(part.scalar_type()),
                             .a_stride = stride_},
                            context().compute());
      add_table_gradient(
          gradients[kTable], rows, /*overwrites=*/gradients.is_fresh(kTable) && rows.first == 0);
    });
    context().fetch(slot);
    const at::Tensor dx =
        ops_.norm_backward({flat, weights[kNormScale], normed.mean, normed.inverse_deviation},
                           std::move(normed_gradient),
                           /*residual_gradient=*/{},
                           {gradients[kNormScale], gradients[kNormShift]});
    return {.pending_sum = slot.on_host, .input_gradient = dx.view(input.sizes())};
  }

  // A negative target does not count.
  int64_t count(const at::Tensor& targets) const override { return count_targets(targets); }

 private:
  struct Rows {
    int64_t first;
    at::Tensor normed;   // [rows, C]
    at::Tensor targets;  // [rows]
    at::Tensor logits;   // [rows, stride]
    at::Tensor losses;   // [rows]
  };

  device::GpuContext& context() const { return ops_.context(); }

  // With the zeros behind the table where it has them: then every size is a multiple of 64. Logits
  // beyond the vocabulary are never read, and their gradient is zero.
  int64_t rows_of(const at::Tensor& table) const {
    const int64_t wanted = (table.storage_offset() + stride_ * shape_.width) *
                           static_cast<int64_t>(table.element_size());
    return wanted <= static_cast<int64_t>(table.storage().nbytes()) ? stride_ : shape_.vocabulary;
  }

  // Calls visit for one range of rows after the other, all but the last of one size.
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
    const int64_t row_bytes = stride_ * static_cast<int64_t>(normed.element_size());
    const int64_t most = std::max<int64_t>(128, kLogitBytes / row_bytes / 128 * 128);
    const int64_t ranges = (all + most - 1) / most;
    const int64_t at_once = std::min(all, round_up((all + ranges - 1) / ranges, 128));
    const at::Tensor logits = at::empty({at_once, stride_}, normed.options());
    const at::Tensor losses = at::empty({at_once}, normed.options().dtype(at::kFloat));
    const at::Tensor flat_targets = targets.view({-1});
    for (int64_t first = 0; first < all; first += at_once) {
      const int64_t rows = std::min(at_once, all - first);
      visit(Rows{first,
                 normed.narrow(0, first, rows),
                 flat_targets.narrow(0, first, rows),
                 logits.narrow(0, 0, rows),
                 losses.narrow(0, 0, rows)});
    }
  }

  void make_logits(const Rows& rows, const at::Tensor& table) const {
    context().gemms().run({.rows = rows.normed.size(0),
                           .columns = rows_of(table),
                           .depth = shape_.width,
                           .type = gpu_type(table.scalar_type()),
                           .a = rows.normed.const_data_ptr(),
                           .b = table.const_data_ptr(),
                           .is_b_transposed = true,
                           .d = rows.logits.data_ptr(),
                           .d_type = gpu_type(table.scalar_type()),
                           .d_stride = stride_},
                          context().compute());
  }

  void losses_of(const Rows& rows,
                 double scale,
                 bool writes_gradient,
                 const device::GpuContext::LossSlot& slot) const {
    gpu::cross_entropy({.type = gpu_type(rows.logits.scalar_type()),
                        .logits = rows.logits.data_ptr(),
                        .rows = rows.logits.size(0),
                        .vocabulary = shape_.vocabulary,
                        .stride = stride_,
                        .targets = rows.targets.const_data_ptr<int64_t>(),
                        .losses = rows.losses.data_ptr<float>(),
                        .scale = static_cast<float>(scale),
                        .writes_gradient = writes_gradient},
                       context().compute());
    gpu::add_sum(rows.losses.const_data_ptr<float>(),
                 rows.losses.numel(),
                 slot.on_device,
                 context().compute());
  }

  void add_table_gradient(const at::Tensor& gradient, const Rows& rows, bool overwrites) const {
    gpu::Gemm gemm{.rows = rows_of(gradient),
                   .columns = shape_.width,
                   .depth = rows.normed.size(0),
                   .type = gpu_type(rows.normed.scalar_type()),
                   .a = rows.logits.const_data_ptr(),
                   .b = rows.normed.const_data_ptr(),
                   .is_a_transposed = true,
                   .d = gradient.data_ptr(),
                   .d_type = gpu::Type::Float32,
                   .a_stride = stride_};
    gemm.addend = overwrites ? nullptr : gemm.d;
    context().gemms().run(gemm, context().compute());
  }

  std::string name_ = "head";
  Gpt2Shape shape_;
  GpuOps ops_;
  std::vector<ParameterSpec> specs_;
  int64_t stride_;
};

}  // namespace

std::unique_ptr<Loss> make_gpu_head(const Gpt2Shape& shape,
                                    std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuHead>(shape, std::move(context));
}

}  // namespace penstock::model
