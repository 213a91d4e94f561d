#include "penstock/model/table_loss.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/cross_entropy.h"
#include "penstock/model/blocks.h"

namespace penstock::model {

namespace {

// Logits that exist at a time. Each range of rows reads and writes the table's gradient once, so
// few ranges are fast and many are small; at a vocabulary of 50257 this makes ranges of 512 rows.
constexpr int64_t kLogitsAtOnce = int64_t{26} << 20;

int64_t rows_at_once(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kLogitsAtOnce / vocabulary / 16 * 16, 16, std::max<int64_t>(rows, 16));
}

// Calls visit(rows, their targets) for one range of rows after the other.
template <typename Visit>
void for_row_ranges(const TableLoss& loss, const Visit& visit) {
  const int64_t all = loss.rows.size(0);
  const int64_t vocabulary = loss.table.size(0);
  PENSTOCK_CHECK(loss.targets.is_contiguous() && loss.targets.scalar_type() == at::kLong &&
                     loss.targets.numel() == all,
                 "targets must be contiguous int64, one for each of ",
                 all,
                 " rows");
  PENSTOCK_CHECK(at::max(loss.targets).item<int64_t>() < vocabulary,
                 "a target beyond the vocabulary of ",
                 vocabulary);
  const int64_t at_once = rows_at_once(all, vocabulary);
  for (int64_t first = 0; first < all; first += at_once) {
    const int64_t rows = std::min(at_once, all - first);
    visit(loss.rows.narrow(0, first, rows), loss.targets.const_data_ptr<int64_t>() + first);
  }
}

// Sum over rows of row_loss(row, vocabulary, target), added in the order of the rows. A row whose
// target does not count becomes zero, which is its gradient.
template <typename RowLoss>
double sum_over_rows(const at::Tensor& logits, const int64_t* targets, const RowLoss& row_loss) {
  const int64_t rows = logits.size(0);
  const int64_t vocabulary = logits.size(1);
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

}  // namespace

double table_loss(const TableLoss& loss) {
  double sum = 0;
  for_row_ranges(loss, [&](const at::Tensor& rows, const int64_t* targets) {
    const at::Tensor logits = at::mm(rows, loss.table.t()).to(at::kFloat);
    sum += sum_over_rows(logits, targets, [](float* row, int64_t vocabulary, int64_t target) {
      return kernels::cross_entropy(row, vocabulary, target);
    });
  });
  return sum;
}

double table_loss_backward(const TableLoss& loss,
                           double scale,
                           at::Tensor& rows_gradient,
                           at::Tensor& table_gradient) {
  double sum = 0;
  int64_t first = 0;
  for_row_ranges(loss, [&](const at::Tensor& rows, const int64_t* targets) {
    at::Tensor logits = at::mm(rows, loss.table.t());
    at::Tensor gradient = logits.to(at::kFloat);  // the same tensor where the precision is float32
    sum += sum_over_rows(gradient, targets, [&](float* row, int64_t vocabulary, int64_t target) {
      return kernels::cross_entropy_backward(row, vocabulary, target, static_cast<float>(scale));
    });
    if (rows.scalar_type() != at::kFloat) {
      gradient = logits.copy_(gradient);
    }
    at::Tensor part = rows_gradient.narrow(0, first, rows.size(0));
    at::mm_out(part, gradient, loss.table);
    add_matmul(table_gradient, gradient, rows);
    first += rows.size(0);
  });
  return sum;
}

}  // namespace penstock::model
