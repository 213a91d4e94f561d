#include "penstock/train/check_pipeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/device/device.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/plan/plan.h"
#include "penstock/train/check_side.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/ranks.h"

namespace penstock::train {

namespace {

std::vector<uint32_t> digest_each(const model::Tensors& tensors) {
  std::vector<uint32_t> each;
  for (const at::Tensor& tensor : tensors) {
    each.push_back(digest({tensor}));
  }
  return each;
}

// A layer may leave more beside a gradient than it sends to a peer.
bool have_same_begin(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  const size_t common = std::min(a.size(), b.size());
  return common > 0 && std::equal(a.begin(), a.begin() + static_cast<int64_t>(common), b.begin());
}

// What one device made in a step. `order` is its place among everything that is compared.
struct Expected {
  struct Value {
    size_t order = 0;
    std::vector<uint32_t> digests;
  };
  struct Parameter {
    size_t gradient_order = 0, weight_order = 0;
    uint32_t gradient = 0, weight = 0;
  };

  std::map<ValueKey, Value> values;
  std::map<std::string, Parameter> parameters;
  double loss = 0, norm = 0;
  size_t loss_order = 0, norm_order = 0;
};

// The model on one device.
class Reference {
 public:
  Reference(const config::Recipe& recipe, const model::Chain& chain, const program::Program& kept)
      : account_(memory::make_account()) {
    const memory::AccountScope scope(account_);
    side_.emplace(recipe, chain, kept, device::open_cpu());
    side_->executor.watch([this](const run::Made& made) {
      if (is_compared(made.value)) {
        expected_.values[key_of(made.value)] = {order_++, digest_each(made.tensors)};
      }
    });
  }

  Expected train(const config::Recipe& recipe, const BatchTensors& batch, int64_t step) {
    const memory::AccountScope scope(account_);
    expected_ = {};
    order_ = 0;
    expected_.loss = side_->train(recipe, batch, step);
    expected_.loss_order = order_++;
    const std::vector<model::Parameter>& all = side_->parameters.all();
    for (const model::Parameter& one : all) {
      Expected::Parameter& parameter = expected_.parameters[one.spec.name];
      parameter.gradient = digest({one.gradient});
      parameter.gradient_order = order_++;
      parameter.weight = digest({one.weight});
    }
    expected_.norm = side_->optimizer->updated().norm;
    expected_.norm_order = order_++;
    for (const model::Parameter& one : all) {
      expected_.parameters[one.spec.name].weight_order = order_++;
    }
    return std::move(expected_);
  }

 private:
  memory::Account& account_;
  std::optional<Side> side_;
  Expected expected_;
  size_t order_ = 0;
};

// What a receiver has wrong its sender may have, too: that one comes first.
struct Difference {
  size_t order = 0;
  bool was_received = false;
  std::string text;

  bool operator<(const Difference& other) const {
    return std::tie(order, was_received) < std::tie(other.order, other.was_received);
  }
};

// What a rank found in a step.
struct Found {
  std::optional<Difference> first;
  int64_t tensors = 0;
  int64_t peak_bytes = 0;
  std::optional<double> loss;
};

class PipelineCheck {
 public:
  PipelineCheck(const config::Recipe& recipe,
                const model::Chain& chain,
                const program::Program& planned,
                const run::Stages& stages,
                const program::Program& kept,
                const CheckOptions& options)
      : recipe_(recipe),
        chain_(chain),
        planned_(planned),
        mesh_(plan::mesh_of(recipe.plan)),
        parts_(run::parts_of(stages, mesh_.pipeline)),
        kept_(kept),
        options_(options),
        found_(planned.ranks.size()) {
    report_.rank_peak_bytes.resize(planned.ranks.size(), 0);
  }

  CheckReport run() {
    run_ranks(recipe_, /*asked=*/0, [this](comm::Group& group) { run_rank(group); });
    report_.is_equal = report_.first_difference.empty() && report_.steps == options_.steps;
    return report_;
  }

 private:
  // Rank 0 writes what all share while the others wait at the first barrier of a step; between that
  // and the second they read it, and write what they found, each its own.
  void run_rank(comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    const memory::LimitScope limit(memory::current_account(), planned_.ranks[rank].limit_bytes);
    Side side(recipe_, chain_, planned_, parts_, device::open_cpu(), group);
    side.executor.watch([this, rank](const run::Made& made) { compare(made, rank); });
    std::optional<Reference> reference;
    if (rank == 0) {
      reference.emplace(recipe_, chain_, kept_);
    }
    for (;;) {
      if (reference) {
        prepare_step(*reference);
      }
      {
        const PatientScope patience(group);  // one device takes as long as all ranks in turn
        group.barrier([] { return std::string("the same step on one device"); });
      }
      if (!has_step_) {
        return;
      }
      run_step(side, rank);
      group.barrier([] { return std::string("the end of the step"); });
      if (reference) {
        finish_step();
      }
    }
  }

