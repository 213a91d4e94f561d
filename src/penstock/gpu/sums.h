// Sums whose order is fixed by the shape alone, so that a run repeats bit for bit: partial sums in
// a first kernel, added up in order by a second. No atomics.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

struct ColumnSums {
  Type type;
  const void* x;  // [rows, stride]; the first `width` columns count
  int64_t rows, width;
  int64_t stride;    // elements between rows
  float* out;        // [width], added to
  float* workspace;  // column_sums_workspace_floats(width); free again when the stream is past
};

// For any number of rows, on the current device.
int64_t column_sums_workspace_floats(int64_t width);
void add_column_sums(const ColumnSums& work, Stream stream);

// total += values[0] + .. + values[count - 1], in double. One block: for some 100,000 values.
void add_sum(const float* values, int64_t count, double* total, Stream stream);

// The second kernel, for others that leave partial sums: out[s][c] += the sum over p of
// partials[s, p, c].
struct PartialSums {
  const float* partials;  // [number of outs, count, width]
  int64_t count, width;
  float* out[3];  // each [width]; a null one is left out
};
void add_partial_sums(const PartialSums& work, Stream stream);

}  // namespace penstock::gpu
