#include "penstock/comm/mpi_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/comm/mpi_collectives.h"
#include "penstock/comm/mpi_tags.h"

namespace penstock::comm {

namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::lock_guard<std::mutex>;

// MPI counts in int. A longer message goes as chunks of this size and a last one that is shorter,
// perhaps empty.
constexpr int64_t kChunkBytes = int64_t{1} << 30;

// Between two looks: at first only the core is offered to others, for an answer that is near, and
// from a rank that may need this core; then short sleeps.
class Pause {
 public:
  void operator()() {
    constexpr auto kNear = std::chrono::milliseconds(5);
    constexpr auto kLongest = std::chrono::microseconds(100);
    if (Clock::now() - start_ < kNear) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, kLongest);
    }
  }

 private:
  const Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{20};
};

// How long a rank that will be killed goes on waiting for a peer, which may be about to finish its
// step. Open MPI's mpirun kills a second after it asks, Slurm by default after thirty.
double seconds_to_stop() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ? 0.3 : 20;
}

}  // namespace

MpiGroup::MpiGroup(MpiCalls& calls, int32_t rank, int32_t size)
    : Group(rank, size), calls_(calls), seconds_to_stop_(seconds_to_stop()), sends_(calls) {
  {
    const Lock lock(sends_.mutex());
    check_mpi(calls_.open());
    check_mpi(calls_.find_most_tag(most_tag_));
    // For tests: as with a library that has no more tags than it must.
    if (const char* const least = std::getenv("PENSTOCK_MPI_TAGS"); least != nullptr) {
      most_tag_ = std::min(most_tag_, std::atoi(least));
    }
    check_mpi(calls_.receive_notice(&heard_, sizeof(heard_), listening_));
  }
  std::vector<int32_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  own_ = MpiGroup::make_own_collectives(all);
}

int MpiGroup::tag_of(int64_t channel) const {
  const std::optional<int64_t> tag = comm::tag_of(channel, most_tag_);
  if (!tag) {
    throw ConfigError(cat("the MPI library has tags up to ",
                          most_tag_,
                          ", too few for a pipeline of so many layers or a job of so many groups; "
                          "run the ranks as threads, or with another MPI library"));
  }
  return static_cast<int>(*tag);
}

void MpiGroup::close() {
  barrier([] { return "the end of the job"; });
  const Lock lock(sends_.mutex());
  check_mpi(calls_.cancel(listening_));
  check_mpi(calls_.close());
}

void MpiGroup::fail(const Failure& failure) {
  const auto say = [&] {
    const Lock lock(sends_.mutex());
    if (failure_) {
      return false;
    }
    failure_ = failure;
    said_.code = static_cast<int32_t>(failure.code);
    failure.line.copy(said_.line.data(), said_.line.size() - 1);
    for (int32_t peer = 0; peer < size(); ++peer) {
      MpiRequest request;
      if (peer != rank() && calls_.send_notice(peer, &said_, sizeof(said_), request).empty()) {
        saying_.push_back(request);
      }
    }
    return true;
  };
  const auto is_said = [&] {
    const Lock lock(sends_.mutex());
    return std::all_of(saying_.begin(), saying_.end(), [&](MpiRequest& request) {
      bool is_done = false;
      return !calls_.test(request, is_done).empty() || is_done;
    });
  };
  if (!say()) {
    return;
  }
  // A peer that does not take it is stopped or dead: no reason to stay.
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(500);
  Pause pause;
  while (!is_said() && Clock::now() < end) {
    pause();
  }
}

std::unique_ptr<Sending> MpiGroup::start_send(int32_t peer,
                                              int64_t channel,
                                              const void* data,
                                              int64_t bytes) {
  const int tag = tag_of(channel);
  auto sending = std::make_unique<MpiSending>(sends_, peer);
  const Lock lock(sends_.mutex());
  const char* from = static_cast<const char*>(data);
  int64_t chunk = kChunkBytes;
  for (int64_t left = bytes; chunk == kChunkBytes; left -= chunk, from += chunk) {
    chunk = std::min(left, kChunkBytes);
    MpiRequest request;
    check_mpi(calls_.send(peer, tag, from, static_cast<int>(chunk), request));
    sending->requests.push_back(request);
  }
  if (!sends_.is_done(*sending)) {  // small ones are copied at once
    sends_.add(*sending);
  }
  return sending;
}

