#include "penstock/profile/profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/device/stopwatch.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/profile/timings.h"

namespace penstock::profile {

namespace {

using Clock = std::chrono::steady_clock;

// One piece of work: its seconds over the rounds, and bytes above those held before, in the worst
// round: the most while it ran, and what was left.
struct Measured {
  Timings timings;
  int64_t working_bytes = 0;
  int64_t left_bytes = 0;

  std::vector<std::pair<int64_t, int64_t>> marks;  // of runs whose time is not known yet

  // Throws LimitError when the work does not fit; working_bytes is then what it would have held.
  template <typename Work>
  auto time(device::Stopwatch& stopwatch, const Work& work) {
    const memory::PeakMark mark;
    try {
      const int64_t began = stopwatch.mark();
      auto result = memory::refuse_over_limit(work);
      marks.emplace_back(began, stopwatch.mark());
      working_bytes = std::max(working_bytes, mark.peak_bytes() - mark.start_bytes());
      left_bytes = std::max(left_bytes, memory::usage().current_bytes - mark.start_bytes());
      return result;
    } catch (const memory::LimitError& error) {
      const int64_t wanted = error.held_bytes() + error.asked_bytes() - mark.start_bytes();
      working_bytes = std::max(working_bytes, wanted);
      throw;
    }
  }

  void collect(const device::Stopwatch& stopwatch) {
    for (const auto& [began, ended] : marks) {
      timings.add(stopwatch.seconds(began, ended));
    }
    marks.clear();
  }
};

struct WayMeasured {
  Measured forward, backward, recompute, input_half;
};

struct LayerMeasured {
  int64_t index = 0;  // in the chain: the first of its kind
  model::TensorShape input, output;
  Measured dropping;
  std::vector<WayMeasured> ways;
  int64_t count = 0;  // how many layers of the chain it stands for
  Measured weight_half;
  int64_t weight_bytes = 0;  // what the weight half needs from the end of the input half on
  // What its backward hands on beside the gradient of its input; the layer before gets it.
  model::Tensors beside_gradient;
};

// What never ran to its end, for the limit, has no seconds; no plan can use it.
double seconds_or(const Measured& measured, double guess) {
  return measured.timings.is_empty() ? guess : measured.timings.median();
}

// What stands in for activations and gradients: numbers like those behind a norm. One buffer serves
// all, so that measuring needs little more memory than the layer at hand.
class Activations {
 public:
  Activations(int64_t most_elements, at::ScalarType type, c10::Device where) {
    buffer_ = at::empty({most_elements}, at::TensorOptions(where).dtype(type));
    if (where.is_cpu()) {
      buffer_.normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1));
    } else {
      buffer_.normal_();
    }
  }

  at::Tensor view(const model::TensorShape& shape) const {
    PENSTOCK_CHECK(shape.type == buffer_.scalar_type(),
                   "cannot measure a layer whose input is of another type than what its neighbour "
                   "puts out");
    int64_t elements = 1;
    for (const int64_t size : shape.sizes) {
      elements *= size;
    }
    return buffer_.narrow(0, 0, elements).view(shape.sizes);
  }

 private:
  at::Tensor buffer_;
};

class Profiler {
 public:
  Profiler(const model::Chain& chain,
           model::Parameters& parameters,
           const at::Tensor& inputs,
           const at::Tensor& targets)
      : chain_(chain),
        parameters_(parameters),
        inputs_(inputs.to(parameters.device().where)),
        targets_(targets.to(parameters.device().where)),
        stopwatch_(device::make_stopwatch(parameters.device().where)),
        other_values_(static_cast<size_t>(other_elements(chain, parameters))),
        others_(at::from_blob(
            other_values_.data(), {static_cast<int64_t>(other_values_.size())}, at::kFloat)) {
    find_kinds();
    activations_ = std::make_unique<Activations>(
        most_elements_, parameters.compute_type(), parameters.device().where);
  }

