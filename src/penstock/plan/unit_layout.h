// How a unit's parameters lie one after the other, and how replicas divide them into slices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::plan {

// A parameter, as far as bytes go.
struct ParameterSize {
  std::string name;
  int64_t count = 0;               // elements
  int64_t flat = 0;                // that it takes in a flat buffer, padding included
  bool is_always_float32 = false;  // layers see it in float32 whatever the compute precision
  bool is_frozen = false;          // never moved
};

struct UnitSize {
  program::Unit unit;
  std::vector<ParameterSize> parameters;  // those that stay float32 last
};

// Elements of a unit that are handed to layers in one type, and where they are cut. Counts are from
// the range's beginning.
struct UnitRange {
  int64_t first = 0;  // element of the unit
  int64_t count = 0;
  bool is_float32 = false;    // whatever the compute precision
  std::vector<int64_t> cuts;  // replica d has cuts[d] .. cuts[d + 1] - 1

  int64_t slice_first(int32_t replica) const { return cuts[static_cast<size_t>(replica)]; }
  int64_t slice_count(int32_t replica) const {
    return cuts[static_cast<size_t>(replica) + 1] - slice_first(replica);
  }
};

struct UnitLayout {
  std::vector<int64_t> offsets;   // of the parameters, in elements of the unit
  std::vector<UnitRange> ranges;  // one, or two where some parameters stay float32 beside others
  int64_t elements = 0;

  int64_t slice_count(int32_t replica) const;
  std::vector<program::Slice> slices(int32_t replica) const;  // where it has none: an empty one
};

// Slices begin with a parameter, or a multiple of this many elements after its beginning: sums over
// blocks of so many elements are the same whoever has them.
inline constexpr int64_t kSliceGrain = 4096;

// compute_is_float32: all is of one type.
UnitLayout lay_out(const UnitSize& unit, bool compute_is_float32, int32_t replicas);

}  // namespace penstock::plan
