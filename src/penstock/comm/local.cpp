#include "penstock/comm/local.h"

#include <algorithm>
#include <compare>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::comm {

namespace {

using Lock = std::unique_lock<std::mutex>;

struct Route {
  int32_t from;
  int32_t to;
  int64_t channel;

  auto operator<=>(const Route&) const = default;
};

class LocalSending;

// What the ranks share; all of it under the one mutex.
struct Job {
  explicit Job(size_t ranks) : num_ranks(ranks), changed(ranks), has_ended(ranks) {}

  void wake_all() {
    for (std::condition_variable& one : changed) {
      one.notify_all();
    }
  }
  void fail(const Failure& why) {  // the first failure is the one that counts
    if (!failure) {
      failure = why;
    }
    wake_all();
  }

  const size_t num_ranks;
  std::mutex mutex;
  std::vector<std::condition_variable> changed;         // one per rank
  std::map<Route, std::deque<LocalSending*>> messages;  // not yet taken
  std::vector<bool> has_ended;
  std::optional<Failure> failure;
  std::exception_ptr error;  // the first that was no consequence of another
};

// The receiver copies from the sender's memory, outside the lock.
class LocalSending : public Sending {
 public:
  enum class State { Waiting, Copying, Done };

  LocalSending(Job& shared_job, const Route& its_route, const void* its_data, int64_t its_bytes)
      : job(shared_job), route(its_route), data(its_data), bytes(its_bytes) {}

  // The bytes may go after this, so a copy that has begun is waited for.
  ~LocalSending() override {
    Lock lock(job.mutex);
    if (state == State::Waiting) {
      std::erase(job.messages[route], this);
    }
    job.changed[static_cast<size_t>(route.from)].wait(lock,
                                                      [&] { return state != State::Copying; });
  }

  Job& job;
  const Route route;
  const void* const data;
  const int64_t bytes;
  State state = State::Waiting;
};

class LocalGroup final : public Group {
 public:
  LocalGroup(Job& job, int32_t rank)
      : Group(rank, static_cast<int32_t>(job.num_ranks)), job_(job) {}

  bool shares_memory() const override { return true; }

  void fail(const Failure& failure) override {
    const Lock lock(job_.mutex);
    job_.fail(failure);
  }

 private:
  std::unique_ptr<Sending> start_send(int32_t peer,
                                      int64_t channel,
                                      const void* data,
                                      int64_t bytes) override {
    const Route route{rank(), peer, channel};
    auto sending = std::make_unique<LocalSending>(job_, route, data, bytes);
    const Lock lock(job_.mutex);
    job_.messages[route].push_back(sending.get());
    job_.changed[static_cast<size_t>(peer)].notify_all();
    return sending;
  }

  bool is_sent(Sending& sending) override {
    const Lock lock(job_.mutex);
    return static_cast<LocalSending&>(sending).state == LocalSending::State::Done;
  }

  void finish_send(Sending& sending, const What& what) override {
    const auto& mine = static_cast<LocalSending&>(sending);
    Lock lock(job_.mutex);
    wait_until(lock, mine.route.to, what, [&] { return mine.state == LocalSending::State::Done; });
  }

  void take(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) override {
    take_in_place(peer, channel, bytes, what, [&](const void* sent) {
      if (bytes > 0) {
        std::memcpy(data, sent, static_cast<size_t>(bytes));
      }
    });
  }

  void take_in_place(
      int32_t peer, int64_t channel, int64_t bytes, const What& what, const Use& use) override {
    Lock lock(job_.mutex);
    std::deque<LocalSending*>& queue = job_.messages[{peer, rank(), channel}];
    wait_until(lock, peer, what, [&] { return !queue.empty(); });
    LocalSending& message = *queue.front();
    if (message.bytes != bytes) {
      throw wrong_size(peer, bytes, cat(message.bytes), what);
    }
    queue.pop_front();
    message.state = LocalSending::State::Copying;
    lock.unlock();
    std::exception_ptr error;  // the sender must not be left waiting for a copy that failed
    try {
      use(message.data);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    message.state = LocalSending::State::Done;
    job_.changed[static_cast<size_t>(peer)].notify_all();
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }

  template <typename Condition>
  void wait_until(Lock& lock, int32_t peer, const What& what, const Condition& is_met) {
    Wait wait(rank(), peer, what);
    for (;;) {
      if (job_.failure) {
        throw wait.peer_error(*job_.failure);
      }
      if (is_met()) {
        return;
      }
      if (job_.has_ended[static_cast<size_t>(peer)]) {
        throw InternalError(wait.ended_line());
      }
      const double left = timeout() - wait.seconds();
      if (left <= 0) {
        const std::string line = wait.timeout_line();
        job_.fail({ExitCode::Internal, line});
        throw Timeout(line);
      }
      const std::chrono::duration<double> pause(std::min(left, 0.5));
      job_.changed[static_cast<size_t>(rank())].wait_for(lock, pause);
    }
  }

  Job& job_;
};

bool is_peer_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError&) {
    return true;
  } catch (...) {
    return false;
  }
}

void run_rank(Job& job, int32_t rank, const std::function<void(Group&)>& work) {
  std::exception_ptr error;
  try {
    LocalGroup group(job, rank);
    work(group);
  } catch (...) {
    error = std::current_exception();
  }
  const Lock lock(job.mutex);
  const bool is_consequence = job.failure && error != nullptr && is_peer_error(error);
  if (error != nullptr && !is_consequence) {
    if (job.error == nullptr) {
      job.error = error;
    }
    job.fail(describe_failure(rank, error));
  }
  job.has_ended[static_cast<size_t>(rank)] = true;
  job.wake_all();
}

// What was started before a thread could not be is told to end.
void run_ranks(Job& job, const std::function<void(Group&)>& work) {
  std::vector<std::jthread> threads;
  try {
    for (int32_t rank = 1; rank < static_cast<int32_t>(job.num_ranks); ++rank) {
      threads.emplace_back([&job, &work, rank] { run_rank(job, rank, work); });
    }
  } catch (const std::system_error& error) {
    const Lock lock(job.mutex);
    job.fail({ExitCode::Internal, cat("cannot start a thread for each rank: ", error.what())});
    return;
  }
  run_rank(job, 0, work);
}

}  // namespace

void run_local(int32_t ranks, const std::function<void(Group&)>& work) {
  PENSTOCK_CHECK(ranks > 0, ranks, " ranks");
  Job job(static_cast<size_t>(ranks));
  run_ranks(job, work);
  if (job.error != nullptr) {
    std::rethrow_exception(job.error);
  }
  if (job.failure) {
    throw PeerError(job.failure->code, job.failure->line);
  }
}

}  // namespace penstock::comm
