#include "penstock/run/replicas.h"

#include <cstring>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/comm/sub_group.h"
#include "penstock/model/parameters.h"

namespace penstock::run {

namespace {

constexpr int64_t kChannel = 0;  // the group has no other

// Elements become half as long in place: each is written where all before it were read.
void narrow_in_place(float* values, int64_t count) {
  auto* const narrow = reinterpret_cast<std::byte*>(values);
  for (int64_t i = 0; i < count; ++i) {
    const c10::BFloat16 rounded(values[i]);
    std::memcpy(narrow + 2 * i, &rounded, sizeof rounded);
  }
}

// And back, elements first .. first + count - 1 of them: from the last on, so that none is
// overwritten before it is read.
void widen_in_place(float* values, int64_t first, int64_t count) {
  const auto* const narrow = reinterpret_cast<const std::byte*>(values);
  for (int64_t i = first + count - 1; i >= first; --i) {
    c10::BFloat16 rounded;
    std::memcpy(&rounded, narrow + 2 * i, sizeof rounded);
    values[i] = static_cast<float>(rounded);
  }
}

std::unique_ptr<comm::Group> find_replicas(comm::Group& job, const comm::Mesh& mesh) {
  PENSTOCK_CHECK(
      job.size() == mesh.ranks(), "a mesh of ", mesh.ranks(), " ranks for a group of ", job.size());
  return comm::split(job, comm::colour(mesh, comm::along(comm::Axis::Data), job.rank()), [] {
    return std::string("groups of replicas");
  });
}

}  // namespace

Replicas::Replicas(comm::Group& job, const ReplicaOptions& options)
    : job_(job),
      options_(options),
      group_(find_replicas(job, options.mesh)),
      staging_(at::empty({comm::Collectives::kStaging}, at::kByte)),
      collectives_(
          *group_,
          kChannel,
          {static_cast<std::byte*>(staging_.data_ptr()), static_cast<size_t>(staging_.nbytes())}),
      thread_([this] { run(); }) {}

Replicas::~Replicas() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_more_.notify_all();
  thread_.join();
}

WorkPtr Replicas::start(std::function<void()> run) {
  auto work = std::make_shared<ReplicaWork>();
  work->run = std::move(run);
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(work);
  }
  has_more_.notify_all();
  return work;
}

// What was asked for is done to the end, for the replicas wait for it, unless something failed.
void Replicas::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_more_.wait(lock, [&] { return !asked_.empty() || is_ending_; });
    if (asked_.empty()) {
      return;
    }
    const WorkPtr work = asked_.front();
    asked_.pop_front();
    lock.unlock();
    work->began = now_seconds();
    std::exception_ptr error = error_;
    if (error == nullptr) {
      try {
        work->run();
      } catch (...) {
        error = std::current_exception();
        // The rank itself may be waiting for one that waits for this. Of several failures the first
        // counts.
        job_.fail(comm::describe_failure(job_.rank(), error));
      }
    }
    work->run = nullptr;  // lets go of its tensors
    work->ended = now_seconds();
    lock.lock();
    error_ = error;
    work->error = error;
    work->is_done = true;
    has_less_.notify_all();
  }
}

void Replicas::wait(ReplicaWork& work) {
  std::unique_lock lock(mutex_);
  has_less_.wait(lock, [&] { return work.is_done; });
  if (work.error != nullptr) {
    std::rethrow_exception(work.error);
  }
}

void Replicas::abandon(const std::exception_ptr& error) {
  const std::unique_lock lock(mutex_);
  if (error_ == nullptr) {
    job_.fail(comm::describe_failure(job_.rank(), error));
  }
}

