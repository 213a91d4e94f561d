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

struct ModeMeasured {
  Measured forward, backward, recompute, backward_input;
};

struct LayerMeasured {
  int64_t index = 0;              // in the chain: the first of its kind
  model::Shapes inputs, outputs;  // in the layer's order
  Measured dropping;
  std::vector<ModeMeasured> modes;
  int64_t count = 0;  // how many layers of the chain it stands for
  Measured backward_weight;
  int64_t weight_bytes = 0;  // what the weight gradient needs from the end of the input gradient on
  // What its backward hands on beside the gradient of its input; the layer before gets it.
  model::Tensors beside_gradient;
};

// What never ran to its end, for the limit, has no seconds; no plan can use it.
double seconds_or(const Measured& measured, double guess) {
  return measured.timings.is_empty() ? guess : measured.timings.median();
}

// What stands in for activations and gradients: numbers like those behind a norm; of integers zeros,
// which are always an index, and of masks ones. One buffer of each type serves all, so that measuring
// needs little more memory than the layer at hand.
class Activations {
 public:
  Activations(const std::map<at::ScalarType, int64_t>& most_elements, c10::Device where) {
    for (const auto& [type, elements] : most_elements) {
      at::Tensor& buffer = buffers_[type] =
          at::empty({elements}, at::TensorOptions(where).dtype(type));
      if (!buffer.is_floating_point()) {
        buffer.fill_(type == at::kBool ? 1 : 0);
      } else if (where.is_cpu()) {
        buffer.normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1));
      } else {
        buffer.normal_();
      }
    }
  }

  at::Tensor view(const model::TensorShape& shape) const {
    return buffers_.at(shape.type).narrow(0, 0, shape.elements()).view(shape.sizes);
  }

 private:
  std::map<at::ScalarType, at::Tensor> buffers_;
};

// The first tensor that is there.
const at::Tensor& first_of(const model::Tensors& gradients, const model::Tensors& inputs) {
  for (const at::Tensor& tensor : gradients) {
    if (tensor.defined()) {
      return tensor;
    }
  }
  return inputs[0];
}

// Copies of the tuple's tensors: what is carried has a value of its own, which the weight gradient
// reads.
void own_tuple(const std::vector<model::Place>& places, model::Tensors& inputs) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].carried < 0) {
      inputs[i] = inputs[i].clone();
    }
  }
}

class Profiler {
 public:
  Profiler(const model::Chain& chain, model::Parameters& parameters, const model::Fields& batch)
      : chain_(chain),
        edges_(chain.edges()),
        parameters_(parameters),
        shapes_(chain.shapes_for(
            model::shapes_of(batch), batch.begin()->second.size(0), parameters.compute_type())),
        stopwatch_(device::make_stopwatch(parameters.device().where)),
        other_values_(static_cast<size_t>(other_elements(chain, parameters))),
        others_(at::from_blob(
            other_values_.data(), {static_cast<int64_t>(other_values_.size())}, at::kFloat)) {
    for (const auto& [name, tensor] : batch) {
      batch_[name] = tensor.to(parameters.device().where);
    }
    for (const std::string& name : edges_.target_fields) {
      targets_.push_back(batch_.at(name));
    }
    for (int64_t i = 0; i < chain.size(); ++i) {
      states_.push_back(std::as_const(parameters).state_of(i));
    }
    find_kinds();
    activations_ = std::make_unique<Activations>(most_elements_, parameters.device().where);
  }

