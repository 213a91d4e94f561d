#include "penstock/train/check.h"

#include <algorithm>
#include <map>
#include <memory>

#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/train/check_side.h"

namespace penstock::train {

namespace {

class Check {
 public:
  Check(const config::Recipe& recipe,
        const model::Chain& chain,
        const program::Program& planned,
        const program::Program& kept,
        const device::Device& device)
      : recipe_(recipe),
        planned_program_(planned),
        account_(device.is_gpu() ? device.account() : memory::make_account()),
        opened_bytes_(account_.usage().current_bytes),
        kept_(recipe, chain, kept, device) {
    const memory::AccountScope scope(account_);
    // A GPU has one account for both sides; its workspaces count.
    other_bytes_ = memory::usage().current_bytes - opened_bytes_;
    const int64_t limit = planned.ranks.front().limit_bytes;
    memory::set_limit(account_, device.is_gpu() ? 0 : limit);
    planned_ = std::make_unique<Side>(recipe, chain, planned, device);
    kept_.executor.watch([this](const run::Made& made) {
      if (is_compared(made.value)) {
        expected_[key_of(made.value)] = digest(made.tensors);
      }
    });
    planned_->executor.watch([this](const run::Made& made) { compare(made); });
  }

  // Whether all was equal.
  bool run_step(const model::Fields& batch, int64_t step, CheckReport& report) {
    report_ = &report;
    step_ = step;
    expected_.clear();
    const double expected_loss = kept_.train(recipe_, batch, step);
    {
      const memory::AccountScope scope(account_);
      const memory::PeakMark mark;
      report.loss = planned_->train(recipe_, batch, step);
      report.peak_bytes = std::max(report.peak_bytes, mark.peak_bytes() - other_bytes_);
    }
    if (report.first_difference.empty() && report.loss != expected_loss) {
      differ("the loss", "");
    }
    compare_parameters();
    return report.first_difference.empty();
  }

 private:
  void compare(const run::Made& made) {
    if (!is_compared(made.value)) {
      return;
    }
    ++report_->tensors;
    if (digest(made.tensors) == expected_[key_of(made.value)]) {
      return;
    }
    const auto& instructions = planned_program_.ranks.front().instructions;
    differ(value_text(planned_program_, made.value),
           cat(", made by instruction ",
               made.instruction,
               " (",
               program::describe(planned_program_,
                                 instructions[static_cast<size_t>(made.instruction)]),
               ")"));
  }

  void compare_parameters() {
    const auto& ours = planned_->parameters.all();
    const auto& theirs = kept_.parameters.all();
    for (size_t i = 0; i < ours.size(); ++i) {
      const bool has_gradient = ours[i].gradient.defined();
      report_->tensors += has_gradient ? 2 : 1;
      if (has_gradient && digest({ours[i].gradient}) != digest({theirs[i].gradient})) {
        differ(cat("the gradient of ", ours[i].spec.name), "");
      }
      if (digest({ours[i].weight}) != digest({theirs[i].weight})) {
        differ(ours[i].spec.name, " after the optimizer's step");
      }
    }
    compare_states();
  }

  void compare_states() {
    const auto& theirs = kept_.parameters.states();
    for (size_t layer = 0; layer < theirs.size(); ++layer) {
      const model::Parameters::StateTensors& ours = planned_->parameters.states()[layer];
      for (size_t i = 0; i < ours.names.size(); ++i) {
        ++report_->tensors;
        if (digest({ours.current[i]}) != digest({theirs[layer].current[i]})) {
          differ(ours.names[i], " after the step");
        }
      }
    }
  }

  void differ(const std::string& what, const std::string& detail) {
    if (report_->first_difference.empty()) {
      report_->first_difference = cat(what, detail, ", at step ", step_ + 1);
    }
  }

  const config::Recipe& recipe_;
  const program::Program& planned_program_;
  memory::Account& account_;
  int64_t opened_bytes_;  // held before there were any sides
  Side kept_;
  int64_t other_bytes_ = 0;
  std::unique_ptr<Side> planned_;
  std::map<ValueKey, uint32_t> expected_;  // of the step at hand
  CheckReport* report_ = nullptr;
  int64_t step_ = 0;
};

}  // namespace

CheckReport check_plan(const config::Recipe& recipe,
                       const model::Chain& chain,
                       const program::Program& planned,
                       const program::Program& kept,
                       const CheckOptions& options) {
  CheckReport report;
  Check check(recipe, chain, planned, kept, options.device);
  for (int64_t step = 0; step < options.steps && !was_interrupted(); ++step) {
    const bool is_equal = check.run_step(options.batch(step), step, report);
    ++report.steps;
    if (options.on_step) {
      options.on_step(report.steps);
    }
    if (!is_equal) {
      return report;
    }
  }
  report.is_equal = report.steps == options.steps;
  return report;
}

}  // namespace penstock::train
