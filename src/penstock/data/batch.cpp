#include "penstock/data/batch.h"

#include <algorithm>
#include <span>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::data {

const BatchField* Batch::find(const std::string& name) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const BatchField& have) {
    return have.field.name == name;
  });
  return found == fields.end() ? nullptr : &*found;
}

void make_room(const Dataset& dataset, const std::vector<size_t>& fields, Batch& batch) {
  for (const size_t field : fields) {
    BatchField& room = batch.fields.emplace_back();
    room.field = dataset.fields()[field];
    room.bytes.resize(static_cast<size_t>(batch.rows * room.field.bytes()));
  }
}

void read_row(const Dataset& dataset,
              const std::vector<size_t>& fields,
              int64_t sample,
              int64_t row,
              Batch& batch) {
  for (size_t i = 0; i < fields.size(); ++i) {
    const size_t bytes = static_cast<size_t>(batch.fields[i].field.bytes());
    batch.read_bytes += dataset.read(
        sample,
        fields[i],
        std::span(batch.fields[i].bytes).subspan(static_cast<size_t>(row) * bytes, bytes));
  }
}

Batch read_in_order(const Dataset& dataset,
                    int64_t first,
                    int64_t count,
                    const std::vector<std::string>& fields) {
  PENSTOCK_CHECK(first >= 0 && count >= 0 && first + count <= dataset.samples(),
                 "samples ",
                 first,
                 " + ",
                 count,
                 " of ",
                 dataset.samples());
  const std::vector<size_t> chosen = chosen_fields(dataset, fields);
  Batch batch{.first_sample = first, .samples = count, .rows = count};
  make_room(dataset, chosen, batch);
  for (int64_t row = 0; row < count; ++row) {
    read_row(dataset, chosen, first + row, row, batch);
  }
  return batch;
}

void append(Batch& all, Batch next) {
  if (all.samples == 0 && all.fields.empty()) {
    all = std::move(next);
    return;
  }
  PENSTOCK_CHECK(next.first_sample == all.first_sample + all.samples,
                 "sample ",
                 next.first_sample,
                 " after ",
                 all.first_sample,
                 " + ",
                 all.samples);
  PENSTOCK_CHECK(next.fields.size() == all.fields.size(),
                 next.fields.size(),
                 " fields after ",
                 all.fields.size());
  for (size_t i = 0; i < all.fields.size(); ++i) {
    PENSTOCK_CHECK(next.fields[i].field == all.fields[i].field,
                   next.fields[i].field.name,
                   " after ",
                   all.fields[i].field.name);
  }
  for (size_t i = 0; i < all.fields.size(); ++i) {
    const std::vector<std::byte>& more = next.fields[i].bytes;
    all.fields[i].bytes.insert(all.fields[i].bytes.end(), more.begin(), more.end());
  }
  all.samples += next.samples;
  all.rows += next.rows;
  all.read_bytes += next.read_bytes;
}

}  // namespace penstock::data
