// How the replicas of a rank divide its parameters: into units, which are reduced and gathered at
// once, and each unit into pieces, one for each replica.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/model/chain.h"
#include "penstock/program/program.h"

namespace penstock::model {

struct UnitSpec {
  std::string name;
  std::vector<int64_t> layers;            // that use it, ascending; chain.size(): the loss
  std::vector<int64_t> forward_only;      // of them, those whose backward needs no weights
  std::vector<ParameterSpec> parameters;  // those that stay float32 last
};

// Of a chain whose stages begin with the layers `cuts` (and end with its size). Consecutive layers
// of a stage are one unit until it has `least_bytes` of float32; 0: each layer is one. A parameter
// that several layers share is a unit by itself.
std::vector<UnitSpec> make_units(const Chain& chain,
                                 const std::vector<int32_t>& cuts,
                                 int64_t least_bytes);

// Elements of a unit that are handed to layers in one type, and where they are cut. Counts are from
// the range's beginning.
struct UnitRange {
  int64_t first = 0;  // element of the unit
  int64_t count = 0;
  bool is_float32 = false;  // whatever the compute precision
  std::vector<int64_t>
      cuts;  // replica d has cuts[d] .. cuts[d + 1] - 1; one more than there are replicas

  int64_t piece_first(int32_t replica) const { return cuts[static_cast<size_t>(replica)]; }
  int64_t piece_count(int32_t replica) const {
    return cuts[static_cast<size_t>(replica) + 1] - piece_first(replica);
  }
};

struct UnitLayout {
  std::vector<int64_t> offsets;   // of the parameters, in elements of the unit
  std::vector<UnitRange> ranges;  // one, or two where some parameters stay float32 beside others
  int64_t elements = 0;

  int64_t piece_count(int32_t replica) const;
};

// Pieces begin with a parameter, or a multiple of this many elements after its beginning: sums over
// blocks of so many elements are the same whoever has them.
inline constexpr int64_t kPieceGrain = 4096;

// compute_is_float32: all is of one type.
UnitLayout lay_out(const UnitSpec& unit, bool compute_is_float32, int32_t replicas);

// Where a rank stands among the replicas of its stage.
struct Replication {
  program::Shard shard = program::Shard::None;
  int32_t replicas = 1;
  int32_t replica = 0;
  std::vector<UnitSpec> units;  // of the whole chain; none where there is one replica
};

// What a rank holds during the whole step, as Parameters allocates it, in elements.
struct RankElements {
  int64_t weights = 0;           // float32: whole, or the piece of the replica
  int64_t compute = 0;           // what layers see in a lower precision, whole
  int64_t whole_float32 = 0;     // parameters that layers see in float32 beside those
  int64_t gradients = 0;         // float32: whole, or the piece
  int64_t shared_gradients = 0;  // likewise: of parameters that several layers of the rank share
  int64_t state = 0;             // of each buffer of an optimizer's
};
RankElements count_elements(const Chain& chain,
                            const Part& part,
                            bool compute_is_float32,
                            const Replication& replication);

}  // namespace penstock::model
