#include "penstock/comm/mpi_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "penstock/base/interrupt.h"

namespace penstock::comm {

namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::lock_guard<std::mutex>;

// MPI counts in int. A longer message goes as pieces of this size and a last one that is shorter,
// perhaps empty.
constexpr int64_t kPieceBytes = int64_t{1} << 30;

// Between two looks: nothing at first, for an answer that is near; then short sleeps, for the ranks
// may be more than the cores.
class Pause {
 public:
  void operator()() {
    constexpr auto kSpin = std::chrono::microseconds(50);
    constexpr auto kLongest = std::chrono::microseconds(100);
    if (Clock::now() - start_ >= kSpin) {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, kLongest);
    }
  }

 private:
  const Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{20};
};

// How long a rank that is told to stop goes on waiting for a peer, which may be about to finish its
// step. Open MPI's mpirun kills a second after it asks; others leave more time.
double seconds_to_stop() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ? 0.3 : 10;
}

}  // namespace

MpiGroup::MpiGroup(int32_t rank, int32_t size)
    : Group(rank, size), seconds_to_stop_(seconds_to_stop()) {
  const Lock lock(sends_.mutex());
  for (MPI_Comm* comm : {&messages_, &notices_}) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  check_mpi(MPI_Irecv(&heard_, sizeof(heard_), MPI_BYTE, MPI_ANY_SOURCE, 0, notices_, &listening_),
            "MPI_Irecv");
}

void MpiGroup::close() {
  barrier([] { return "the end of the job"; });
  const Lock lock(sends_.mutex());
  check_mpi(MPI_Cancel(&listening_), "MPI_Cancel");
  check_mpi(MPI_Wait(&listening_, MPI_STATUS_IGNORE), "MPI_Wait");
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

void MpiGroup::fail(const Failure& failure) {
  if (failure_) {
    return;
  }
  failure_ = failure;
  said_.code = static_cast<int32_t>(failure.code);
  failure.line.copy(said_.line.data(), said_.line.size() - 1);
  const auto say = [&] {
    const Lock lock(sends_.mutex());
    for (int32_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        MPI_Isend(&said_, sizeof(said_), MPI_BYTE, peer, 0, notices_, &saying_.emplace_back());
      }
    }
  };
  const auto is_said = [&] {
    const Lock lock(sends_.mutex());
    int is_done = 0;
    const int count = static_cast<int>(saying_.size());
    MPI_Testall(count, saying_.data(), &is_done, MPI_STATUSES_IGNORE);
    return is_done != 0;
  };
  say();
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
  auto sending = std::make_unique<MpiSending>(sends_, peer);
  const Lock lock(sends_.mutex());
  const char* from = static_cast<const char*>(data);
  int64_t piece = kPieceBytes;
  for (int64_t left = bytes; piece == kPieceBytes; left -= piece, from += piece) {
    piece = std::min(left, kPieceBytes);
    check_mpi(MPI_Isend(from,
                        static_cast<int>(piece),
                        MPI_BYTE,
                        peer,
                        static_cast<int>(channel),
                        messages_,
                        &sending->requests.emplace_back()),
              "MPI_Isend");
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
  int64_t piece = kPieceBytes;
  for (int64_t left = bytes; piece == kPieceBytes; left -= piece, to += piece) {
    piece = take_piece(peer, channel, to, left, what);
    const bool is_last = piece < kPieceBytes;
    if (piece > left || (is_last && piece < left)) {
      const int64_t sent = bytes - left + piece;
      throw wrong_size(peer, bytes, cat(is_last ? "" : "at least ", sent), what);
    }
  }
}

// The bytes of the next piece, which is left where it is if it is longer than there is room.
int64_t MpiGroup::take_piece(
    int32_t peer, int64_t channel, void* data, int64_t room, const What& what) {
  const int tag = static_cast<int>(channel);
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status = {};
  int bytes = 0;
  poll(peer, what, [&] {
    int has_come = 0;
    check_mpi(MPI_Improbe(peer, tag, messages_, &has_come, &message, &status), "MPI_Improbe");
    if (has_come != 0) {
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    }
    return has_come != 0;
  });
  if (bytes > room) {
    return bytes;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  poll(peer, what, [&] {
    if (message != MPI_MESSAGE_NULL) {
      check_mpi(MPI_Imrecv(data, bytes, MPI_BYTE, &message, &request), "MPI_Imrecv");
    }
    int is_done = 0;
    check_mpi(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    return is_done != 0;
  });
  return bytes;
}

template <typename Condition>
void MpiGroup::poll(int32_t peer, const What& what, const Condition& is_met) {
  const auto look = [&] {
    const Lock lock(sends_.mutex());
    hear_notice();
    return !failure_ && is_met();
  };
  Wait wait(rank(), peer, what);
  Pause pause;
  std::optional<double> asked_to_stop;
  while (!look()) {
    if (failure_) {
      throw wait.peer_error(*failure_);
    }
    const double seconds = wait.seconds();
    if (seconds >= timeout()) {
      const std::string line = wait.timeout_line();
      fail({ExitCode::Internal, line});
      throw Timeout(line);
    }
    if (was_interrupted() && !asked_to_stop) {
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
  int has_come = 0;
  check_mpi(MPI_Test(&listening_, &has_come, MPI_STATUS_IGNORE), "MPI_Test");
  if (has_come != 0) {
    failure_ = Failure{static_cast<ExitCode>(heard_.code), heard_.line.data()};
  }
}

}  // namespace penstock::comm