  void prepare_step(Reference& reference) {
    has_step_ =
        report_.steps < options_.steps && report_.first_difference.empty() && !was_interrupted();
    if (has_step_) {
      batch_ = options_.batch(report_.steps);
      expected_ = reference.train(recipe_, batch_, report_.steps);
      std::fill(found_.begin(), found_.end(), Found{});
    }
  }

  void run_step(Side& side, size_t rank) {
    Found& found = found_[rank];
    const memory::PeakMark mark;
    const double loss = side.train(recipe_, batch_, report_.steps);
    found.peak_bytes = mark.peak_bytes();
    const int32_t stage = mesh_.coordinate(static_cast<int32_t>(rank), comm::Axis::Pipeline);
    if (parts_[static_cast<size_t>(stage)].has_loss) {
      found.loss = loss;
      if (loss != expected_.loss) {
        differ(found, {expected_.loss_order, false, cat("the loss of rank ", rank)});
      }
    }
    if (side.optimizer->updated().norm != expected_.norm) {
      differ(found, {expected_.norm_order, false, cat("the norm of the gradients on rank ", rank)});
    }
    for (const model::Parameter& one : side.parameters.all()) {
      const std::string& name = one.spec.name;
      const Expected::Parameter& expected = expected_.parameters.at(name);
      found.tensors += 2;
      if (digest({one.gradient}) != expected.gradient) {
        differ(found,
               {expected.gradient_order, false, cat("the gradient of ", name, " on rank ", rank)});
      }
      if (digest({one.weight}) != expected.weight) {
        differ(found,
               {expected.weight_order,
                false,
                cat(name, " on rank ", rank, " after the optimizer's step")});
      }
    }
  }

  void compare(const run::Made& made, size_t rank) {
    if (!is_compared(made.value)) {
      return;
    }
    Found& found = found_[rank];
    ++found.tensors;
    const auto expected = expected_.values.find(key_of(made.value));
    PENSTOCK_CHECK(expected != expected_.values.end(),
                   "one device does not make ",
                   value_text(planned_, made.value));
    if (have_same_begin(digest_each(made.tensors), expected->second.digests)) {
      return;
    }
    const program::Instruction& instruction =
        planned_.ranks[rank].instructions[static_cast<size_t>(made.instruction)];
    differ(found,
           {expected->second.order,
            instruction.op == program::Op::Receive,
            cat(value_text(planned_, made.value),
                ", made by instruction ",
                made.instruction,
                " of rank ",
                rank,
                " (",
                program::describe(planned_, instruction),
                ")")});
  }

  static void differ(Found& found, Difference difference) {
    if (!found.first || difference < *found.first) {
      found.first = std::move(difference);
    }
  }

  void finish_step() {
    Found all;
    for (size_t rank = 0; rank < found_.size(); ++rank) {
      const Found& found = found_[rank];
      report_.tensors += found.tensors;
      int64_t& peak = report_.rank_peak_bytes[rank];
      peak = std::max(peak, found.peak_bytes);
      report_.peak_bytes = std::max(report_.peak_bytes, peak);
      report_.loss = found.loss.value_or(report_.loss);
      if (found.first) {
        differ(all, *found.first);
      }
    }
    ++report_.steps;
    if (all.first) {
      report_.first_difference = cat(all.first->text, ", at step ", report_.steps);
    }
    if (options_.on_step) {
      options_.on_step(report_.steps);
    }
  }

  const config::Recipe& recipe_;
  const model::Chain& chain_;
  const program::Program& planned_;
  const comm::Mesh mesh_;
  const std::vector<model::Part> parts_;
  const program::Program& kept_;
  const CheckOptions& options_;
  CheckReport report_;

  bool has_step_ = false;
  BatchTensors batch_;
  Expected expected_;
  std::vector<Found> found_;  // by rank
};

}  // namespace

CheckReport check_pipeline(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const program::Program& planned,
                           const run::Stages& stages,
                           const program::Program& kept,
                           const CheckOptions& options) {
  return PipelineCheck(recipe, chain, planned, stages, kept, options).run();
}

}  // namespace penstock::train
