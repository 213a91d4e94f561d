// Replicas with 1-bit optimizers as threads, and gradients that follow from replica, step and
// element alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "penstock/comm/group.h"
#include "penstock/comm/local.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

namespace penstock::optim::test {

// Tensors of less than a block, of some blocks, and of an odd size.
inline model::Chain small_chain() {
  return model::make_gpt2({.layers = 1, .width = 10, .heads = 2, .context = 7, .vocabulary = 933});
}

// The gradient as replica `replica` sees it; the mean over the replicas is the gradient. Some
// elements never have one.
inline float gradient_at(int32_t replica, int64_t step, size_t parameter, int64_t element) {
  if (element % 7 == 3) {
    return 0;
  }
  const auto uniform = [&](uint64_t number) {
    uint64_t bits = number + 1000003 * (parameter + 101 * static_cast<uint64_t>(element));
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return static_cast<float>((bits >> 40) & 0xFFFFFF) / 16777216.0f - 0.5f;
  };
  const float size = 0.01f * static_cast<float>(1 + element % 5);
  const float common = uniform(1) + uniform(static_cast<uint64_t>(step));
  return size * (common + uniform(static_cast<uint64_t>(10000 + 1000 * replica) +
                                  static_cast<uint64_t>(step)));
}

// What a replica's gradients are in a step: its share of their sum, or all of it.
inline void fill_gradients(model::Parameters& parameters, int64_t step, bool is_reduced) {
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    const model::Parameter& parameter = parameters.all()[i];
    float* values = parameter.gradient.data_ptr<float>();
    for (int64_t element = 0; element < parameter.spec.count(); ++element) {
      float sum = 0;
      for (int32_t replica = 0; replica < parameters.replicas(); ++replica) {
        if (is_reduced || replica == parameters.replica()) {
          sum += gradient_at(replica, step, i, element);
        }
      }
      values[element] = sum / static_cast<float>(parameters.replicas());
    }
  }
}

struct ReplicaCase {
  config::TrainOptions train;
  int32_t replicas = 1;
  program::Shard shard = program::Shard::None;
  at::ScalarType type = at::kFloat;
};

inline Rate test_rate(int64_t step) {
  return {0.01 * (1 - static_cast<double>(step) / 60), {}};
}

// A rank with its optimizer.
class Replica {
 public:
  Replica(const ReplicaCase& at, const model::Chain& chain, comm::Group& group)
      : case_(at),
        group_(group),
        parameters(chain, chain.whole(), at.type, 1, device::open_cpu(), replication(at, chain)),
        optimizer(make_optimizer(at.train, parameters)) {}

  // Step number `step`, counted from 1.
  void step(int64_t step) {
    parameters.zero_gradients();
    fill_gradients(parameters, step, optimizer->next_form().reduces);
    update(step);
  }

  // As the instructions of its program.
  void update(int64_t step) {
    const UpdateSettings settings{.rate = test_rate(step), .clip = case_.train.clip};
    const plan::UpdateForm form = optimizer->next_form();
    if (form.reduces) {
      optimizer->take_squares(parameters, settings, /*for_others=*/true);
    } else {
      optimizer->estimate_squares(parameters,
                                  gather(optimizer->take_sketches(parameters, settings)));
    }
    if (case_.shard == program::Shard::None) {  // each has all squares
      optimizer->decide(nullptr);
    } else {
      const Squares all = add_over_replicas(optimizer->own_squares());
      optimizer->decide(&all);
    }
    const bool averages = form.average != plan::UpdateForm::Average::None;
    if (form.fills_momentum || form.fills_alive) {
      optimizer->fill_state(parameters, group_);
    }
    if (averages || form.lengths > 0) {
      const std::vector<double> lengths = optimizer->prepare(parameters);
      if (averages) {
        optimizer->exchange(parameters, group_);
      }
      if (form.lengths > 0) {
        optimizer->take_lengths(gather(lengths));
      }
    }
    optimizer->move(parameters);
  }

  // To the others, up to now.
  int64_t sent_bytes() const { return group_.sent_bytes(); }

 private:
  model::Replication replication(const ReplicaCase& at, const model::Chain& chain) const {
    if (at.replicas == 1) {
      return {};
    }
    return {.shard = at.shard,
            .replicas = at.replicas,
            .replica = group_.rank(),
            .units = model::make_units(chain, {0, static_cast<int32_t>(chain.size())}, 1 << 12)};
  }

  std::vector<double> gather(const std::vector<double>& own) {
    return group_.all_gather(own, [] { return std::string("sums"); });
  }
  Squares add_over_replicas(const Squares& own) {
    return add_up(gather(halves_of(own)), own.size());
  }

  const ReplicaCase case_;
  comm::Group& group_;

 public:
  model::Parameters parameters;
  const std::unique_ptr<Optimizer> optimizer;
};

inline void run_replicas(const ReplicaCase& at, const std::function<void(Replica&)>& work) {
  const model::Chain chain = small_chain();
  comm::run_local(at.replicas, [&](comm::Group& group) {
    Replica replica(at, chain, group);
    work(replica);
  });
}

}  // namespace penstock::optim::test
