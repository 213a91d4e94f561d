// Batches of data/ as LibTorch sees them.
#pragma once

#include <map>
#include <string>

#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/model/layer.h"

namespace penstock::train {

// Views of the batch, which must outlive them.
model::Fields as_tensors(const data::Batch& batch);

// Of all fields, for one sample.
std::map<std::string, model::TensorShape> field_shapes(const data::Dataset& dataset);

}  // namespace penstock::train