void Replicas::reduce_flat(model::Parameters& parameters,
                           int64_t unit,
                           const at::Tensor& flat,
                           bool is_scattered,
                           const comm::What& what) {
  float* values = flat.data_ptr<float>();
  const bool is_narrow = options_.reduced == comm::Element::BFloat16;
  const int64_t element = comm::element_bytes(options_.reduced);
  auto* const bytes = reinterpret_cast<std::byte*>(values);
  if (is_narrow) {
    narrow_in_place(values, flat.numel());
  }
  if (!is_scattered) {
    collectives_.all_reduce(
        bytes, flat.numel(), options_.reduced, options_.algorithm(element * flat.numel()), what);
    if (is_narrow) {
      widen_in_place(values, 0, flat.numel());
    }
    return;
  }
  const std::vector<plan::UnitRange>& ranges = parameters.unit_layout(unit).ranges;
  for (const plan::UnitRange& range : ranges) {
    collectives_.reduce_scatter(bytes + element * range.first,
                                range.cuts,
                                options_.reduced,
                                options_.algorithm(element * range.count),
                                what);
  }
  for (size_t i = ranges.size(); is_narrow && i-- > 0;) {
    widen_in_place(
        values, ranges[i].first + ranges[i].slice_first(rank()), ranges[i].slice_count(rank()));
  }
}

WorkPtr Replicas::reduce(model::Parameters& parameters,
                         int64_t unit,
                         bool scatters,
                         std::string what) {
  const at::Tensor flat = parameters.unit_gradients(unit);
  return start([this, &parameters, unit, flat, scatters, what] {
    reduce_flat(parameters, unit, flat, scatters, [&] { return what; });
  });
}

WorkPtr Replicas::reduce_bucket(model::Parameters& parameters,
                                const Bucket& bucket,
                                std::string what) {
  return start([this, &parameters, bucket, what] {
    reduce_flat(
        parameters, bucket.unit, bucket.gradient, /*is_scattered=*/true, [&] { return what; });
    parameters.add_slices(bucket.unit, bucket.layer, bucket.gradient, bucket.sets);
  });
}

WorkPtr Replicas::gather(const model::Parameters& parameters,
                         int64_t unit,
                         const model::Tensors& weights,
                         std::string what) {
  return start([this, &parameters, unit, weights, what] {
    const std::vector<plan::UnitRange>& ranges = parameters.unit_layout(unit).ranges;
    for (size_t i = 0; i < ranges.size(); ++i) {
      std::vector<int64_t> byte_cuts;
      for (const int64_t cut : ranges[i].cuts) {
        byte_cuts.push_back(cut * static_cast<int64_t>(weights[i].element_size()));
      }
      collectives_.all_gather(
          weights[i].data_ptr(), byte_cuts, options_.algorithm(byte_cuts.back()), [&] {
            return what;
          });
    }
  });
}

WorkPtr Replicas::merge_state(model::Parameters& parameters, std::string what) {
  const int64_t bytes = parameters.state_bytes();
  const at::Tensor all =
      at::empty({size() * bytes}, at::kByte);  // the rank's, so made by its thread
  return start([this, &parameters, bytes, all, what] {
    auto* const first = static_cast<std::byte*>(all.data_ptr());
    parameters.write_state(first + rank() * bytes);
    std::vector<int64_t> byte_cuts;
    for (int32_t replica = 0; replica <= size(); ++replica) {
      byte_cuts.push_back(replica * bytes);
    }
    collectives_.all_gather(first, byte_cuts, comm::Algorithm::Direct, [&] { return what; });
    parameters.merge_state(first, size());
  });
}

void Replicas::gather_all(model::Parameters& parameters) {
  std::vector<WorkPtr> works;
  for (int64_t unit = 0; unit < parameters.num_units(); ++unit) {
    if (parameters.has_unit(unit)) {
      works.push_back(gather(parameters,
                             unit,
                             parameters.unit_weights(unit),
                             cat("the weights of unit ", unit, " of the replicas")));
    }
  }
  for (const WorkPtr& work : works) {
    wait(*work);
  }
}

}  // namespace penstock::run
