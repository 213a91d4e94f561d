#include "penstock/train/costs.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/profile/profile.h"
#include "penstock/report/progress.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

// For people. The chain's own words for what it is, where it has them.
std::string describe(const config::Recipe& recipe, const model::Chain& chain) {
  return cat(chain.description(recipe.micro_batch_size()),
             ", ",
             recipe.train.precision,
             ", ",
             recipe.run.device == "cuda"
                 ? std::string("one GPU")
                 : cat(at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads"));
}

// Optimizer state per layer, in the proportion of its parameters.
void share_optimizer_state(plan::CostTable& table, const optim::Optimizer& optimizer) {
  const int64_t copies = std::count_if(
      optimizer.state().begin(), optimizer.state().end(), [](const optim::StateBuffer& buffer) {
        return !buffer.is_per_parameter;
      });
  for (plan::LayerCost& layer : table.layers) {
    layer.optimizer_bytes = copies * layer.gradient_bytes;
  }
  table.loss.optimizer_bytes = copies * table.loss.gradient_bytes;
}

// What the optimizer's step did to its fresh state is undone: it saw no gradients, but SGD takes in
// weight decay.
void forget_steps(optim::Optimizer& optimizer) {
  optimizer.set_steps_done(0);
  for (const optim::StateBuffer& state : optimizer.state()) {
    at::Tensor(state.flat).zero_();
  }
}

// One layer of each kind, and the loss: enough to measure a chain by.
model::Part kinds_of(const model::Chain& chain) {
  model::Part part;
  std::set<std::string> known;
  for (int64_t i = 0; i < chain.size(); ++i) {
    const std::string kind = chain.kind_of(i);
    if (kind.empty() || known.insert(kind).second) {
      part.layers.push_back(i);
    }
  }
  return part;
}

// A GPU counts by stream, so there is no other account to measure on: its limit waits meanwhile.
class LimitLifted {
 public:
  explicit LimitLifted(memory::Account& account)
      : account_(account), before_(account.limit_bytes()) {
    if (before_ > 0) {
      account_.set_limit(0);
    }
  }
  // To be called where all went well: without its limit nothing may go on.
  void set_again() {
    if (before_ > 0) {
      account_.set_limit(before_);
    }
    is_set_again_ = true;
  }
  ~LimitLifted() {
    try {
      if (!is_set_again_) {
        set_again();
      }
    } catch (const std::exception& error) {
      log_warning("while a memory limit was set again: ", error.what());  // a device has failed
    }
  }
  LimitLifted(const LimitLifted&) = delete;
  LimitLifted& operator=(const LimitLifted&) = delete;

 private:
  memory::Account& account_;
  const int64_t before_;
  bool is_set_again_ = false;
};

// What the only rank holds, for people and for plans from the table alone. Of several ranks nobody
// knows yet who has what: only what the device's work takes beside the model.
std::vector<program::Held> held_by(const config::Recipe& recipe,
                                   const model::Chain& chain,
                                   int64_t workspaces) {
  plan::CostTable beside;
  if (workspaces > 0) {
    beside.held.push_back({plan::kWorkspacesName, workspaces});
  }
  if (recipe.plan.ranks() > 1) {
    return beside.held;
  }
  const plan::Holdings holdings =
      plan::whole_holdings(model_sizes(recipe, chain), beside, find_machine(recipe));
  program::RankProgram rank;
  for (const plan::HeldValue& one : holdings.ranks.front().values) {
    rank.hold(one.value, one.label);
  }
  return program::held_by_name(rank);
}

// What GpuContext holds, and what libraries take for themselves at the first call and keep: cuBLAS
// does so where LibTorch multiplies (attention in float32). To be asked for when layers have run and
// all that they worked with is gone; before, it is what is there so far.
int64_t workspaces_of(const device::Device& device) {
  return device.is_gpu() ? device.account().usage().current_bytes : 0;
}

plan::CostTable measure_kinds(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const device::Device& device,
                              const CostOptions& options) {
  plan::CostTable table;
  {
    model::Parameters parameters(chain,
                                 kinds_of(chain),
                                 compute_type(recipe.train),
                                 static_cast<uint64_t>(recipe.train.seed),
                                 device);
    const auto optimizer = optim::make_optimizer(recipe.train, parameters);
    table = measure_costs(recipe, chain, parameters, *optimizer, options);
    // A table is of the whole model; ranks share its update by their parameters.
    const double share =
        static_cast<double>(chain.parameter_count()) / static_cast<double>(parameters.count());
    table.step_s *= share;
    table.clear_s *= share;
  }
  table.held = held_by(recipe, chain, workspaces_of(device));
  return table;
}

}  // namespace

TableOrigin table_of_recipe(const config::Recipe& recipe) {
  return {cat("plan.costs = ", recipe.plan.costs), "measure again with penstock profile"};
}

TableOrigin table_of_plan() {
  return {"the plan's costs.table", "plan again with penstock plan --out"};
}

void require_table_of(const plan::CostTable& table,
                      const model::Chain& chain,
                      const config::Recipe& recipe,
                      const TableOrigin& origin) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(cat(origin.name, " ", what, "; ", origin.remedy));
  };
  if (static_cast<int64_t>(table.layers.size()) != chain.size()) {
    refuse(cat("has ", table.layers.size(), " layers, the model has ", chain.size()));
  }
  const int64_t samples = recipe.micro_batch_size();
  const model::ChainShapes shapes = chain.shapes_for(
      model::shapes_of(chain.example(samples)), samples, compute_type(recipe.train));
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const plan::LayerCost& cost = table.layers[static_cast<size_t>(i)];
    int64_t output_bytes = 0;
    for (const model::TensorShape& shape : shapes.edges[static_cast<size_t>(i) + 1]) {
      output_bytes +=
          recipe.run.device == "cuda" ? memory::gpu_block_bytes(shape.bytes()) : shape.bytes();
    }
    const auto same_mode = [](const plan::SaveModeCost& a, const model::SaveMode& b) {
      return a.name == b.name && a.needs_output == b.needs_output;
    };
    if (cost.output_bytes != output_bytes || !std::equal(cost.modes.begin(),
                                                         cost.modes.end(),
                                                         layer.save_modes().begin(),
                                                         layer.save_modes().end(),
                                                         same_mode)) {
      refuse(cat("does not fit the model: layer ",
                 i,
                 " (",
                 cost.name,
                 ", ",
                 format_count(cost.output_bytes),
                 " bytes out) is not ",
                 layer.name(),
                 " (",
                 format_count(output_bytes),
                 " bytes out) or has other save modes"));
    }
  }
}

plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const device::Device& device,
                              const CostOptions& options) {
  if (recipe.plan.ranks() == 1) {
    plan::CostTable table = measure_kinds(recipe, chain, device, options);
    device.account().release_cache();  // the model comes first there, as in a fresh process
    return table;
  }
  const memory::AccountScope scope(device.account());
  LimitLifted lifted(device.account());
  plan::CostTable table = measure_kinds(recipe, chain, device, options);
  lifted.set_again();  // what was measured with is gone
  return table;
}

plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              model::Parameters& parameters,
                              optim::Optimizer& optimizer,
                              const CostOptions& options) {
  PENSTOCK_CHECK(optimizer.steps_done() == 0, "costs are measured before training begins");
  const model::Fields batch = chain.example(recipe.micro_batch_size());

  profile::ProfileOptions profiling{.only_bytes = options.only_bytes,
                                    .measures_split = options.measures_split};
  profiling.step = [&] {
    parameters.add_shares();
    optimizer.update(parameters, {.rate = {.lr = 0}, .clip = recipe.train.clip});
  };
  if (options.is_quick) {
    profiling.least_rounds = 3;
    profiling.most_rounds = 5;
  }
  std::optional<report::Progress> progress;
  if (options.shows_progress && !options.only_bytes) {
    progress.emplace(report::ProgressOptions{
        .title = "measure", .total = profiling.most_rounds, .plain_every = profiling.most_rounds});
    profiling.on_round = [&](int done, int) { progress->update(done, {}); };
  }
  plan::CostTable table = profile::measure(chain, parameters, batch, profiling);
  if (progress) {
    progress->finish();
  }
  forget_steps(optimizer);
  table.description = describe(recipe, chain);
  share_optimizer_state(table, optimizer);
  return table;
}

plan::CostTable costs_of_shapes(const config::Recipe& recipe,
                                const model::Chain& chain,
                                const device::Device& device) {
  const model::Fields batch = chain.example(recipe.micro_batch_size());
  plan::CostTable table = profile::sizes_of(chain, compute_type(recipe.train), device, batch);
  table.held = held_by(recipe, chain, workspaces_of(device));
  table.description = describe(recipe, chain);
  return table;
}

}  // namespace penstock::train