  void run_round(const ProfileOptions& options) {
    begun_.clear();
    for (LayerMeasured& layer : layers_) {
      for (int64_t i = 0; i < repeats(layer); ++i) {
        unless_over_limit([&] { measure_dropping(layer); });
        for (size_t way = 0; way < layer.ways.size(); ++way) {
          unless_over_limit([&] { measure_way(layer, static_cast<int32_t>(way)); });
          if (options.measures_halves) {
            unless_over_limit([&] { measure_halves(layer, static_cast<int32_t>(way)); });
          }
        }
      }
    }
    unless_over_limit([&] { measure_loss(); });
    cool_caches(inputs_);
    clear_.time(*stopwatch_, [&] {
      for (int64_t layer = 0; layer <= chain_.size(); ++layer) {
        parameters_.begin_gradients(layer);
      }
      return 0;
    });
    if (options.step) {
      cool_caches(inputs_);
      unless_over_limit([&] {
        step_.time(*stopwatch_, [&] {
          options.step();
          return 0;
        });
      });
    }
    stopwatch_->wait();
    for_each(*this, [&](Measured& one) { one.collect(*stopwatch_); });
    stopwatch_->restart();
  }

  // Whether every median is known to that share of itself, or to a thousandth of the whole: what
  // takes no time need not be known well.
  bool is_stable(double share) const {
    double whole = 0;
    for_each(*this, [&](const Measured& one) { whole += one.timings.median(); });
    bool is_stable = true;
    for_each(*this, [&](const Measured& one) {
      const double allowed = std::max(share * one.timings.median(), share / 10 * whole);
      is_stable = is_stable && one.timings.error() <= allowed;
    });
    return is_stable;
  }

  // After a warm-up round: what it measured does not count.
  void forget() {
    for_each(*this, [](Measured& one) { one = {}; });
    for (LayerMeasured& layer : layers_) {
      layer.weight_bytes = 0;
    }
  }

  plan::CostTable table(bool has_step) const;

 private:
  template <typename Self, typename Visit>
  static void for_each(Self& self, const Visit& visit) {
    for (auto& layer : self.layers_) {
      visit(layer.dropping);
      for (auto& way : layer.ways) {
        visit(way.forward);
        visit(way.backward);
        visit(way.recompute);
        visit(way.input_half);
      }
      visit(layer.weight_half);
    }
    visit(self.loss_);
    visit(self.clear_);
    visit(self.step_);
  }

  // What breaks the account's limit is known to be too large, which is all a planner needs.
  template <typename Work>
  static void unless_over_limit(const Work& work) {
    try {
      work();
    } catch (const memory::LimitError&) {
    }
  }

  void find_kinds();
  void measure_dropping(LayerMeasured& layer);
  void measure_way(LayerMeasured& layer, int32_t way);
  std::vector<uint8_t> fresh_gradients(int64_t layer);
  void measure_halves(LayerMeasured& layer, int32_t way);
  void measure_loss();
  plan::LayerCost layer_cost(int64_t index, std::set<std::string>& counted) const;
  plan::KeepCost way_cost(const model::Layer& layer,
                          const LayerMeasured& measured,
                          int32_t index) const;

  // The gradient of a layer's input, and what its backward hands on beside it.
  int64_t input_gradient_bytes(const LayerMeasured& layer) const {
    int64_t bytes = held_bytes(layer.input.bytes());
    for (const at::Tensor& tensor : layer.beside_gradient) {
      bytes += held_bytes(static_cast<int64_t>(tensor.nbytes()));
    }
    return bytes;
  }
  int64_t held_bytes(int64_t bytes) const {
    return penstock::profile::held_bytes(parameters_.device(), bytes);
  }

  // On a GPU a round has something of a step's mix of work, for the mix decides the clock.
  int64_t repeats(const LayerMeasured& layer) const {
    return parameters_.device().is_gpu() ? std::clamp<int64_t>(layer.count / 6, 1, 6) : 1;
  }

  // Weights and gradients that the chain has beside these parameters, of which there may be one layer
  // of each kind; as many as caches could hold.
  static int64_t other_elements(const model::Chain& chain, const model::Parameters& parameters) {
    constexpr int64_t kMost = int64_t{16} << 20;
    const int64_t others = 2 * (chain.parameter_count() - parameters.count());
    return parameters.device().is_gpu() ? 0 : std::clamp<int64_t>(others, 0, kMost);
  }

  // In a step every layer meets cold caches: since its last turn all the others have run. Only what
  // its neighbour has just made is warm. A GPU's cache is small next to what a layer moves.
  void cool_caches(const at::Tensor& warm) const {
    if (parameters_.device().is_gpu()) {
      return;
    }
    static_cast<void>(at::sum(parameters_.flat_weights()));
    static_cast<void>(at::sum(parameters_.flat_gradients()));
    static_cast<void>(at::sum(others_));
    static_cast<void>(at::sum(warm));
  }

  model::Tensors input_of(const LayerMeasured& layer) const {
    return {layer.index == 0 ? inputs_ : activations_->view(layer.input)};
  }