  void run_round(const ProfileOptions& options) {
    begun_.clear();
    for (LayerMeasured& layer : layers_) {
      for (int64_t i = 0; i < repeats(layer); ++i) {
        unless_over_limit([&] { measure_dropping(layer); });
        for (size_t mode = 0; mode < layer.modes.size(); ++mode) {
          unless_over_limit([&] { measure_mode(layer, static_cast<int32_t>(mode)); });
          if (options.measures_split) {
            unless_over_limit([&] { measure_split(layer, static_cast<int32_t>(mode)); });
          }
        }
      }
    }
    unless_over_limit([&] { measure_loss(); });
    cool_caches(batch_.begin()->second);
    clear_.time(*stopwatch_, [&] {
      for (int64_t layer = 0; layer <= chain_.size(); ++layer) {
        parameters_.begin_gradients(layer);
      }
      return 0;
    });
    if (options.step) {
      cool_caches(batch_.begin()->second);
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
      for (auto& mode : layer.modes) {
        visit(mode.forward);
        visit(mode.backward);
        visit(mode.recompute);
        visit(mode.backward_input);
      }
      visit(layer.backward_weight);
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
  void measure_mode(LayerMeasured& layer, int32_t mode);
  std::vector<uint8_t> fresh_gradients(int64_t layer);
  void measure_split(LayerMeasured& layer, int32_t mode);
  void measure_loss();
  plan::LayerCost layer_cost(int64_t index, std::set<std::string>& counted) const;
  plan::SaveModeCost mode_cost(const model::Layer& layer,
                               const LayerMeasured& measured,
                               int32_t index) const;

  // The gradient of a layer's input, and what its backward hands on beside it.
  int64_t input_gradient_bytes(const LayerMeasured& layer) const {
    int64_t bytes = layer.index == 0 ? tuple_bytes(layer.index) : 0;
    for (const model::TensorShape& shape : shapes_.edges[static_cast<size_t>(layer.index)]) {
      bytes += layer.index > 0 && shape.has_gradient ? held_bytes(shape.bytes()) : 0;
    }
    for (const at::Tensor& tensor : layer.beside_gradient) {
      bytes += held_bytes(static_cast<int64_t>(tensor.nbytes()));
    }
    return bytes;
  }
  // Of the tuple that enters a layer, or the loss.
  int64_t tuple_bytes(int64_t layer) const {
    int64_t bytes = 0;
    for (const model::TensorShape& shape : shapes_.edges[static_cast<size_t>(layer)]) {
      bytes += held_bytes(shape.bytes());
    }
    return bytes;
  }
  // Of what the layer makes for others than the next, which has values of its own.
  int64_t carried_bytes(int64_t layer) const {
    int64_t bytes = 0;
    for (const model::Place& place : edges_.outputs[static_cast<size_t>(layer)]) {
      bytes += place.carried < 0
                   ? 0
                   : held_bytes(shapes_.carried[static_cast<size_t>(place.carried)].bytes());
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

  // Fields of the batch as they are, stand-ins for all else.
  model::Tensors inputs_at(int64_t layer) const {
    model::Tensors inputs;
    const model::Shapes shapes = shapes_.inputs_of(edges_, layer);
    const std::vector<model::Place>& places = edges_.inputs[static_cast<size_t>(layer)];
    for (size_t i = 0; i < places.size(); ++i) {
      const bool is_field = !edges_.has_gradient(layer, i);
      const std::string* name = !is_field ? nullptr
                                : places[i].carried < 0
                                    ? &edges_.first_fields[static_cast<size_t>(places[i].position)]
                                    : &edges_.carried[static_cast<size_t>(places[i].carried)].name;
      inputs.push_back(name ? batch_.at(*name) : activations_->view(shapes[i]));
    }
    return inputs;
  }
  model::Tensors input_of(const LayerMeasured& layer) const { return inputs_at(layer.index); }
  model::Pass pass_of(const LayerMeasured& layer) const {
    return {.layer = layer.index,
            .wanted = model::wanted_gradients(edges_, shapes_, layer.index),
            .state = &states_[static_cast<size_t>(layer.index)]};
  }
  // As the executor does with them: what is carried is added up in storage of its own.
  model::Tensors settle(int64_t layer, model::Tensors gradients) const {
    const size_t at = static_cast<size_t>(layer);
    model::Tensors carried(edges_.carried.size());
    model::Tensors tuple = model::scatter_outputs(
        edges_.inputs[at],
        std::move(gradients),
        edges_.widths[at],
        [&](int32_t i, at::Tensor part) {
          const model::TensorShape& shape = shapes_.carried[static_cast<size_t>(i)];
          if (!shape.has_gradient || edges_.carried[static_cast<size_t>(i)].born < 0) {
            return;
          }
          if (!part.defined()) {
            part = at::zeros(shape.sizes,
                             at::TensorOptions(parameters_.device().where).dtype(shape.type));
          }
          model::add_gradient(carried[static_cast<size_t>(i)], std::move(part));
        });
    return tuple;
  }

  // The gradient of its output, with what the layer above hands on beside it.
  model::Tensors output_gradient_of(const LayerMeasured& layer) const {
    model::Tensors gradient;
    for (const model::TensorShape& shape : layer.outputs) {
      gradient.push_back(shape.has_gradient ? activations_->view(shape) : at::Tensor());
    }
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
  const model::Edges& edges_;
  model::Parameters& parameters_;
  model::Fields batch_;
  model::Tensors targets_;
  model::ChainShapes shapes_;
  std::vector<model::LayerState> states_;  // by layer; nothing is changed
  std::unique_ptr<device::Stopwatch> stopwatch_;
  std::vector<float> other_values_;  // not a tensor's: nobody counts it
  at::Tensor others_;
  std::vector<size_t> kind_of_;  // layer of the chain -> index into layers_
  std::set<int64_t> begun_;      // layers that have gone backward in this round
  std::vector<LayerMeasured> layers_;
  std::map<at::ScalarType, int64_t> most_elements_;
  std::unique_ptr<Activations> activations_;
  Measured loss_, clear_, step_;
};

void Profiler::find_kinds() {
  std::map<std::pair<std::string, std::vector<std::vector<int64_t>>>, size_t> known;
  const auto note = [&](const model::Shapes& shapes) {
    for (const model::TensorShape& shape : shapes) {
      int64_t& most = most_elements_[shape.type];
      most = std::max(most, shape.elements());
    }
  };
  for (int64_t i = 0; i < chain_.size(); ++i) {
    const model::Layer& layer = chain_.layer(i);
    const model::Shapes inputs = shapes_.inputs_of(edges_, i);
    const model::Shapes outputs = shapes_.outputs_of(edges_, i);
    std::vector<std::vector<int64_t>> sizes;
    for (const model::TensorShape& shape : inputs) {
      sizes.push_back(shape.sizes);
    }
    const std::string kind = chain_.kind_of(i).empty() ? cat("only ", i) : chain_.kind_of(i);
    const auto [place, is_new] = known.emplace(std::pair(kind, sizes), layers_.size());
    if (is_new) {
      layers_.push_back({.index = i, .inputs = inputs, .outputs = outputs});
      layers_.back().modes.resize(layer.save_modes().size());
      note(inputs);
      note(outputs);
    }
    ++layers_[place->second].count;
    kind_of_.push_back(place->second);
  }
}

void Profiler::measure_dropping(LayerMeasured& layer) {
  const model::Tensors input = input_of(layer);
  cool_caches(input[0]);
  layer.dropping.time(*stopwatch_, [&] {
    return chain_.layer(layer.index)
        .forward(parameters_.weights_of(layer.index), input, pass_of(layer), nullptr);
  });
}

void Profiler::measure_mode(LayerMeasured& measured, int32_t mode) {
  const int64_t index = measured.index;
  const model::Layer& layer = chain_.layer(index);
  const bool needs_output = layer.save_modes()[static_cast<size_t>(mode)].needs_output;
  const model::Pass pass = pass_of(measured);
  const model::Tensors input = input_of(measured);
  const model::Tensors gradient = output_gradient_of(measured);
  ModeMeasured& costs = measured.modes[static_cast<size_t>(mode)];
  if (!needs_output) {
    unless_over_limit([&] {
      model::Saved saved{.mode = mode, .without_output = true};
      cool_caches(input[0]);
      costs.recompute.time(*stopwatch_, [&] {
        return layer.forward(parameters_.weights_of(index), input, pass, &saved);
      });
    });
  }
  model::Saved saved{.mode = mode};
  cool_caches(input[0]);
  model::Tensors output = costs.forward.time(*stopwatch_, [&] {
    return layer.forward(parameters_.weights_of(index), input, pass, &saved);
  });
  if (!needs_output) {
    output.clear();  // as in the step, where its reader has gone backward by now
  }
  cool_caches(first_of(gradient, input));
  const std::vector<uint8_t> fresh = fresh_gradients(index);
  model::Tensors input_gradient = costs.backward.time(*stopwatch_, [&] {
    return settle(index,
                  layer.backward(parameters_.weights_of(index),
                                 parameters_.gradients_of(index, fresh),
                                 input,
                                 std::move(saved),
                                 gradient,
                                 pass));
  });
  measured.beside_gradient.assign(
      input_gradient.begin() + edges_.widths[static_cast<size_t>(index)], input_gradient.end());
}

// The first backward of a round is as that of a step: it writes what nobody has written. So both
// kinds of GEMMs are timed where algorithms are chosen.
std::vector<uint8_t> Profiler::fresh_gradients(int64_t layer) {
  return begun_.insert(layer).second ? parameters_.overwritten_gradients(layer)
                                     : std::vector<uint8_t>();
}

void Profiler::measure_split(LayerMeasured& measured, int32_t mode) {
  const int64_t index = measured.index;
  const model::Layer& layer = chain_.layer(index);
  const model::Pass pass = pass_of(measured);
  const int64_t before = memory::usage().current_bytes;
  // Input and gradient are its own, for the weight gradient may hold on to them.
  model::Tensors input = input_of(measured);
  own_tuple(edges_.inputs[static_cast<size_t>(index)], input);
  model::Saved saved{.mode = mode};
  model::Tensors output = layer.forward(parameters_.weights_of(index), input, pass, &saved);
  if (!layer.save_modes()[static_cast<size_t>(mode)].needs_output) {
    output.clear();
  }
  model::Tensors gradient = output_gradient_of(measured);
  for (at::Tensor& tensor : gradient) {
    if (tensor.defined()) {
      tensor = tensor.clone();
    }
  }
  model::WeightWork work;
  cool_caches(first_of(gradient, input));
  Measured& backward_input = measured.modes[static_cast<size_t>(mode)].backward_input;
  const model::Tensors input_gradient = backward_input.time(*stopwatch_, [&] {
    return settle(index,
                  layer.backward_input(parameters_.weights_of(index),
                                       parameters_.gradients_of(index),
                                       input,
                                       std::move(saved),
                                       gradient,
                                       pass,
                                       work));
  });
  input.clear();
  gradient.clear();
  output.clear();
  const int64_t left = memory::usage().current_bytes - before;
  const bool has_gradient = std::any_of(input_gradient.begin(),
                                        input_gradient.end(),
                                        [](const at::Tensor& one) { return one.defined(); });
  const int64_t passed_on = has_gradient ? input_gradient_bytes(measured) : 0;
  measured.weight_bytes = std::max(measured.weight_bytes, left - passed_on);
  measured.backward_weight.time(*stopwatch_, [&] {
    layer.backward_weight(
        parameters_.weights_of(index), parameters_.gradients_of(index), std::move(work));
    return 0;
  });
}

void Profiler::measure_loss() {
  const int64_t last = chain_.size();
  const model::Tensors input = inputs_at(last);
  const double scale =
      1.0 / static_cast<double>(std::max<int64_t>(1, chain_.loss().count(targets_)));
  cool_caches(input[0]);
  const std::vector<uint8_t> fresh = fresh_gradients(last);
  loss_.time(*stopwatch_, [&] {
    model::Loss::Result result = chain_.loss().backward(parameters_.weights_of(last),
                                                        parameters_.gradients_of(last, fresh),
                                                        input,
                                                        targets_,
                                                        scale);
    return settle(last, std::move(result.input_gradients));
  });
}

struct ParameterBytes {
  int64_t all = 0, learning = 0;
};

ParameterBytes own_parameter_bytes(const std::vector<model::ParameterSpec>& specs,
                                   std::set<std::string>& counted) {
  ParameterBytes bytes;
  for (const model::ParameterSpec& spec : specs) {
    const int64_t own = counted.insert(spec.name).second ? 4 * spec.count() : 0;
    bytes.all += own;
    bytes.learning += spec.is_frozen ? 0 : own;
  }
  return bytes;
}

plan::SaveModeCost Profiler::mode_cost(const model::Layer& layer,
                                       const LayerMeasured& measured,
                                       int32_t index) const {
  const ModeMeasured& mode = measured.modes[static_cast<size_t>(index)];
  const model::SaveMode& named = layer.save_modes()[static_cast<size_t>(index)];
  const int64_t output = tuple_bytes(measured.index + 1);
  const int64_t carried = carried_bytes(measured.index);
  // A layer may hand its input on as its output; and a forward that went over the limit left
  // nothing to count, so what it wanted stands for it.
  const bool has_run = !mode.forward.timings.is_empty();
  const int64_t left = (has_run ? mode.forward.left_bytes : mode.forward.working_bytes) - carried;
  const int64_t saved = std::max(left, output);
  const auto extra = [&](const Measured& one, int64_t counted) {
    return std::max<int64_t>(0, one.working_bytes - counted);
  };
  const double forward_s = seconds_or(mode.forward, measured.dropping.timings.median());
  plan::SaveModeCost keep{
      .name = named.name,
      .forward_s = forward_s,
      .backward_s = seconds_or(mode.backward, 2 * forward_s),
      .saved_bytes = saved,
      .forward_extra_bytes = extra(mode.forward, saved + carried),
      .backward_extra_bytes =
          has_run ? mode.backward.working_bytes - input_gradient_bytes(measured) : 0,
      .needs_output = named.needs_output,
      .recompute_s = forward_s,
      .recompute_extra_bytes = extra(mode.forward, saved + carried)};
  if (!mode.backward_input.timings.is_empty()) {
    keep.backward_input_extra_bytes =
        mode.backward_input.working_bytes - input_gradient_bytes(measured);
  }
  if (!named.needs_output) {
    keep.recompute_s = seconds_or(mode.recompute, forward_s);
    keep.recompute_extra_bytes = extra(mode.recompute, saved - output);
  }
  return keep;
}

plan::LayerCost Profiler::layer_cost(int64_t index, std::set<std::string>& counted) const {
  const model::Layer& layer = chain_.layer(index);
  const LayerMeasured& measured = layers_[kind_of_[static_cast<size_t>(index)]];
  const int64_t output = tuple_bytes(index + 1);
  const int64_t made = output + carried_bytes(index);
  plan::LayerCost cost{
      .name = layer.name(),
      .kind = chain_.kind_of(index),
      .input_bytes = tuple_bytes(index),
      .output_bytes = output,
      .forward_s = measured.dropping.timings.median(),
      .forward_extra_bytes = std::max<int64_t>(0, measured.dropping.working_bytes - made)};
  cost.input_gradient_bytes = input_gradient_bytes(measured);
  if (index + 1 < chain_.size()) {
    cost.output_gradient_bytes = input_gradient_bytes(reader_of(index));
  } else {
    cost.output_gradient_bytes = 0;
    for (const model::TensorShape& shape : shapes_.edges.back()) {
      cost.output_gradient_bytes += shape.has_gradient ? held_bytes(shape.bytes()) : 0;
    }
  }
  for (size_t i = 0; i < measured.modes.size(); ++i) {
    cost.modes.push_back(mode_cost(layer, measured, static_cast<int32_t>(i)));
  }
  if (!measured.backward_weight.timings.is_empty()) {
    cost.backward_input_s =
        seconds_or(measured.modes.front().backward_input, cost.modes.front().backward_s / 2);
    cost.backward_weight_s = measured.backward_weight.timings.median();
    cost.weight_state_bytes = measured.weight_bytes;
    cost.weight_extra_bytes = measured.backward_weight.working_bytes;
  }
  const ParameterBytes bytes = own_parameter_bytes(chain_.parameters_of(index), counted);
  cost.parameter_bytes = bytes.all;
  cost.gradient_bytes = bytes.learning;
  return cost;
}

plan::CostTable Profiler::table(bool has_step) const {
  plan::CostTable table;
  std::set<std::string> counted;
  for (int64_t i = 0; i < chain_.size(); ++i) {
    table.layers.push_back(layer_cost(i, counted));
  }
  const ParameterBytes bytes = own_parameter_bytes(chain_.loss().parameters(), counted);
  table.loss = {.name = chain_.loss().name(),
                .seconds = loss_.timings.median(),
                .extra_bytes = std::max<int64_t>(
                    0, loss_.working_bytes - table.layers.back().output_gradient()),
                .parameter_bytes = bytes.all,
                .gradient_bytes = bytes.learning};
  for (const at::Tensor& targets : targets_) {
    table.target_bytes += held_bytes(static_cast<int64_t>(targets.nbytes()));
  }
  table.carried = carried_costs(chain_, shapes_, parameters_.device());
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
    for (plan::SaveModeCost& mode : layer.modes) {
      mode.forward_s = mode.backward_s = mode.recompute_s = 0;
    }
  }
  table.loss.seconds = table.clear_s = table.step_s = 0;
}

}  // namespace

plan::CostTable measure(const model::Chain& chain,
                        model::Parameters& parameters,
                        const model::Fields& batch,
                        const ProfileOptions& options) {
  PENSTOCK_CHECK(memory::is_cpu_allocator_installed(),
                 "call memory::install_cpu_allocator() before measuring a chain");
  device::require_current(parameters.device());
  Profiler profiler(chain, parameters, batch);
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
