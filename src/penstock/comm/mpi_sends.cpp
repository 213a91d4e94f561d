#include "penstock/comm/mpi_sends.h"

#include <array>
#include <chrono>

namespace penstock::comm {

void check_mpi(int result, const char* call) {
  if (result != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text = {};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw InternalError(cat(call, " failed: ", text.data()));
  }
}

namespace {

bool test_all(std::vector<MPI_Request>& requests) {
  int is_done = 0;
  const int count = static_cast<int>(requests.size());
  check_mpi(MPI_Testall(count, requests.data(), &is_done, MPI_STATUSES_IGNORE), "MPI_Testall");
  if (is_done != 0) {
    requests.clear();
  }
  return is_done != 0;
}

}  // namespace

MpiSending::~MpiSending() {
  const std::lock_guard lock(list.mutex());
  list.forget(*this);
}

MpiSends::MpiSends() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

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

void MpiSends::forget(MpiSending& sending) {
  std::erase(under_way_, &sending);
}

void MpiSends::run(const std::stop_token& stop) {
  constexpr auto kPause = std::chrono::microseconds(50);
  std::unique_lock lock(mutex_);
  while (has_more_.wait(lock, stop, [&] { return !under_way_.empty(); })) {
    try {
      std::erase_if(under_way_, [](MpiSending* sending) { return test_all(sending->requests); });
    } catch (const InternalError&) {
      return;  // the rank's own next call meets the same error
    }
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace penstock::comm
