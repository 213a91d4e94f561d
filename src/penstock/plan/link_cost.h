// What a message between ranks takes.
#pragma once

#include <cstdint>

namespace penstock::plan {

// Seconds of a message: latency + bytes / bandwidth.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: infinite

  bool operator==(const LinkCost&) const = default;

  double seconds(int64_t bytes) const {
    return latency_s + (bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s : 0);
  }
};

}  // namespace penstock::plan
