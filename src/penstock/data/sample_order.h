// The order in which samples are drawn. Each epoch is a permutation that is a pure function of the
// seed and the epoch, so a resumed run needs only its sample index, and ranks agree without a word.
//
// The permutation is a balanced Feistel network (Luby and Rackoff 1988) over the smallest domain of
// an even number of bits, with Philox as round function; a value outside 0..samples-1 is put
// through again until it falls inside (cycle walking, Black and Rogaway 2002). No table is kept:
// the memory is constant, and so is the expected time, as less than 3/4 of the domain lies outside.
#pragma once

#include <cstdint>

#include "penstock/base/philox.h"

namespace penstock::data {

class SampleOrder {
 public:
  SampleOrder(int64_t samples, uint64_t seed);

  // The sample drawn at global index epoch * samples + position, which must not be negative.
  int64_t at(int64_t index) const;

 private:
  uint64_t permute(uint64_t value, uint64_t epoch) const;

  uint64_t samples_;
  PhiloxKey key_;
  int half_bits_;
};

}  // namespace penstock::data