  // The gradient of its output, with what the layer above hands on beside it.
  model::Tensors output_gradient_of(const LayerMeasured& layer) const {
    model::Tensors gradient{activations_->view(layer.output)};
    if (layer.index + 1 < chain_.size()) {
      const model::Tensors& beside = reader_of(layer.index).beside_gradient;
      gradient.insert(gradient.end(), beside.begin(), beside.end());
    }
    return gradient;
  }
  const LayerMeasured& reader_of(int64_t layer) const {
    return layers_[kind_of_[static_cast<size_t>(layer) + 1]];
  }

  const model::Chain& chain_;
  model::Parameters& parameters_;
  at::Tensor inputs_, targets_;
  std::unique_ptr<device::Stopwatch> stopwatch_;
  std::vector<float> other_values_;  // not a tensor's: nobody counts it
  at::Tensor others_;
  std::vector<size_t> kind_of_;  // layer of the chain -> index into layers_
  std::set<int64_t> begun_;      // layers that have gone backward in this round
  std::vector<LayerMeasured> layers_;
  int64_t most_elements_ = 1;
  std::unique_ptr<Activations> activations_;
  Measured loss_, clear_, step_;
};

void Profiler::find_kinds() {
  std::map<std::pair<std::string, std::vector<int64_t>>, size_t> known;
  model::TensorShape shape{inputs_.sizes().vec(), inputs_.scalar_type()};
  for (int64_t i = 0; i < chain_.size(); ++i) {
    const model::Layer& layer = chain_.layer(i);
    const std::string kind = layer.kind().empty() ? cat("only ", i) : layer.kind();
    const auto [place, is_new] = known.emplace(std::pair(kind, shape.sizes), layers_.size());
    if (is_new) {
      const model::TensorShape output = layer.size_for(shape, parameters_.compute_type()).output;
      layers_.push_back({.index = i, .input = shape, .output = output});
      layers_.back().ways.resize(layer.ways().size());
      int64_t elements = 1;
      for (const int64_t size : output.sizes) {
        elements *= size;
      }
      most_elements_ = std::max(most_elements_, elements);
    }
    ++layers_[place->second].count;
    kind_of_.push_back(place->second);
    shape = layers_[place->second].output;
  }
}

void Profiler::measure_dropping(LayerMeasured& layer) {
  const model::Tensors input = input_of(layer);
  cool_caches(input[0]);
  layer.dropping.time(*stopwatch_, [&] {
    return chain_.layer(layer.index)
        .forward(parameters_.weights_of(layer.index), input, {.layer = layer.index}, nullptr);
  });
}

void Profiler::measure_way(LayerMeasured& measured, int32_t way) {
  const int64_t index = measured.index;
  const model::Layer& layer = chain_.layer(index);
  const bool needs_output = layer.ways()[static_cast<size_t>(way)].needs_output;
  const model::Pass pass{.layer = index};
  const model::Tensors input = input_of(measured);
  const model::Tensors gradient = output_gradient_of(measured);
  WayMeasured& costs = measured.ways[static_cast<size_t>(way)];
  if (!needs_output) {
    unless_over_limit([&] {
      model::Saved saved{.way = way, .without_output = true};
      cool_caches(input[0]);
      costs.recompute.time(*stopwatch_, [&] {
        return layer.forward(parameters_.weights_of(index), input, pass, &saved);
      });
    });
  }
  model::Saved saved{.way = way};
  cool_caches(input[0]);
  model::Tensors output = costs.forward.time(*stopwatch_, [&] {
    return layer.forward(parameters_.weights_of(index), input, pass, &saved);
  });
  if (!needs_output) {
    output.clear();  // as in the step, where its reader has gone backward by now
  }
  cool_caches(gradient[0]);
  const std::vector<uint8_t> fresh = fresh_gradients(index);
  model::Tensors input_gradient = costs.backward.time(*stopwatch_, [&] {
    return layer.backward(parameters_.weights_of(index),
                          parameters_.gradients_of(index, fresh),
                          input,
                          std::move(saved),
                          gradient,
                          pass);
  });
  measured.beside_gradient.assign(input_gradient.begin() + 1, input_gradient.end());
}

// The first backward of a round is as that of a step: it writes what nobody has written. So both
// kinds of GEMMs are timed where algorithms are chosen.
std::vector<uint8_t> Profiler::fresh_gradients(int64_t layer) {
  return begun_.insert(layer).second ? parameters_.overwritten_gradients(layer)
                                     : std::vector<uint8_t>();
}

