// How the ranks of the tensor axis divide a parameter (Megatron's column and row split, heads, the
// vocabulary). Declared with the parameter; docs/families.md has the split of each family.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock::model {

struct TensorCut {
  int32_t dim = -1;  // along which it is cut; -1: every rank has all of it
  // What the dimension consists of, which is never cut: heads, features of the MLP, rows of a table.
  int64_t parts = 1;
  // Of parts that several others read (a head of keys and values, by a group of heads of queries): how
  // many. A rank has all that its readers need, so ranks may have the same one.
  int64_t readers = 1;
  // Matrices side by side along the dimension, each cut by itself: queries, keys and values.
  int64_t blocks = 1;
};

struct TensorRange {
  int64_t first = 0, end = 0;

  int64_t count() const { return end - first; }
  bool operator==(const TensorRange&) const = default;
};

// What a rank has along the dimension, of `size` elements: one range for each block, the first ranks
// one part more where they do not come out even. With more ranks than parts the last have none.
std::vector<TensorRange> tensor_ranges(const TensorCut& cut,
                                       int64_t size,
                                       int32_t rank,
                                       int32_t ranks);

// Elements of a parameter of this shape that a rank has.
int64_t tensor_count(const TensorCut& cut,
                     const std::vector<int64_t>& shape,
                     int32_t rank,
                     int32_t ranks);

}  // namespace penstock::model
