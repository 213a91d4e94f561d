#include "penstock/train/batch_tensors.h"

#include <ATen/ATen.h>

#include "penstock/base/error.h"

namespace penstock::train {

namespace {

at::ScalarType type_of(data::FieldType type) {
  switch (type) {
    case data::FieldType::Int64:
      return at::kLong;
    case data::FieldType::Int32:
      return at::kInt;
    case data::FieldType::UInt8:
      return at::kByte;
    case data::FieldType::Bool:
      return at::kBool;
    case data::FieldType::Float32:
      return at::kFloat;
  }
  throw InternalError("no such type of a field");
}

std::vector<int64_t> sizes_of(const data::Field& field, int64_t rows) {
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), field.shape.begin(), field.shape.end());
  return sizes;
}

}  // namespace

model::Fields as_tensors(const data::Batch& batch) {
  model::Fields fields;
  for (const data::BatchField& one : batch.fields) {
    fields[one.field.name] = at::from_blob(const_cast<std::byte*>(one.bytes.data()),
                                           sizes_of(one.field, batch.rows),
                                           type_of(one.field.type));
  }
  return fields;
}

std::map<std::string, model::TensorShape> field_shapes(const data::Dataset& dataset) {
  std::map<std::string, model::TensorShape> shapes;
  for (const data::Field& field : dataset.fields()) {
    shapes[field.name] = {sizes_of(field, 1), type_of(field.type), /*has_gradient=*/false};
  }
  return shapes;
}

}  // namespace penstock::train
