#include "penstock/plan/unit_layout.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

// Where a slice may begin in a range, nearest to `ideal`.
int64_t nearest_cut(const std::vector<int64_t>& begins, const UnitRange& range, int64_t ideal) {
  int64_t before = 0;
  int64_t after = range.count;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t begin = begins[i];
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : range.count;
    if (begin <= ideal && ideal < end) {
      before = begin + (ideal - begin) / kSliceGrain * kSliceGrain;
      after = std::min(before + kSliceGrain, end);
    }
  }
  return ideal - before <= after - ideal ? before : after;
}

void cut(UnitRange& range, const std::vector<int64_t>& begins, int32_t replicas) {
  range.cuts.push_back(0);
  for (int32_t replica = 1; replica < replicas; ++replica) {
    const int64_t ideal = range.count * replica / replicas;
    range.cuts.push_back(std::max(range.cuts.back(), nearest_cut(begins, range, ideal)));
  }
  range.cuts.push_back(range.count);
}

}  // namespace

int64_t UnitLayout::slice_count(int32_t replica) const {
  int64_t count = 0;
  for (const UnitRange& range : ranges) {
    count += range.slice_count(replica);
  }
  return count;
}

std::vector<program::Slice> UnitLayout::slices(int32_t replica) const {
  std::vector<program::Slice> all;
  for (const UnitRange& range : ranges) {
    const int64_t first = range.first + range.slice_first(replica);
    if (const int64_t count = range.slice_count(replica); count > 0) {
      all.push_back({first, first + count});
    }
  }
  if (all.empty()) {
    all.push_back({0, 0});
  }
  return all;
}

UnitLayout lay_out(const UnitSize& unit, bool compute_is_float32, int32_t replicas) {
  UnitLayout layout;
  std::vector<std::vector<int64_t>> begins;  // of parameters, by range
  for (const ParameterSize& parameter : unit.parameters) {
    const bool is_float32 = !compute_is_float32 && parameter.is_always_float32;
    if (layout.ranges.empty() || layout.ranges.back().is_float32 != is_float32) {
      layout.ranges.push_back({.first = layout.elements, .is_float32 = is_float32});
      begins.emplace_back();
    }
    UnitRange& range = layout.ranges.back();
    layout.offsets.push_back(layout.elements);
    begins.back().push_back(range.count);
    range.count += parameter.flat;
    layout.elements += parameter.flat;
  }
  PENSTOCK_CHECK(layout.ranges.size() <= 2,
                 "a unit's parameters are not in the order of their types");
  for (size_t i = 0; i < layout.ranges.size(); ++i) {
    cut(layout.ranges[i], begins[i], replicas);
  }
  return layout;
}

}  // namespace penstock::plan
