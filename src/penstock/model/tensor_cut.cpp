#include "penstock/model/tensor_cut.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::model {

std::vector<TensorRange> tensor_ranges(const TensorCut& cut,
                                       int64_t size,
                                       int32_t rank,
                                       int32_t ranks) {
  PENSTOCK_CHECK(rank >= 0 && rank < ranks, "rank ", rank, " of ", ranks);
  if (cut.dim < 0) {
    return {{0, size}};
  }
  PENSTOCK_CHECK(cut.parts > 0 && cut.blocks > 0 && size % (cut.parts * cut.blocks) == 0,
                 size,
                 " elements in ",
                 cut.blocks,
                 " x ",
                 cut.parts,
                 " parts");
  // Of one block, in readers; then in the parts that they read.
  const int64_t all = cut.parts * cut.readers;
  const int64_t least = all / ranks, longer = all % ranks;
  int64_t first = rank * least + std::min<int64_t>(rank, longer);
  int64_t end = first + least + (rank < longer ? 1 : 0);
  first = std::min(first / cut.readers, cut.parts);
  end = std::max(first, (end + cut.readers - 1) / cut.readers);
  const int64_t block = size / cut.blocks, part = block / cut.parts;
  std::vector<TensorRange> ranges;
  for (int64_t i = 0; i < cut.blocks; ++i) {
    ranges.push_back({i * block + first * part, i * block + end * part});
  }
  return ranges;
}

int64_t tensor_count(const TensorCut& cut,
                     const std::vector<int64_t>& shape,
                     int32_t rank,
                     int32_t ranks) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  if (cut.dim < 0) {
    return count;
  }
  const int64_t size = shape.at(static_cast<size_t>(cut.dim));
  int64_t own = 0;
  for (const TensorRange& range : tensor_ranges(cut, size, rank, ranks)) {
    own += range.count();
  }
  return count / size * own;
}

}  // namespace penstock::model
