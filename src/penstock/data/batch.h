// Several samples side by side, as a step takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/data/dataset.h"

namespace penstock::data {

struct Batch {
  int64_t first_sample = 0;
  int64_t sequences = 0;
  int64_t context = 0;
  std::vector<int64_t> inputs;   // [sequences, context], row-major
  std::vector<int64_t> targets;  // [sequences, context], row-major
};

// Room for `sequences` samples of the dataset; read_row fills it.
Batch make_batch(const Dataset& dataset, int64_t first_sample, int64_t sequences);

// Puts sample `sample` of the dataset into row `row`.
void read_row(const Dataset& dataset, int64_t sample, int64_t row, Batch& batch);

// Samples [first, first + count) as they lie in the dataset: for validation.
Batch read_in_order(const Dataset& dataset, int64_t first, int64_t count);

}  // namespace penstock::data
