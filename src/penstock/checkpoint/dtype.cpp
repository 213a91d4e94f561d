#include "penstock/checkpoint/dtype.h"

#include <algorithm>
#include <array>

#include "penstock/base/error.h"

namespace penstock::checkpoint {

namespace {

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
};

// In the order of the enum, so that a dtype is its own index.
constexpr std::array kDtypes = {DtypeInfo{Dtype::Bool, "BOOL", 1},
                                DtypeInfo{Dtype::U8, "U8", 1},
                                DtypeInfo{Dtype::I8, "I8", 1},
                                DtypeInfo{Dtype::F8_E4M3, "F8_E4M3", 1},
                                DtypeInfo{Dtype::F8_E5M2, "F8_E5M2", 1},
                                DtypeInfo{Dtype::I16, "I16", 2},
                                DtypeInfo{Dtype::U16, "U16", 2},
                                DtypeInfo{Dtype::F16, "F16", 2},
                                DtypeInfo{Dtype::BF16, "BF16", 2},
                                DtypeInfo{Dtype::I32, "I32", 4},
                                DtypeInfo{Dtype::U32, "U32", 4},
                                DtypeInfo{Dtype::F32, "F32", 4},
                                DtypeInfo{Dtype::F64, "F64", 8},
                                DtypeInfo{Dtype::I64, "I64", 8},
                                DtypeInfo{Dtype::U64, "U64", 8}};

const DtypeInfo& info_of(Dtype dtype) {
  const size_t index = static_cast<size_t>(dtype);
  PENSTOCK_CHECK(index < kDtypes.size(), "dtype ", index, " of ", kDtypes.size());
  return kDtypes[index];
}

constexpr bool is_in_order() {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].dtype != static_cast<Dtype>(i)) {
      return false;
    }
  }
  return true;
}
static_assert(is_in_order());

}  // namespace

int64_t dtype_bytes(Dtype dtype) {
  return info_of(dtype).bytes;
}

std::string_view dtype_name(Dtype dtype) {
  return info_of(dtype).name;
}

std::optional<Dtype> find_dtype(std::string_view name) {
  const auto found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.name == name; });
  return found == kDtypes.end() ? std::nullopt : std::optional(found->dtype);
}

std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  int64_t bytes = dtype_bytes(dtype);
  bool is_empty = false;
  for (const int64_t dim : shape) {
    is_empty = is_empty || dim == 0;
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : bytes;
}

}  // namespace penstock::checkpoint
