// One wait of a rank for a peer: how long it has lasted, and the lines that tell of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "penstock/comm/failure.h"

namespace penstock::comm {

// What is waited for, in words for people: "instruction 12, receive of block 3, micro-batch 1".
// Only called when there is something to tell.
using What = std::function<std::string()>;

class Wait {
 public:
  // For a peer: all the other ranks, where nobody can say which of them is late.
  static constexpr int32_t kOthers = -1;

  // `what` must live as long as the wait.
  Wait(int32_t rank, int32_t peer, const What& what);

  // Seconds waited up to now. To be asked at least once a second: a longer gap means that this
  // process was itself stopped (Ctrl-Z, a debugger), and does not count.
  double seconds();

  std::string timeout_line();  // "rank 2 has waited 30.0 s for rank 1: <what>"
  std::string stopped_line(const char* signal);
  std::string ended_line();

  // The failure of another rank, with what this one was waiting for when it heard of it.
  PeerError peer_error(const Failure& failure);

 private:
  using Clock = std::chrono::steady_clock;

  std::string text();  // "0.8 s for rank 1: <what>", or "for the other ranks"

  const int32_t rank_;
  const int32_t peer_;
  const What& what_;
  Clock::time_point last_look_ = Clock::now();
  double seconds_ = 0;
};

}  // namespace penstock::comm
