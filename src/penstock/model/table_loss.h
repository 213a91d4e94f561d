// Cross-entropy of rows against a table of the vocabulary: logits are rows times the table. They exist
// for a range of rows at a time, on the CPU, below autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::model {

struct TableLoss {
  const at::Tensor& rows;     // [rows, width], normed
  const at::Tensor& table;    // [vocabulary, width]
  const at::Tensor& targets;  // int64, one for each row; a negative one does not count
};

// The sum over rows.
double table_loss(const TableLoss& loss);

// The same; sets the gradient of the rows, scaled, and adds that of the table.
double table_loss_backward(const TableLoss& loss,
                           double scale,
                           at::Tensor& rows_gradient,
                           at::Tensor& table_gradient);

}  // namespace penstock::model
