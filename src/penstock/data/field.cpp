#include "penstock/data/field.h"

#include <set>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock::data {

namespace {

void check_shape(const Field& field) {
  int64_t bytes = bytes_of(field.type);
  for (const int64_t size : field.shape) {
    if (size < 1) {
      throw ConfigError(cat("field ",
                            in_quotes(field.name),
                            " of the data is ",
                            type_and_shape(field),
                            "; each size must be 1 or more (a single number has the shape {})"));
    }
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      throw ConfigError(cat("field ",
                            in_quotes(field.name),
                            " of the data is ",
                            type_and_shape(field),
                            ": the bytes of one sample do not fit into 63 bits"));
    }
  }
}

}  // namespace

int64_t bytes_of(FieldType type) {
  switch (type) {
    case FieldType::Int64:
      return 8;
    case FieldType::Int32:
    case FieldType::Float32:
      return 4;
    case FieldType::UInt8:
    case FieldType::Bool:
      return 1;
  }
  PENSTOCK_CHECK(false, "type ", static_cast<int>(type));
}

std::string name_of(FieldType type) {
  switch (type) {
    case FieldType::Int64:
      return "Int64";
    case FieldType::Int32:
      return "Int32";
    case FieldType::UInt8:
      return "UInt8";
    case FieldType::Bool:
      return "Bool";
    case FieldType::Float32:
      return "Float32";
  }
  PENSTOCK_CHECK(false, "type ", static_cast<int>(type));
}

int64_t Field::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

int64_t Field::bytes() const {
  return elements() * bytes_of(type);
}

std::string type_and_shape(const Field& field) {
  std::vector<std::string> sizes;
  for (const int64_t size : field.shape) {
    sizes.push_back(std::to_string(size));
  }
  return cat(name_of(field.type), " [", join(sizes, ", "), "]");
}

void check_fields(const std::vector<Field>& fields) {
  if (fields.empty()) {
    throw ConfigError("the data has no fields; give it at least one");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name.empty()) {
      throw ConfigError(cat("field ", i, " of the data has no name; name it"));
    }
    if (!names.insert(fields[i].name).second) {
      throw ConfigError(cat(
          "the data has two fields ", in_quotes(fields[i].name), "; give each a name of its own"));
    }
    check_shape(fields[i]);
  }
}

}  // namespace penstock::data
