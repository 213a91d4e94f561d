// The ranks of a job, and raw bytes between them. One interface over threads of one process
// (local.h) and processes started by mpirun or srun (mpi.h).
//
// Nothing waits in silence: every wait says for whom and for what, ends when a peer fails, and ends
// with a Timeout that all ranks hear of. After either the group is of no use any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/failure.h"
#include "penstock/comm/own_collectives.h"
#include "penstock/comm/wait.h"

namespace penstock::comm {

// A send under way, as its group sees it.
class Sending {
 public:
  virtual ~Sending() = default;
};

// Stands for a send until it is waited for. To drop it before then is to withdraw the message, so
// keep it beside the bytes and let it go first; not after its group.
class Ticket {
 public:
  Ticket() = default;

 private:
  friend class Group;
  explicit Ticket(std::unique_ptr<Sending> sending) : sending_(std::move(sending)) {}

  std::unique_ptr<Sending> sending_;
};

// Belongs to the thread that runs its rank. Further threads of the rank may send, receive and fail,
// in this group or in groups split from it, where each channel is one thread's at either end; what
// all ranks call together, set_timeout and split stay with the first, and no other may outlive its
// work.
class Group {
 public:
  // Channels are numbered from 0. Those below 16,000 go with every MPI library (mpi_tags.h).
  static constexpr int64_t kNumChannels = int64_t{1} << 18;

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // Starts to send. The bytes must stay as they are until the ticket is done. Messages of one
  // channel between two ranks arrive in order; channels do not hold up each other.
  [[nodiscard]] Ticket send(int32_t peer, int64_t channel, const void* data, int64_t bytes);

  // Whether the bytes may be changed or freed.
  bool is_done(Ticket& ticket);
  void wait(Ticket& ticket, const What& what);

  // Waits for the next message of the channel. One of another size is an error.
  void receive(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what);

  // Whether the ranks are threads of one process, which can read each other's memory.
  virtual bool shares_memory() const { return false; }
  // As receive, for such ranks: `use` gets the bytes where the sender has them, and the send is
  // done when it returns. For messages that say where something lies.
  using Use = std::function<void(const void*)>;
  void receive_in_place(
      int32_t peer, int64_t channel, int64_t bytes, const What& what, const Use& use);

  // All ranks call these, in the same order. Each is a message from rank to rank, so that a wait
  // names the rank that is late; meant for what is small, or done once.
  void barrier(const What& what);
  // Every rank gives as many values; the answer has those of rank 0 first.
  std::vector<double> all_gather(std::span<const double> values, const What& what);
  void broadcast(int32_t root, void* data, int64_t bytes, const What& what);

  // Payload that this rank has given to other ranks through this group, and not through groups that
  // were split from it. What a library's own collective sends is counted as a ring would send it.
  int64_t sent_bytes() const { return sent_bytes_; }
  void count_sent(int64_t bytes) { sent_bytes_ += bytes; }

  // What the ranks' library has of its own; nothing for threads. Its calls belong to one thread,
  // which may be another than the group's.
  virtual OwnCollectives* own_collectives() { return nullptr; }

  // The longest that a wait may last.
  void set_timeout(double seconds);
  double timeout() const { return timeout_; }

  // Tells all ranks that this one ends: their next wait, or the present one, throws a PeerError.
  virtual void fail(const Failure& failure) = 0;

 protected:
  Group(int32_t rank, int32_t size);

  InternalError wrong_size(int32_t peer,
                           int64_t expected_bytes,
                           const std::string& sent_bytes,
                           const What& what) const;

 private:
  friend class SubGroup;  // sub_group.cpp: goes on through another group's functions

  // As above, with arguments that were checked; also the group's own channel, numbered
  // kNumChannels.
  virtual std::unique_ptr<Sending> start_send(int32_t peer,
                                              int64_t channel,
                                              const void* data,
                                              int64_t bytes) = 0;
  virtual bool is_sent(Sending& sending) = 0;
  virtual void finish_send(Sending& sending, const What& what) = 0;
  virtual void take(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) = 0;
  virtual void take_in_place(
      int32_t peer, int64_t channel, int64_t bytes, const What& what, const Use& use);

  // For some ranks of this job, all of which call it at once.
  virtual std::unique_ptr<OwnCollectives> make_own_collectives(std::span<const int32_t>) {
    return nullptr;
  }

  void check_message(int32_t peer, int64_t channel, const void* data, int64_t bytes) const;
  Ticket send_to_group(int32_t peer, const void* data, int64_t bytes);

  const int32_t rank_;
  const int32_t size_;
  double timeout_ = 600;
  int64_t num_subgroups_ = 0;  // that this rank knows of
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace penstock::comm
