// Rows of a table by token, and the gradient back into the table.
#pragma once

#include <cstdint>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// out[r, :] = table[tokens[r], :] + positions[r % context, :]; without positions the table's rows
// alone.
template <typename T>
struct EmbeddingForward {
  const T* table;
  const T* positions;  // may be null
  const int64_t* tokens;
  T* out;
  int64_t context;
  int64_t width;
};
void embed(const EmbeddingForward<float>& work, int64_t first_row, int64_t last_row);
void embed(const EmbeddingForward<Bf16>& work, int64_t first_row, int64_t last_row);

// table_gradient[tokens[r], :] += gradient[r, :], and the positions' (where it is given) likewise, for
// columns first .. last of all rows. Split over columns, each sum has one fixed order whatever the number of
// threads.
template <typename T>
struct EmbeddingBackward {
  const T* gradient;
  const int64_t* tokens;
  float* table_gradient;
  float* position_gradient;  // may be null
  int64_t rows;
  int64_t context;
  int64_t width;
};
void embed_backward(const EmbeddingBackward<float>& work,
                    int64_t first_column,
                    int64_t last_column);
void embed_backward(const EmbeddingBackward<Bf16>& work, int64_t first_column, int64_t last_column);

}  // namespace penstock::kernels
