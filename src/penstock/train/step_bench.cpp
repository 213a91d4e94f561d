#include "penstock/train/step_bench.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/interrupt.h"
#include "penstock/memory/account.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/executor.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"

namespace penstock::train {

struct StepBench::Parts {
  Parts(const config::Recipe& given, bool predicts)
      : recipe(given),
        device(open_device(recipe)),
        limit(memory::current_account(), recipe.plan.memory_bytes()),
        chain(family_subject().make_chain(recipe, device)),
        planned(plan_run(recipe, chain, device, find_machine(recipe), {.predicts = predicts})),
        parameters(
            chain, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device),
        optimizer(optim::make_optimizer(recipe.train, parameters)),
        executor(rehearsed(), chain, parameters),
        meter(device::open_meter(device)),
        batch(chain.example(recipe.train.batch)) {
    if (uses_graph(recipe, chain)) {
      executor.use_graph();
    }
  }

  const program::Program& rehearsed() {
    rehearse(recipe, chain, find_machine(recipe), {}, parameters, planned);
    return planned.result.program;
  }

  config::Recipe recipe;
  device::Device device;
  memory::LimitScope limit;
  model::Chain chain;
  Planned planned;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  run::Executor executor;
  std::unique_ptr<device::Meter> meter;
  model::Fields batch;
  int64_t steps_done = 0;
  std::vector<double> first_losses;
  int64_t peak_bytes = 0;
};

StepBench::StepBench(const config::Recipe& recipe, bool predicts)
    : parts_(memory::refuse_over_limit([&] { return std::make_unique<Parts>(recipe, predicts); })) {
}

StepBench::~StepBench() = default;

double StepBench::step() {
  Parts& parts = *parts_;
  const double loss_scale = parts.recipe.train.precision == "float16" ? 1024 : 1;
  const run::StepInput input{.batch = parts.batch,
                             .micro_batches = parts.recipe.plan.micro_batches,
                             .seed = static_cast<uint64_t>(parts.recipe.train.seed),
                             .step = parts.steps_done++,
                             .loss_scale = loss_scale,
                             .updates = {{.rate = {.lr = parts.recipe.train.lr},
                                          .clip = parts.recipe.train.clip,
                                          .loss_scale = loss_scale}}};
  const double loss = parts.executor.run(input, *parts.optimizer);
  if (parts.first_losses.size() < 8) {
    parts.first_losses.push_back(loss);
  }
  parts.peak_bytes = std::max(parts.peak_bytes, parts.executor.measured().ranks[0].peak_bytes);
  return loss;
}

Window StepBench::run(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto now = [] {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  };
  const device::Meter* meter = parts_->meter.get();
  Window window;
  std::vector<double> clocks;
  const std::optional<double> joules = meter == nullptr ? std::nullopt : meter->joules();
  const double began = now();
  double next_look = began + 0.25;
  do {
    window.loss = step();
    ++window.steps;
    if (meter != nullptr && now() > next_look) {
      if (const std::optional<double> clock = meter->clock_mhz()) {
        clocks.push_back(*clock);
      }
      next_look = now() + 0.25;
    }
  } while (now() - began < seconds && !was_interrupted());
  window.seconds = now() - began;
  const std::optional<double> joules_now = meter == nullptr ? std::nullopt : meter->joules();
  if (joules && joules_now) {
    window.joules = *joules_now - *joules;
  }
  if (!clocks.empty()) {
    std::nth_element(clocks.begin(), clocks.begin() + clocks.size() / 2, clocks.end());
    window.clock_mhz = clocks[clocks.size() / 2];
  }
  return window;
}

device::Trace StepBench::trace(int64_t steps) {
  parts_->meter->begin_trace();
  for (int64_t i = 0; i < steps; ++i) {
    step();
  }
  return parts_->meter->end_trace();
}

const Planned& StepBench::planned() const {
  return parts_->planned;
}

const program::Timeline& StepBench::measured() const {
  return parts_->executor.measured();
}

const std::vector<double>& StepBench::first_losses() const {
  return parts_->first_losses;
}

int64_t StepBench::peak_bytes() const {
  return parts_->peak_bytes;
}

int64_t StepBench::reserved_peak_bytes() const {
  return parts_->device.account().reserved_peak_bytes();
}

const device::Meter* StepBench::meter() const {
  return parts_->meter.get();
}

std::string StepBench::device_name() const {
  return parts_->meter ? parts_->meter->name() : "the CPU";
}

}  // namespace penstock::train
