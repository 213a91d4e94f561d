// Cross-entropy of rows against a table of the vocabulary, on a GPU: the counterpart of table_loss.h.
// Logits are made for a range of rows at a time, read once, and become their own gradient in place: no
// float32 logits exist. Works below autograd, on the context's compute stream.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "penstock/device/gpu_context.h"
#include "penstock/model/table_loss.h"

namespace penstock::model {

class GpuTableLoss {
 public:
  GpuTableLoss(int64_t vocabulary, int64_t width, std::shared_ptr<device::GpuContext> context);

  // The sum over rows; waits for it.
  double sum(const TableLoss& loss) const;

  // Sets the gradient of the rows, scaled, and adds that of the table, or sets it where it
  // overwrites. Where the sum will be once the device has been waited for.
  const double* backward(const TableLoss& loss,
                         double scale,
                         const at::Tensor& rows_gradient,
                         const at::Tensor& table_gradient,
                         bool overwrites) const;

 private:
  struct Range {
    int64_t first;
    at::Tensor rows;     // [rows, width]
    at::Tensor targets;  // [rows]
    at::Tensor logits;   // [rows, stride]
    at::Tensor losses;   // [rows]
  };

  template <typename Visit>
  void for_ranges(const TableLoss& loss, const Visit& visit) const;
  int64_t rows_of(const at::Tensor& table) const;
  void make_logits(const Range& range, const at::Tensor& table) const;
  void losses_of(const Range& range,
                 double scale,
                 bool writes_gradient,
                 const device::GpuContext::LossSlot& slot) const;
  void make_rows_gradient(const Range& range,
                          const at::Tensor& table,
                          const at::Tensor& gradient) const;
  void add_table_gradient(const at::Tensor& gradient, const Range& range, bool overwrites) const;

  int64_t vocabulary_, width_;
  int64_t stride_;  // elements of a row of logits
  std::shared_ptr<device::GpuContext> context_;
};

}  // namespace penstock::model