bool MpiGroup::is_sent(Sending& sending) {
  const Lock lock(sends_.mutex());
  return sends_.is_done(static_cast<MpiSending&>(sending));
}

void MpiGroup::finish_send(Sending& sending, const What& what) {
  auto& mine = static_cast<MpiSending&>(sending);
  poll(mine.peer, what, [&] { return sends_.is_done(mine); });
}

void MpiGroup::take(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) {
  char* to = static_cast<char*>(data);
  int64_t chunk = kChunkBytes;
  for (int64_t left = bytes; chunk == kChunkBytes; left -= chunk, to += chunk) {
    chunk = take_chunk(peer, channel, to, left, what);
    const bool is_last = chunk < kChunkBytes;
    if (chunk > left || (is_last && chunk < left)) {
      const int64_t sent = bytes - left + chunk;
      throw wrong_size(peer, bytes, cat(is_last ? "" : "at least ", sent), what);
    }
  }
}

// The bytes of the next chunk, which is left where it is if it is longer than there is room.
int64_t MpiGroup::take_chunk(
    int32_t peer, int64_t channel, void* data, int64_t room, const What& what) {
  const int tag = tag_of(channel);
  MpiMessage message;
  int bytes = 0;
  poll(peer, what, [&] {
    bool has_come = false;
    check_mpi(calls_.probe(peer, tag, has_come, message, bytes));
    return has_come;
  });
  if (bytes > room) {
    return bytes;
  }
  std::optional<MpiRequest> request;
  poll(peer, what, [&] {
    if (!request) {
      check_mpi(calls_.take(message, data, bytes, request.emplace()));
    }
    bool is_done = false;
    check_mpi(calls_.test(*request, is_done));
    return is_done;
  });
  return bytes;
}

std::unique_ptr<OwnCollectives> MpiGroup::make_own_collectives(std::span<const int32_t> ranks) {
  MpiCommunicator communicator;
  const Lock lock(sends_.mutex());
  check_mpi(calls_.make_communicator(ranks, communicator));
  const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  return std::make_unique<MpiCollectives>(*this, calls_, communicator, static_cast<int32_t>(place));
}

void MpiGroup::run(const Start& start, const What& what) {
  MpiRequest request;
  {
    const Lock lock(sends_.mutex());
    check_mpi(start(request));
  }
  poll(Wait::kOthers, what, [&] {
    bool is_done = false;
    check_mpi(calls_.test(request, is_done));
    return is_done;
  });
}

template <typename Condition>
void MpiGroup::poll(int32_t peer, const What& what, const Condition& is_met) {
  Wait wait(rank(), peer, what);
  const auto look = [&] {
    const Lock lock(sends_.mutex());
    sends_.count_look();
    hear_notice();
    if (failure_) {
      throw wait.peer_error(*failure_);
    }
    return is_met();
  };
  Pause pause;
  std::optional<double> asked_to_stop;
  while (!look()) {
    const double seconds = wait.seconds();
    if (seconds >= timeout()) {
      const std::string line = wait.timeout_line();
      fail({ExitCode::Internal, line});
      throw Timeout(line);
    }
    if (will_be_killed() && !asked_to_stop) {
      asked_to_stop = seconds;
    }
    if (asked_to_stop && seconds - *asked_to_stop > seconds_to_stop_) {
      throw PeerError(ExitCode::Internal, wait.stopped_line(interrupt_name()));
    }
    pause();
  }
}

void MpiGroup::hear_notice() {
  if (failure_) {
    return;
  }
  bool has_come = false;
  check_mpi(calls_.test(listening_, has_come));
  if (has_come) {
    failure_ = Failure{static_cast<ExitCode>(heard_.code), heard_.line.data()};
  }
}

}  // namespace penstock::comm
