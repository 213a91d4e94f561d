// The sends that MPI has under way. It moves bytes only inside its calls, so while a rank computes,
// a thread makes some: without it, a large message over TCP would wait for the sender's next call.
// While the rank waits it calls MPI itself, and the thread keeps out of its way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/comm/mpi_calls.h"

namespace penstock::comm {

// Throws what MPI says, if it says anything.
void check_mpi(const MpiError& error);

class MpiSends;

struct MpiSending : Sending {
  MpiSending(MpiSends& its_list, int32_t its_peer) : list(its_list), peer(its_peer) {}
  ~MpiSending() override;

  MpiSends& list;
  const int32_t peer;
  std::vector<MpiRequest> requests;  // none left: done
};

class MpiSends {
 public:
  explicit MpiSends(MpiCalls& calls);

  // For every call of MPI, by whichever thread.
  std::mutex& mutex() { return mutex_; }

  // All these with the mutex held.
  void count_look() { ++num_looks_; }  // the rank has called MPI by itself
  void add(MpiSending& sending);
  bool is_done(MpiSending& sending);
  void forget(MpiSending& sending);

 private:
  void run(const std::stop_token& stop);
  void test_under_way();
  bool test_all(std::vector<MpiRequest>& requests);

  MpiCalls& calls_;
  std::mutex mutex_;
  std::condition_variable_any has_more_;
  std::vector<MpiSending*> under_way_;
  int64_t num_looks_ = 0;
  bool is_resting_ = false;  // the thread waits to be woken

  // Last, so that it is stopped and joined before anything it uses goes.
  std::jthread thread_;
};

}  // namespace penstock::comm
