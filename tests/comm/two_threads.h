// A rank that talks to its neighbours, as a stage of a pipeline does, while a second thread of it
// sums over some of the ranks, as data parallelism does.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "penstock/comm/collectives.h"
#include "penstock/comm/mesh.h"
#include "penstock/comm/sub_group.h"

#include "comm/collective_cases.h"
#include "comm/traffic.h"

namespace penstock::comm::test {

inline void use_two_threads(Group& job) {
  const Mesh mesh{.data = 2, .pipeline = job.size() / 2};
  const std::unique_ptr<Group> pipeline =
      split(job, colour(mesh, along(Axis::Pipeline), job.rank()), words("pipelines"));
  const std::unique_ptr<Group> replicas =
      split(job, colour(mesh, along(Axis::Data), job.rank()), words("replicas"));
  std::exception_ptr error;
  {
    const std::jthread second([&] {
      try {
        for (int round = 0; round < 3; ++round) {
          check_collectives(*replicas, {7, 20'000});
        }
      } catch (...) {
        error = std::current_exception();
        job.fail(describe_failure(job.rank(), error));
      }
    });
    random_traffic(*pipeline, 10);
    random_traffic(job, 10);
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

}  // namespace penstock::comm::test
