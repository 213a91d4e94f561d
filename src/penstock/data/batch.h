// Several samples side by side, as a step takes them: named tensors, whole or a part of the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/data/dataset.h"

namespace penstock::data {

struct BatchField {
  Field field;
  std::vector<std::byte> bytes;  // [rows, field.shape...], row-major
};

struct Batch {
  int64_t first_sample = 0;         // of the whole batch, in the run
  int64_t samples = 0;              // of the whole batch
  int64_t first_row = 0, rows = 0;  // which of its rows are here
  int64_t read_bytes = 0;           // of files, for these rows
  std::vector<BatchField> fields;

  // Nothing when the batch lacks a field of this name.
  const BatchField* find(const std::string& name) const;
};

// Gives the batch, whose rows are known, room for these fields; read_row fills it.
void make_room(const Dataset& dataset, const std::vector<size_t>& fields, Batch& batch);

// Puts these fields of sample `sample` of the dataset into row `row` of those that are here.
void read_row(const Dataset& dataset,
              const std::vector<size_t>& fields,
              int64_t sample,
              int64_t row,
              Batch& batch);

// Samples [first, first + count) as they lie in the dataset: for validation. No names: all fields.
Batch read_in_order(const Dataset& dataset,
                    int64_t first,
                    int64_t count,
                    const std::vector<std::string>& fields = {});

// Makes two batches that follow each other, of the same fields, into one: the rows that are here of
// `all`, then those of `next`. `all` may have nothing in it yet. When parts of the rows are here,
// first_row stays that of the first batch.
void append(Batch& all, Batch next);

}  // namespace penstock::data