void Profiler::measure_halves(LayerMeasured& measured, int32_t way) {
  const int64_t index = measured.index;
  const model::Layer& layer = chain_.layer(index);
  const model::Pass pass{.layer = index};
  const int64_t before = memory::usage().current_bytes;
  // Input and gradient are its own, for the weight half may hold on to them.
  model::Tensors input{input_of(measured)[0].clone()};
  model::Saved saved{.way = way};
  model::Tensors output = layer.forward(parameters_.weights_of(index), input, pass, &saved);
  if (!layer.ways()[static_cast<size_t>(way)].needs_output) {
    output.clear();
  }
  model::Tensors gradient = output_gradient_of(measured);
  for (at::Tensor& tensor : gradient) {
    tensor = tensor.clone();
  }
  model::WeightWork work;
  cool_caches(gradient[0]);
  Measured& input_half = measured.ways[static_cast<size_t>(way)].input_half;
  const model::Tensors input_gradient = input_half.time(*stopwatch_, [&] {
    return layer.backward_input(parameters_.weights_of(index),
                                parameters_.gradients_of(index),
                                input,
                                std::move(saved),
                                gradient,
                                pass,
                                work);
  });
  input.clear();
  gradient.clear();
  output.clear();
  const int64_t left = memory::usage().current_bytes - before;
  const int64_t passed_on = input_gradient[0].defined() ? input_gradient_bytes(measured) : 0;
  measured.weight_bytes = std::max(measured.weight_bytes, left - passed_on);
  measured.weight_half.time(*stopwatch_, [&] {
    layer.backward_weight(
        parameters_.weights_of(index), parameters_.gradients_of(index), std::move(work));
    return 0;
  });
}

void Profiler::measure_loss() {
  const int64_t last = chain_.size();
  const at::Tensor input = activations_->view(layers_[kind_of_.back()].output);
  const double scale =
      1.0 / static_cast<double>(std::max<int64_t>(1, chain_.loss().count(targets_)));
  cool_caches(input);
  const std::vector<uint8_t> fresh = fresh_gradients(last);
  loss_.time(*stopwatch_, [&] {
    return chain_.loss().backward(parameters_.weights_of(last),
                                  parameters_.gradients_of(last, fresh),
                                  input,
                                  targets_,
                                  scale);
  });
}

int64_t own_parameter_bytes(const std::vector<model::ParameterSpec>& specs,
                            std::set<std::string>& counted) {
  int64_t bytes = 0;
  for (const model::ParameterSpec& spec : specs) {
    bytes += counted.insert(spec.name).second ? 4 * spec.count() : 0;
  }
  return bytes;
}

plan::KeepCost Profiler::way_cost(const model::Layer& layer,
                                  const LayerMeasured& measured,
                                  int32_t index) const {
  const WayMeasured& way = measured.ways[static_cast<size_t>(index)];
  const model::Way& named = layer.ways()[static_cast<size_t>(index)];
  const int64_t output = held_bytes(measured.output.bytes());
  // A layer may hand its input on as its output; and a forward that went over the limit left
  // nothing to count, so what it wanted stands for it.
  const bool has_run = !way.forward.timings.is_empty();
  const int64_t left = has_run ? way.forward.left_bytes : way.forward.working_bytes;
  const int64_t saved = std::max(left, output);
  const auto extra = [&](const Measured& one, int64_t counted) {
    return std::max<int64_t>(0, one.working_bytes - counted);
  };
  const double forward_s = seconds_or(way.forward, measured.dropping.timings.median());
  plan::KeepCost keep{.name = named.name,
                      .forward_s = forward_s,
                      .backward_s = seconds_or(way.backward, 2 * forward_s),
                      .saved_bytes = saved,
                      .forward_extra_bytes = extra(way.forward, saved),
                      .backward_extra_bytes =
                          has_run ? way.backward.working_bytes - input_gradient_bytes(measured) : 0,
                      .needs_output = named.needs_output,
                      .recompute_s = forward_s,
                      .recompute_extra_bytes = extra(way.forward, saved)};
  if (!way.input_half.timings.is_empty()) {
    keep.backward_input_extra_bytes = way.input_half.working_bytes - input_gradient_bytes(measured);
  }
  if (!named.needs_output) {
    keep.recompute_s = seconds_or(way.recompute, forward_s);
    keep.recompute_extra_bytes = extra(way.recompute, saved - output);
  }
  return keep;
}

