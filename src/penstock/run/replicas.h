// The ranks that have replicas of this rank's parameters. Gradients are reduced and weights
// gathered among them by a thread, in the order in which they were asked for, while the rank
// computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <ATen/core/Tensor.h>

#include "penstock/comm/collectives.h"
#include "penstock/comm/group.h"
#include "penstock/comm/mesh.h"
#include "penstock/model/layer.h"

namespace penstock::model {
class Parameters;
}

namespace penstock::run {

struct ReplicaOptions {
  comm::Mesh mesh;  // of the whole job
  // For messages of so many bytes.
  std::function<comm::Algorithm(int64_t bytes)> algorithm = [](int64_t) {
    return comm::Algorithm::Own;
  };
  // Of the elements that are sent of a gradient. Rounded to bfloat16, they are half as many bytes.
  comm::Element reduced = comm::Element::Float32;
};

// Something that was asked for.
class ReplicaWork {
 public:
  // now_seconds() when it began and ended; for what was waited for.
  double began = 0, ended = 0;

 private:
  friend class Replicas;
  std::function<void()> run;
  bool is_done = false;
  std::exception_ptr error;
};
using WorkPtr = std::shared_ptr<ReplicaWork>;

class Replicas {
 public:
  // All ranks of the job make theirs at the same time.
  Replicas(comm::Group& job, const ReplicaOptions& options);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  comm::Group& group() { return *group_; }
  int32_t size() const { return group_->size(); }
  int32_t rank() const { return group_->rank(); }

  // These start, and return at once; what they work on must stay until it was waited for. All
  // replicas ask for the same in the same order. `what` names it where a rank waits in vain.
  //
  // The unit's gradients become the sums, whole, or where it scatters this rank's slices of them.
  WorkPtr reduce(model::Parameters& parameters, int64_t unit, bool scatters, std::string what);
  // Sharded: this rank's slices of the sum over the replicas' buckets are added to its gradients, or
  // set. The bucket was filled by a backward of `layer`, and is of no use afterwards.
  struct Bucket {
    int64_t unit = 0, layer = 0;
    at::Tensor gradient;
    bool sets = false;
  };
  WorkPtr reduce_bucket(model::Parameters& parameters, const Bucket& bucket, std::string what);
  // `weights` are what Parameters::unit_weights() gave.
  WorkPtr gather(const model::Parameters& parameters,
                 int64_t unit,
                 const model::Tensors& weights,
                 std::string what);

  // What forwards of the replicas have changed of the state of layers becomes the same at all.
  WorkPtr merge_state(model::Parameters& parameters, std::string what);

  // Throws what went wrong.
  void wait(ReplicaWork& work);

  // All units of the rank, at once: after weights were loaded.
  void gather_all(model::Parameters& parameters);

  // Tells the peers why this rank gives up, so that nobody goes on waiting for it. To be called
  // before an exception leaves what was asked for alone.
  void abandon(const std::exception_ptr& error);

 private:
  WorkPtr start(std::function<void()> run);
  void reduce_flat(model::Parameters& parameters,
                   int64_t unit,
                   const at::Tensor& flat,
                   bool is_scattered,
                   const comm::What& what);
  void run();

  comm::Group& job_;
  const ReplicaOptions options_;
  std::unique_ptr<comm::Group> group_;
  at::Tensor staging_;
  comm::Collectives collectives_;
  std::mutex mutex_;
  std::condition_variable has_more_, has_less_;
  std::deque<WorkPtr> asked_;
  bool is_ending_ = false;
  std::exception_ptr error_;  // the first; nothing is done after it
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace penstock::run
