// From channels to MPI's tags. An MPI library need not have tags beyond 32767, so channels that are in use
// are packed: those of the whole job first, then a few for each group that was split from it.
#pragma once

#include <cstdint>
#include <optional>

#include "penstock/comm/group.h"

namespace penstock::comm {

inline constexpr int64_t kLeastMostTag = 32767;  // what every MPI library has

// How many of a group's channels have a tag below those that any library has.
inline constexpr int64_t kPackedJobChannels = 16383, kPackedGroupChannels = 15;

// The channel of the job, or of group `number` (from 1) within it, counted as SubGroup does:
// number * (kNumChannels + 1) + channel, where kNumChannels itself is the group's own. No two channels
// have the same tag. Nothing: it would be beyond `most`.
constexpr std::optional<int64_t> tag_of(int64_t channel, int64_t most) {
  constexpr int64_t kEach = Group::kNumChannels + 1;
  const int64_t number = channel / kEach, inside = channel % kEach;
  const bool is_own = inside == Group::kNumChannels;
  const int64_t packed = number == 0 ? kPackedJobChannels : kPackedGroupChannels;
  int64_t tag = 0;
  if (number == 0) {
    tag = is_own ? packed : inside;
  } else {
    tag = kPackedJobChannels + 1 + (number - 1) * (packed + 1) + (is_own ? packed : inside);
  }
  // The rest lies behind, each channel at a place of its own.
  if ((!is_own && inside >= packed) || tag > kLeastMostTag) {
    tag = kLeastMostTag + 1 + channel;
  }
  return tag <= most ? std::optional(tag) : std::nullopt;
}

}  // namespace penstock::comm
