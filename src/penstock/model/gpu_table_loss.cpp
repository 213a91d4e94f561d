#include "penstock/model/gpu_table_loss.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/gpu/cross_entropy.h"
#include "penstock/gpu/sums.h"
#include "penstock/model/gpu_parameters.h"
#include "penstock/model/gpu_tensors.h"

namespace penstock::model {

namespace {

// Logits that exist at a time. Each range of rows reads and writes the table's float32 gradient
// once, so few ranges are fast and many are small.
constexpr int64_t kLogitBytes = int64_t{1} << 30;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

GpuTableLoss::GpuTableLoss(int64_t vocabulary,
                           int64_t width,
                           std::shared_ptr<device::GpuContext> context)
    : vocabulary_(vocabulary),
      width_(width),
      stride_(padded_rows(vocabulary)),
      context_(std::move(context)) {}

double GpuTableLoss::sum(const TableLoss& loss) const {
  const device::GpuContext::LossSlot slot = context_->next_loss_slot();
  for_ranges(loss, [&](const Range& range) {
    make_logits(range, loss.table);
    losses_of(range, /*scale=*/0, /*writes_gradient=*/false, slot);
  });
  context_->fetch(slot);
  context_->wait();
  return *slot.on_host;
}

const double* GpuTableLoss::backward(const TableLoss& loss,
                                     double scale,
                                     const at::Tensor& rows_gradient,
                                     const at::Tensor& table_gradient,
                                     bool overwrites) const {
  const device::GpuContext::LossSlot slot = context_->next_loss_slot();
  for_ranges(loss, [&](const Range& range) {
    make_logits(range, loss.table);
    losses_of(range, scale, /*writes_gradient=*/true, slot);
    make_rows_gradient(range, loss.table, rows_gradient);
    add_table_gradient(table_gradient, range, overwrites && range.first == 0);
  });
  context_->fetch(slot);
  return slot.on_host;
}

// With the zeros behind the table where it has them: then every size is a multiple of 64. Logits
// beyond the vocabulary are never read, and their gradient is zero.
int64_t GpuTableLoss::rows_of(const at::Tensor& table) const {
  const int64_t wanted =
      (table.storage_offset() + stride_ * width_) * static_cast<int64_t>(table.element_size());
  return wanted <= static_cast<int64_t>(table.storage().nbytes()) ? stride_ : vocabulary_;
}

// Calls visit for one range of rows after the other, all but the last of one size.
template <typename Visit>
void GpuTableLoss::for_ranges(const TableLoss& loss, const Visit& visit) const {
  const int64_t all = loss.rows.size(0);
  PENSTOCK_CHECK(loss.targets.is_contiguous() && loss.targets.scalar_type() == at::kLong &&
                     loss.targets.numel() == all,
                 "targets must be contiguous int64, one for each of ",
                 all,
                 " rows");
  const int64_t row_bytes = stride_ * static_cast<int64_t>(loss.rows.element_size());
  const int64_t most = std::max<int64_t>(128, kLogitBytes / row_bytes / 128 * 128);
  const int64_t ranges = (all + most - 1) / most;
  const int64_t at_once = std::min(all, round_up((all + ranges - 1) / ranges, 128));
  const at::Tensor logits = at::empty({at_once, stride_}, loss.rows.options());
  const at::Tensor losses = floats_like(loss.rows, at_once);
  const at::Tensor targets = loss.targets.view({-1});
  for (int64_t first = 0; first < all; first += at_once) {
    const int64_t rows = std::min(at_once, all - first);
    visit(Range{first,
                loss.rows.narrow(0, first, rows),
                targets.narrow(0, first, rows),
                logits.narrow(0, 0, rows),
                losses.narrow(0, 0, rows)});
  }
}

void GpuTableLoss::make_logits(const Range& range, const at::Tensor& table) const {
  context_->gemms().run({.rows = range.rows.size(0),
                         .columns = rows_of(table),
                         .depth = width_,
                         .type = gpu_type(table.scalar_type()),
                         .a = range.rows.const_data_ptr(),
                         .b = table.const_data_ptr(),
                         .is_b_transposed = true,
                         .d = range.logits.data_ptr(),
                         .d_type = gpu_type(table.scalar_type()),
                         .d_stride = stride_},
                        context_->compute());
}

void GpuTableLoss::losses_of(const Range& range,
                             double scale,
                             bool writes_gradient,
                             const device::GpuContext::LossSlot& slot) const {
  gpu::cross_entropy({.type = gpu_type(range.logits.scalar_type()),
                      .logits = range.logits.data_ptr(),
                      .rows = range.logits.size(0),
                      .vocabulary = vocabulary_,
                      .stride = stride_,
                      .targets = range.targets.const_data_ptr<int64_t>(),
                      .losses = range.losses.data_ptr<float>(),
                      .scale = static_cast<float>(scale),
                      .writes_gradient = writes_gradient},
                     context_->compute());
  gpu::add_sum(range.losses.const_data_ptr<float>(),
               range.losses.numel(),
               slot.on_device,
               context_->compute());
}

void GpuTableLoss::make_rows_gradient(const Range& range,
                                      const at::Tensor& table,
                                      const at::Tensor& gradient) const {
  const at::Tensor part = gradient.narrow(0, range.first, range.rows.size(0));
  context_->gemms().run({.rows = part.size(0),
                         .columns = width_,
                         .depth = rows_of(table),
                         .type = gpu_type(part.scalar_type()),
                         .a = range.logits.const_data_ptr(),
                         .b = table.const_data_ptr(),
                         .d = part.data_ptr(),
                         .d_type = gpu_type(part.scalar_type()),
                         .a_stride = stride_},
                        context_->compute());
}

void GpuTableLoss::add_table_gradient(const at::Tensor& gradient,
                                      const Range& range,
                                      bool overwrites) const {
  gpu::Gemm gemm{.rows = rows_of(gradient),
                 .columns = width_,
                 .depth = range.rows.size(0),
                 .type = gpu_type(range.rows.scalar_type()),
                 .a = range.logits.const_data_ptr(),
                 .b = range.rows.const_data_ptr(),
                 .is_a_transposed = true,
                 .d = gradient.data_ptr(),
                 .d_type = gpu::Type::Float32,
                 .a_stride = stride_};
  gemm.addend = overwrites ? nullptr : gemm.d;
  context_->gemms().run(gemm, context_->compute());
}

}  // namespace penstock::model
