// The group of a job whose ranks are processes. Each call of MPI is short: waits are polls, which
// also look for a peer's failure, for the time-out, and for the launcher's request to stop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/comm/mpi_calls.h"
#include "penstock/comm/mpi_sends.h"

namespace penstock::comm {

// What a failing rank sends to the others.
struct Notice {
  int32_t code = 0;
  std::array<char, 1020> line = {};
};

class MpiGroup final : public Group {
 public:
  // Where MPI was started, on all ranks at once.
  MpiGroup(MpiCalls& calls, int32_t rank, int32_t size);

  // Waits for all ranks, and says goodbye to MPI. Only where nothing failed.
  void close();

  void fail(const Failure& failure) override;
  OwnCollectives* own_collectives() override { return own_.get(); }

  // For MPI's own collectives: starts one, and waits until it is done.
  using Start = std::function<MpiError(MpiRequest&)>;
  void run(const Start& start, const What& what);

 private:
  std::unique_ptr<Sending> start_send(int32_t peer,
                                      int64_t channel,
                                      const void* data,
                                      int64_t bytes) override;
  bool is_sent(Sending& sending) override;
  void finish_send(Sending& sending, const What& what) override;
  void take(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) override;
  std::unique_ptr<OwnCollectives> make_own_collectives(std::span<const int32_t> ranks) override;
  int tag_of(int64_t channel) const;
  int64_t take_chunk(int32_t peer, int64_t channel, void* data, int64_t room, const What& what);

  template <typename Condition>
  void poll(int32_t peer, const What& what, const Condition& is_met);
  void hear_notice();  // with the mutex held

  MpiCalls& calls_;
  const double seconds_to_stop_;
  int most_tag_ = 0;
  // These under the mutex of the sends, as every call of MPI.
  Notice heard_;
  MpiRequest listening_;
  Notice said_;
  std::vector<MpiRequest> saying_;
  std::optional<Failure> failure_;
  MpiSends sends_;
  std::unique_ptr<OwnCollectives> own_;
};

}  // namespace penstock::comm
