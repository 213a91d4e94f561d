// MPI's own collectives, for the ranks of one communicator. They are started and then polled for,
// as all that MPI does here, so that a peer's failure and the time-out end them.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "penstock/comm/mpi_calls.h"
#include "penstock/comm/own_collectives.h"

namespace penstock::comm {

class MpiGroup;

class MpiCollectives final : public OwnCollectives {
 public:
  // `rank` is this process's in the communicator.
  MpiCollectives(MpiGroup& group, MpiCalls& calls, MpiCommunicator communicator, int32_t rank);

  void all_reduce(void* data, int64_t count, Element element, const What& what) override;
  void reduce_scatter(void* data,
                      std::span<const int64_t> cuts,
                      Element element,
                      const What& what) override;
  void all_gather(void* data, std::span<const int64_t> byte_cuts, const What& what) override;
  void broadcast(int32_t root, void* data, int64_t bytes, const What& what) override;
  void set_most_per_call(int64_t most) override { most_per_call_ = most; }

 private:
  void set_counts(std::span<const int64_t> cuts);

  MpiGroup& group_;
  MpiCalls& calls_;
  const MpiCommunicator communicator_;
  const int32_t rank_;
  int64_t most_per_call_ = std::numeric_limits<int>::max();  // MPI counts in int
  // Of the call under way. Members, for one that is given up leaves MPI with them.
  std::vector<int> counts_;
  std::vector<int> offsets_;
};

}  // namespace penstock::comm
