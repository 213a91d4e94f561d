// What a collective sends, by formula (docs/collectives.md): how long it takes can be told from it.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/comm/collectives.h"

namespace penstock::comm {

struct Traffic {
  int64_t bytes = 0;  // that this rank sends
  int32_t steps =
      0;  // messages that wait for each other, on the longest way; parts of one count once
};

// Own: as Ring.
Traffic all_reduce_traffic(
    Algorithm algorithm, int32_t rank, int32_t size, int64_t count, Element element);
// There are as many ranks as chunks.
Traffic reduce_scatter_traffic(Algorithm algorithm,
                               int32_t rank,
                               std::span<const int64_t> cuts,
                               Element element);
Traffic all_gather_traffic(Algorithm algorithm, int32_t rank, std::span<const int64_t> byte_cuts);
Traffic broadcast_traffic(
    Algorithm algorithm, int32_t root, int32_t rank, int32_t size, int64_t bytes);

}  // namespace penstock::comm
