#include "penstock/data/batch.h"

#include <span>

#include "penstock/base/error.h"

namespace penstock::data {

Batch make_batch(const Dataset& dataset, int64_t first_sample, int64_t sequences) {
  Batch batch;
  batch.first_sample = first_sample;
  batch.sequences = sequences;
  batch.context = dataset.context();
  batch.inputs.resize(static_cast<size_t>(sequences * batch.context));
  batch.targets.resize(batch.inputs.size());
  return batch;
}

void read_row(const Dataset& dataset, int64_t sample, int64_t row, Batch& batch) {
  const size_t offset = static_cast<size_t>(row * batch.context);
  const size_t length = static_cast<size_t>(batch.context);
  dataset.read_sample(sample,
                      std::span(batch.inputs).subspan(offset, length),
                      std::span(batch.targets).subspan(offset, length));
}

Batch read_in_order(const Dataset& dataset, int64_t first, int64_t count) {
  PENSTOCK_CHECK(first >= 0 && count >= 0 && first + count <= dataset.samples(),
                 "samples ",
                 first,
                 " + ",
                 count,
                 " of ",
                 dataset.samples());
  Batch batch = make_batch(dataset, first, count);
  for (int64_t row = 0; row < count; ++row) {
    read_row(dataset, first + row, row, batch);
  }
  return batch;
}

}  // namespace penstock::data
