#include "penstock/kernels/embedding.h"

#include <algorithm>

namespace penstock::kernels {

namespace {

template <typename T>
[[gnu::always_inline]] inline void forward(const EmbeddingForward<T>& work,
                                           int64_t first_row,
                                           int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const T* token = work.table + work.tokens[row] * work.width;
    T* out = work.out + row * work.width;
    if (work.positions == nullptr) {
      std::copy_n(token, work.width, out);
      continue;
    }
    const T* position = work.positions + row % work.context * work.width;
    for (int64_t i = 0; i < work.width; ++i) {
      out[i] = from_float<T>(to_float(token[i]) + to_float(position[i]));
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void backward(const EmbeddingBackward<T>& work,
                                            int64_t first_column,
                                            int64_t last_column) {
  for (int64_t row = 0; row < work.rows; ++row) {
    const T* gradient = work.gradient + row * work.width;
    float* token = work.table_gradient + work.tokens[row] * work.width;
    if (work.position_gradient == nullptr) {
      for (int64_t i = first_column; i < last_column; ++i) {
        token[i] += to_float(gradient[i]);
      }
      continue;
    }
    float* position = work.position_gradient + row % work.context * work.width;
    for (int64_t i = first_column; i < last_column; ++i) {
      const float value = to_float(gradient[i]);
      token[i] += value;
      position[i] += value;
    }
  }
}

}  // namespace

PENSTOCK_CPU_CLONES void embed(const EmbeddingForward<float>& work, int64_t first, int64_t last) {
  forward(work, first, last);
}
PENSTOCK_CPU_CLONES void embed(const EmbeddingForward<Bf16>& work, int64_t first, int64_t last) {
  forward(work, first, last);
}
PENSTOCK_CPU_CLONES void embed_backward(const EmbeddingBackward<float>& work,
                                        int64_t first,
                                        int64_t last) {
  backward(work, first, last);
}
PENSTOCK_CPU_CLONES void embed_backward(const EmbeddingBackward<Bf16>& work,
                                        int64_t first,
                                        int64_t last) {
  backward(work, first, last);
}

}  // namespace penstock::kernels
