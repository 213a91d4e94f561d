#include "penstock/comm/mpi_sends.h"

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
  has_more_.notify_one();
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

void MpiSends::run(const std::stop_token& stop) {
  constexpr auto kPause = std::chrono::microseconds(50);
  std::unique_lock lock(mutex_);
  while (has_more_.wait(lock, stop, [&] { return !under_way_.empty(); })) {
    try {
      std::erase_if(under_way_, [&](MpiSending* sending) { return test_all(sending->requests); });
    } catch (const InternalError&) {
      return;  // the rank's own next call meets the same error
    }
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace penstock::comm
