#include "penstock/comm/mpi_sends.h"

#include <algorithm>
#include <chrono>

namespace penstock::comm {

void check_mpi(const MpiError& error) {
  if (!error.empty()) {
    throw InternalError(error);
  }
}

MpiSending::~MpiSending() {
  const std::lock_guard lock(list.mutex());
  list.forget(*this);
}

MpiSends::MpiSends(MpiCalls& calls)
    : calls_(calls), thread_([this](const std::stop_token& stop) { run(stop); }) {}

void MpiSends::add(MpiSending& sending) {
  under_way_.push_back(&sending);
  if (is_resting_) {
    has_more_.notify_one();
  }
}

bool MpiSends::is_done(MpiSending& sending) {
  if (!test_all(sending.requests)) {
    return false;
  }
  forget(sending);
  return true;
}

bool MpiSends::test_all(std::vector<MpiRequest>& requests) {
  while (!requests.empty()) {
    bool is_done = false;
    check_mpi(calls_.test(requests.back(), is_done));
    if (!is_done) {
      return false;
    }
    requests.pop_back();
  }
  return true;
}

void MpiSends::forget(MpiSending& sending) {
  std::erase(under_way_, &sending);
}

void MpiSends::test_under_way() {
  std::erase_if(under_way_, [&](MpiSending* sending) { return test_all(sending->requests); });
}

// To wake the thread for every send costs a rank more than a small message does, so it rests only
// when there has been nothing to do for a while.
void MpiSends::run(const std::stop_token& stop) {
  constexpr auto kShortest = std::chrono::microseconds(50);
  constexpr auto kLongest = std::chrono::microseconds(200);
  constexpr int kIdleRounds = 10;
  std::chrono::microseconds pause = kShortest;
  int64_t looks_seen = 0;
  int num_idle = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (num_idle >= kIdleRounds) {
      is_resting_ = true;
      has_more_.wait(lock, stop, [&] { return !under_way_.empty(); });
      is_resting_ = false;
      num_idle = 0;
    }
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
    num_idle = under_way_.empty() ? num_idle + 1 : 0;
    pause = looks_seen == num_looks_ ? kShortest : std::min(2 * pause, kLongest);
    if (looks_seen == num_looks_) {
      try {
        test_under_way();
      } catch (const InternalError&) {
        return;  // the rank's own next call meets the same error
      }
    }
    looks_seen = num_looks_;
  }
}

}  // namespace penstock::comm