plan::LayerCost Profiler::layer_cost(int64_t index, std::set<std::string>& counted) const {
  const model::Layer& layer = chain_.layer(index);
  const LayerMeasured& measured = layers_[kind_of_[static_cast<size_t>(index)]];
  const int64_t output = held_bytes(measured.output.bytes());
  plan::LayerCost cost{
      .name = layer.name(),
      .kind = layer.kind(),
      .input_bytes = held_bytes(measured.input.bytes()),
      .output_bytes = output,
      .forward_s = measured.dropping.timings.median(),
      .forward_extra_bytes = std::max<int64_t>(0, measured.dropping.working_bytes - output)};
  cost.input_gradient_bytes = input_gradient_bytes(measured);
  if (index + 1 < chain_.size()) {
    cost.output_gradient_bytes = input_gradient_bytes(reader_of(index));
  }
  for (size_t i = 0; i < measured.ways.size(); ++i) {
    cost.ways.push_back(way_cost(layer, measured, static_cast<int32_t>(i)));
  }
  if (!measured.weight_half.timings.is_empty()) {
    cost.backward_input_s =
        seconds_or(measured.ways.front().input_half, cost.ways.front().backward_s / 2);
    cost.backward_weight_s = measured.weight_half.timings.median();
    cost.weight_state_bytes = measured.weight_bytes;
    cost.weight_extra_bytes = measured.weight_half.working_bytes;
  }
  cost.parameter_bytes = cost.gradient_bytes = own_parameter_bytes(layer.parameters(), counted);
  return cost;
}

plan::CostTable Profiler::table(bool has_step) const {
  plan::CostTable table;
  std::set<std::string> counted;
  for (int64_t i = 0; i < chain_.size(); ++i) {
    table.layers.push_back(layer_cost(i, counted));
  }
  const int64_t bytes = own_parameter_bytes(chain_.loss().parameters(), counted);
  table.loss = {.name = chain_.loss().name(),
                .seconds = loss_.timings.median(),
                .extra_bytes = std::max<int64_t>(
                    0, loss_.working_bytes - table.layers.back().output_gradient()),
                .parameter_bytes = bytes,
                .gradient_bytes = bytes};
  table.target_bytes = held_bytes(static_cast<int64_t>(targets_.nbytes()));
  table.clear_s = clear_.timings.median();
  if (has_step) {
    table.step_s = step_.timings.median();
    table.step_extra_bytes = step_.working_bytes;
  }
  return table;
}

void clear_seconds(plan::CostTable& table) {
  for (plan::LayerCost& layer : table.layers) {
    layer.forward_s = 0;
    for (plan::KeepCost& way : layer.ways) {
      way.forward_s = way.backward_s = way.recompute_s = 0;
    }
  }
  table.loss.seconds = table.clear_s = table.step_s = 0;
}

}  // namespace

plan::CostTable measure(const model::Chain& chain,
                        model::Parameters& parameters,
                        const at::Tensor& inputs,
                        const at::Tensor& targets,
                        const ProfileOptions& options) {
  PENSTOCK_CHECK(memory::is_cpu_allocator_installed(),
                 "call memory::install_cpu_allocator() before measuring a chain");
  device::require_current(parameters.device());
  Profiler profiler(chain, parameters, inputs, targets);
  device::set_timing(parameters.device(), true);
  profiler.run_round(options);  // whatever is made once is made now
  device::set_timing(parameters.device(), false);
  if (options.only_bytes) {
    profiler.forget();
    profiler.run_round(options);
    plan::CostTable table = profiler.table(options.step != nullptr);
    clear_seconds(table);
    return table;
  }
  Clock::time_point began = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  while (parameters.device().is_gpu() && elapsed() < options.warm_seconds && !was_interrupted()) {
    profiler.run_round(options);
  }
  profiler.forget();
  began = Clock::now();
  for (int round = 1; round <= options.most_rounds; ++round) {
    if (was_interrupted()) {
      throw Error(ExitCode::Negative,
                  cat("stopped by ", interrupt_name(), " while measuring; nothing was changed"));
    }
    profiler.run_round(options);
    if (options.on_round) {
      options.on_round(round, options.most_rounds);
    }
    const bool is_enough = profiler.is_stable(options.stable) || elapsed() > options.most_seconds;
    if (round >= options.least_rounds && is_enough) {
      break;
    }
  }
  return profiler.table(options.step != nullptr);
}

}  // namespace penstock::profile
