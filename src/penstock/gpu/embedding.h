// Rows of a table by token, plus a learned position where there is one, and the gradients of both.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

// out[r, :] = table[tokens[r], :] + positions[r % context, :]. Tokens are not checked against the
// size of the table.
struct EmbeddingForward {
  Type type;
  const void* table;      // [vocabulary, width]
  const void* positions;  // [context, width] or null
  const int64_t* tokens;  // [rows]
  void* out;              // [rows, width]
  int64_t rows;           // samples * context
  int64_t context;
  int64_t width;
};
void embed(const EmbeddingForward& work, Stream stream);

// table_gradient[tokens[r], :] += gradient[r, :], and the positions likewise. The same bits in
// every run: rows are sorted by token and summed in their order, in float32. Rows of tokens that
// do not occur are neither read nor written.
struct EmbeddingBackward {
  Type type;
  const void* gradient;      // [rows, width]
  const int64_t* tokens;     // [rows], each in 0 .. vocabulary - 1
  float* table_gradient;     // [vocabulary, width]
  float* position_gradient;  // [context, width] or null
  int64_t rows;              // samples * context, below 2^31
  int64_t context;
  int64_t width;
  int64_t vocabulary;
  void* workspace;  // aligned to 256 bytes, as cudaMalloc gives; its contents do not matter
};
// Asks the current device how much its sort needs; the same answer for the same numbers.
int64_t embedding_backward_workspace_bytes(int64_t rows, int64_t width, int64_t vocabulary);
void embed_backward(const EmbeddingBackward& work, Stream stream);

}  // namespace penstock::gpu
