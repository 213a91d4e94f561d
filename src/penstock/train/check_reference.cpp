#include "penstock/train/check_reference.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/run/watched_step.h"

namespace penstock::train {

namespace {

// Stages that hold a unit whose layers share it; the most of any.
size_t most_stages_of_a_shared_unit(const program::Program& program) {
  size_t most = 0;
  for (size_t unit = 0; unit < program.units.size(); ++unit) {
    std::set<int32_t> stages;
    for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
      const program::RankProgram& list = program.ranks[static_cast<size_t>(rank)];
      for (const program::ValueId id : list.persistent) {
        if (list.value(id).kind == program::ValueKind::GradientSum &&
            list.value(id).unit == static_cast<int32_t>(unit)) {
          stages.insert(program.stage_of(rank));
        }
      }
    }
    most = std::max(most, program.units[unit].is_shared ? stages.size() : 0);
  }
  return most;
}

run::ReplicaOrder order_of(const program::Program& planned) {
  const bool is_sharded = !planned.keeps_gradients();
  return {.replicas = planned.replicas(),
          .reduces_each_micro_batch = is_sharded,
          .adds_shared_last = is_sharded || most_stages_of_a_shared_unit(planned) > 1};
}

at::Tensor flat_on_cpu(const at::Tensor& tensor) {
  return tensor.flatten().cpu();
}

double norm_of(const std::map<std::string, Expected::Parameter>& parameters) {
  double sum = 0;
  for (const auto& [name, parameter] : parameters) {
    sum += !parameter.gradient.defined()
               ? 0
               : parameter.gradient.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

}  // namespace

std::vector<uint32_t> digest_each(const model::Tensors& tensors) {
  std::vector<uint32_t> each;
  for (const at::Tensor& tensor : tensors) {
    each.push_back(digest({tensor}));
  }
  return each;
}

std::optional<Reordering> find_reordering(const config::Recipe& recipe,
                                          const program::Program& planned) {
  // Sums of float32 in another order, and of numbers that were rounded to bfloat16 on their way.
  constexpr double kFloat32 = 1e-5, kBFloat16 = 2e-2;
  const config::PlanOptions& plan = recipe.plan;
  if (plan.data > 1) {
    if (plan.reduce == "compute" && compute_type(recipe.train) == at::kBFloat16) {
      return Reordering{"plan.reduce = \"compute\" rounds gradients to bfloat16 between replicas",
                        kBFloat16};
    }
    // Between threads, which ranks are here.
    const bool is_direct =
        plan.collectives == "direct" || (plan.collectives == "auto" && plan.links.empty());
    if (!is_direct) {
      return Reordering{cat("plan.collectives = \"",
                            plan.collectives,
                            "\" adds up the gradients of replicas in an order of its own"),
                        kFloat32};
    }
  }
  // The CPU has a gradient for each of the layers that share a table, a GPU one for both. One device
  // adds them in turns; a pipeline finishes other micro-batches in between, also where one rank has
  // both layers.
  if (recipe.run.device == "cuda" && most_stages_of_a_shared_unit(planned) > 0) {
    return Reordering{"a pipeline adds up the gradients of the tied table in another order",
                      kFloat32};
  }
  return std::nullopt;
}

Reference::Reference(const config::Recipe& recipe,
                     const model::Chain& chain,
                     const program::Program& planned,
                     const program::Program& kept,
                     const device::Device& device)
    : recipe_(recipe),
      chain_(chain),
      order_(order_of(planned)),
      account_(device.is_gpu() ? device.account() : memory::make_account()) {
  const memory::AccountScope scope(account_);
  side_.emplace(recipe, chain, kept, device);
  side_->executor.watch([this](const run::Made& made) {
    if (is_compared(made.value)) {
      add_value(key_of(made.value), made.tensors);
    }
  });
}

void Reference::add_value(const ValueKey& key, const model::Tensors& tensors) {
  expected_.values[key] = {next_++, digest_each(tensors)};
}

void Reference::accumulate(const model::Fields& batch, int64_t step) {
  const memory::AccountScope scope(account_);
  expected_ = {};
  next_ = 0;
  const run::StepInput input = step_input(recipe_, batch, step);
  if (order_.replicas == 1) {
    run::NoStepper nobody;
    expected_.loss = side_->executor.run(input, nobody);
    expected_.loss_sums = side_->executor.loss_sums();
  } else {
    expected_.loss_sums.resize(static_cast<size_t>(order_.replicas * input.micro_batches));
    const run::StepWatch watch{.on_made =
                                   [this](program::ValueKind kind,
                                          int32_t layer,
                                          int32_t micro_batch,
                                          const model::Tensors& tensors) {
                                     add_value({kind, layer, micro_batch}, tensors);
                                   },
                               .on_loss =
                                   [this](int32_t micro_batch, double sum) {
                                     expected_.loss_sums[static_cast<size_t>(micro_batch)] = sum;
                                   }};
    expected_.loss = run::accumulate_as_replicas(chain_, side_->parameters, input, order_, watch);
  }
  expected_.loss_order = next_++;
  for (const model::Parameter& one : side_->parameters.all()) {
    Expected::Parameter& parameter = expected_.parameters[one.spec.name];
    if (one.spec.is_frozen) {
      continue;
    }
    parameter.gradient = flat_on_cpu(one.gradient);
    parameter.gradient_order = next_++;
  }
  expected_.gradient_norm = norm_of(expected_.parameters);
}

void Reference::update(int64_t step) {
  const memory::AccountScope scope(account_);
  const std::vector<model::Parameter>& all = side_->parameters.all();
  if (side_->parameters.device().is_gpu()) {
    for (const model::Parameter& one : side_->parameters.learning()) {
      at::Tensor(one.gradient)
          .copy_(expected_.parameters.at(one.spec.name).gradient.view_as(one.gradient));
    }
  }
  // As ranks do it, parameter by parameter: one GPU alone adds the squares of all in one pass, which
  // gives a norm with other last bits.
  optim::Optimizer& optimizer = *side_->optimizer;
  optimizer.take_squares(side_->parameters, update_settings(recipe_, step), /*for_others=*/true);
  const run::Squares squares = optimizer.own_squares();
  optimizer.decide(&squares);
  optimizer.move(side_->parameters);
  require_applied(recipe_, side_->optimizer->updated(), step);
  expected_.norm = side_->optimizer->updated().norm;
  expected_.norm_order = next_++;
  for (const model::Parameter& one : all) {
    Expected::Parameter& parameter = expected_.parameters.at(one.spec.name);
    parameter.weight = flat_on_cpu(one.weight);
    parameter.compute = flat_on_cpu(one.compute);
    parameter.weight_order = next_++;
  }
  for (const model::Parameters::StateTensors& state : side_->parameters.states()) {
    for (size_t i = 0; i < state.names.size(); ++i) {
      expected_.states[state.names[i]] = {next_++, state.current[i]};
    }
  }
}

}  // namespace penstock::train
