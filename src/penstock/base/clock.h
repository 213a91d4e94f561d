// The steady clock, which records begin by.
#pragma once

#include <chrono>

namespace penstock {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace penstock
