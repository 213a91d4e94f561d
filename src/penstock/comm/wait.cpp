#include "penstock/comm/wait.h"

#include <algorithm>
#include <iomanip>

namespace penstock::comm {

Wait::Wait(int32_t rank, int32_t peer, const What& what) : rank_(rank), peer_(peer), what_(what) {}

double Wait::seconds() {
  const Clock::time_point now = Clock::now();
  seconds_ += std::min(1.0, std::chrono::duration<double>(now - last_look_).count());
  last_look_ = now;
  return seconds_;
}

std::string Wait::text() {
  const std::string peer = peer_ == kOthers ? "the other ranks" : cat("rank ", peer_);
  return cat(std::fixed, std::setprecision(1), seconds(), " s for ", peer, ": ", what_());
}

std::string Wait::timeout_line() {
  return cat("rank ", rank_, " has waited ", text());
}

std::string Wait::stopped_line(const char* signal) {
  return cat("rank ", rank_, " was stopped by ", signal, " while waiting ", text());
}

std::string Wait::ended_line() {
  return cat("rank ", rank_, " waits for rank ", peer_, ", which has ended its work: ", what_());
}

PeerError Wait::peer_error(const Failure& failure) {
  return {failure.code, cat(failure.line, " (rank ", rank_, " had waited ", text(), ")")};
}

}  // namespace penstock::comm
