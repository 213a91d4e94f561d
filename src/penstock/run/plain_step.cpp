#include "penstock/run/plain_step.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/device/stopwatch.h"
#include "penstock/model/chain.h"
#include "penstock/model/layer_error.h"
#include "penstock/model/module_random.h"
#include "penstock/model/parameters.h"
#include "penstock/run/watched_step.h"

namespace penstock::run {

namespace {

struct MicroBatch {
  model::Fields batch;
  model::Pass pass;
  int32_t number = 0;
};

void show(const StepWatch* watch,
          program::ValueKind kind,
          int64_t layer,
          const MicroBatch& work,
          const model::Tensors& tensors) {
  if (watch != nullptr) {
    watch->on_made(kind, static_cast<int32_t>(layer), work.number, tensors);
  }
}

model::Tensors fields_of(const model::Fields& batch, const std::vector<std::string>& names) {
  model::Tensors tensors;
  for (const std::string& name : names) {
    tensors.push_back(model::field_of(batch, name));
  }
  return tensors;
}

// What enters the layers of one micro-batch: the tuple between two of them, and what is carried past
// some.
struct Travelling {
  model::Tensors tuple;
  model::Tensors carried;  // as Edges numbers them

  Travelling(const model::Edges& edges, const model::Fields& batch)
      : tuple(fields_of(batch, edges.first_fields)), carried(edges.carried.size()) {
    for (size_t i = 0; i < carried.size(); ++i) {
      if (edges.carried[i].born < 0) {
        carried[i] = model::field_of(batch, edges.carried[i].name);
      }
    }
  }

  model::Tensors inputs_of(const model::Edges& edges, int64_t layer) const {
    return model::gather_inputs(edges.inputs[static_cast<size_t>(layer)], tuple, [&](int32_t i) {
      return carried[static_cast<size_t>(i)];
    });
  }
  void take_outputs(const model::Edges& edges, int64_t layer, model::Tensors made) {
    const size_t at = static_cast<size_t>(layer);
    tuple = model::scatter_outputs(
        edges.outputs[at],
        std::move(made),
        edges.widths[at + 1],
        [&](int32_t i, at::Tensor tensor) { carried[static_cast<size_t>(i)] = std::move(tensor); });
  }
};

// Gradients on their way back. Those of what is carried are added up from the last reader to the first.
struct Returning {
  model::Tensors tuple;
  model::Tensors carried;

  explicit Returning(const model::Edges& edges) : carried(edges.carried.size()) {}

  model::Tensors outputs_of(const model::Edges& edges, int64_t layer) const {
    const std::vector<model::Place>& places = edges.outputs[static_cast<size_t>(layer)];
    model::Tensors gradients = model::gather_inputs(
        places, tuple, [&](int32_t i) { return carried[static_cast<size_t>(i)]; });
    // What the layer above hands on beside them.
    gradients.insert(
        gradients.end(), tuple.begin() + edges.widths[static_cast<size_t>(layer) + 1], tuple.end());
    return gradients;
  }
  void take_inputs(const model::Edges& edges, int64_t layer, model::Tensors made) {
    const size_t at = static_cast<size_t>(layer);
    tuple = model::scatter_outputs(
        edges.inputs[at], std::move(made), edges.widths[at], [&](int32_t i, at::Tensor tensor) {
          model::add_gradient(carried[static_cast<size_t>(i)], std::move(tensor));
        });
  }
};

model::Loss::Result run_loss(const model::Chain& chain,
                             model::Parameters& parameters,
                             const MicroBatch& work,
                             const model::Tensors& input,
                             double scale) {
  const int64_t last = chain.size();
  std::optional<model::RandomScope> random;
  if (chain.loss().is_random()) {
    model::Pass pass = work.pass;
    pass.layer = last;
    random.emplace(pass);
  }
  return model::naming_own_layer(chain, chain.loss().name(), "the loss", input, [&] {
    return chain.loss().backward(parameters.weights_of(last),
                                 parameters.gradients_of(last),
                                 input,
                                 targets_of(chain, work.batch),
                                 scale);
  });
}

// Forward, loss and backward; returns the loss summed over targets, without its gradient.
model::Loss::Result run_micro_batch(const model::Chain& chain,
                                    model::Parameters& parameters,
                                    MicroBatch work,
                                    double scale,
                                    const StepWatch* watch = nullptr) {
  const int64_t layers = chain.size();
  const model::Edges& edges = chain.edges();
  const model::ChainShapes shapes = chain.shapes_for(
      model::shapes_of(work.batch), rows_in(work.batch), parameters.compute_type());
  std::vector<model::Tensors> inputs(static_cast<size_t>(layers));
  std::vector<model::Saved> saved(static_cast<size_t>(layers));
  std::optional<Travelling> forward(std::in_place, edges, work.batch);
  for (int64_t i = 0; i < layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    work.pass.layer = i;
    work.pass.wanted = model::wanted_gradients(edges, shapes, i);
    const model::LayerState state = parameters.state_of(i, /*changes=*/true);
    work.pass.state = &state;
    inputs[at] = forward->inputs_of(edges, i);
    forward->take_outputs(
        edges, i, model::naming_own_layer(chain, chain.layer(i).name(), "forward", inputs[at], [&] {
          return chain.layer(i).forward(
              parameters.weights_of(i), inputs[at], work.pass, &saved[at]);
        }));
    show(watch, program::ValueKind::Activation, i + 1, work, forward->tuple);
    for (const model::Place& place : edges.outputs[at]) {
      if (place.carried >= 0) {
        show(watch,
             program::ValueKind::Carried,
             place.carried,
             work,
             {forward->carried[static_cast<size_t>(place.carried)]});
      }
    }
  }
  work.pass.state = nullptr;

  model::Loss::Result loss =
      run_loss(chain, parameters, work, forward->inputs_of(edges, layers), scale);
  forward.reset();

  Returning back(edges);
  back.take_inputs(edges, layers, std::move(loss.input_gradients));
  show(watch, program::ValueKind::Gradient, layers, work, back.tuple);
  for (int64_t i = layers - 1; i >= 0; --i) {
    const size_t at = static_cast<size_t>(i);
    work.pass.layer = i;
    work.pass.wanted = model::wanted_gradients(edges, shapes, i);
    const model::Tensors gradient = back.outputs_of(edges, i);
    back.tuple.clear();
    back.take_inputs(
        edges,
        i,
        model::naming_own_layer(chain, chain.layer(i).name(), "backward", inputs[at], [&] {
          return chain.layer(i).backward(parameters.weights_of(i),
                                         parameters.gradients_of(i),
                                         inputs[at],
                                         std::move(saved[at]),
                                         gradient,
                                         work.pass);
        }));
    show(watch, program::ValueKind::Gradient, i, work, back.tuple);
    inputs[at].clear();
  }
  return loss;
}

// What each replica's forwards have changed of the state of layers.
class ReplicaStates {
 public:
  ReplicaStates(model::Parameters& parameters, int64_t replicas)
      : parameters_(parameters),
        replicas_(replicas),
        bytes_(parameters.state_bytes()),
        states_(static_cast<size_t>(replicas * bytes_)) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      parameters_.write_state(place_of(replica));
    }
  }

  // From here on forwards are those of this replica.
  void enter(int64_t replica) {
    leave();
    entered_ = replica;
    parameters_.merge_state(place_of(replica), 1);  // of one: that one
  }
  void merge() {
    leave();
    parameters_.merge_state(states_.data(), replicas_);
    parameters_.commit_state();
  }

 private:
  std::byte* place_of(int64_t replica) { return states_.data() + replica * bytes_; }
  void leave() {
    if (entered_ >= 0) {
      parameters_.write_state(place_of(entered_));
    }
  }

  model::Parameters& parameters_;
  const int64_t replicas_, bytes_;
  std::vector<std::byte> states_;
  int64_t entered_ = -1;
};

// Up to the loss: what it is given.
model::Tensors run_forward(const model::Chain& chain,
                           const model::Parameters& parameters,
                           const model::Fields& batch) {
  model::Fields here;
  for (const auto& [name, tensor] : batch) {
    here[name] = tensor.to(parameters.device().where);
  }
  const model::Edges& edges = chain.edges();
  Travelling forward(edges, here);
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::LayerState state = parameters.state_of(i);
    const model::Pass pass{.layer = i, .is_training = false, .state = &state};
    forward.take_outputs(
        edges,
        i,
        chain.layer(i).forward(
            parameters.weights_of(i), forward.inputs_of(edges, i), pass, /*saved=*/nullptr));
  }
  return forward.inputs_of(edges, chain.size());
}

}  // namespace

double accumulate_gradients(const model::Chain& chain,
                            model::Parameters& parameters,
                            const StepInput& input) {
  const int64_t samples = rows_in(input.batch);
  PENSTOCK_CHECK(samples % input.micro_batches == 0,
                 samples,
                 " samples in ",
                 input.micro_batches,
                 " micro-batches");
  const int64_t each = samples / input.micro_batches;
  // Known before the first micro-batch, so that each contributes by its share of the targets, not
  // of the micro-batches.
  const int64_t count = chain.loss().count(targets_of(chain, input.batch));
  PENSTOCK_CHECK(count > 0, "no target of the batch counts");
  const double scale = 1.0 / static_cast<double>(count);
  const auto on_device = [&](int64_t first) {
    model::Fields rows = rows_of(input.batch, first, each);
    for (auto& [name, tensor] : rows) {
      tensor = tensor.to(parameters.device().where);
    }
    return rows;
  };
  std::vector<model::Loss::Result> losses;
  for (int64_t first = 0; first < samples; first += each) {
    losses.push_back(run_micro_batch(chain,
                                     parameters,
                                     {.batch = on_device(first),
                                      .pass = {.seed = input.seed,
                                               .step = input.step,
                                               .first_sample = input.first_sample + first}},
                                     scale * input.loss_scale));
  }
  parameters.add_shares();
  parameters.commit_state();
  // Losses that are pending are there when the device has done its work.
  const std::unique_ptr<device::Stopwatch> stopwatch =
      device::make_stopwatch(parameters.device().where);
  stopwatch->mark();
  stopwatch->wait();
  double sum = 0;
  for (const model::Loss::Result& one : losses) {
    sum += one.pending_sum == nullptr ? one.sum : *one.pending_sum;
  }
  return sum * scale;
}

double accumulate_as_replicas(const model::Chain& chain,
                              model::Parameters& parameters,
                              const StepInput& input,
                              const ReplicaOrder& order) {
  const StepWatch nobody{.on_made = [](auto...) {}, .on_loss = [](auto...) {}};
  return accumulate_as_replicas(chain, parameters, input, order, nobody);
}

double accumulate_as_replicas(const model::Chain& chain,
                              model::Parameters& parameters,
                              const StepInput& input,
                              const ReplicaOrder& order,
                              const StepWatch& watch) {
  const int64_t each = rows_in(input.batch) / (order.replicas * input.micro_batches);
  const double scale =
      1.0 / static_cast<double>(chain.loss().count(targets_of(chain, input.batch)));
  std::vector<double> sums(static_cast<size_t>(order.replicas * input.micro_batches));
  ReplicaStates states(parameters, order.replicas);
  const auto run = [&](int64_t replica, int64_t micro_batch) {
    states.enter(replica);
    const int64_t number = replica * input.micro_batches + micro_batch;
    const int64_t first = number * each;
    sums[static_cast<size_t>(number)] =
        run_micro_batch(chain,
                        parameters,
                        {.batch = rows_of(input.batch, first, each),
                         .pass = {.seed = input.seed,
                                  .step = input.step,
                                  .first_sample = input.first_sample + first},
                         .number = static_cast<int32_t>(number)},
                        scale * input.loss_scale,
                        &watch)
            .sum;
    watch.on_loss(static_cast<int32_t>(number), sums[static_cast<size_t>(number)]);
  };
  // Sums of the buffers that layers add to, replica after replica.
  const std::vector<at::Tensor> buffers = parameters.gradient_buffers();
  const auto sum_over_replicas = [&](const auto& work) {
    std::vector<at::Tensor> total;
    for (int64_t replica = 0; replica < order.replicas; ++replica) {
      parameters.zero_gradients();
      work(replica);
      for (size_t i = 0; i < buffers.size(); ++i) {
        if (replica == 0) {
          total.push_back(buffers[i].clone());
        } else {
          total[i].add_(buffers[i]);
        }
      }
    }
    return total;
  };
  std::vector<at::Tensor> total;
  if (order.reduces_each_micro_batch) {
    for (const at::Tensor& buffer : buffers) {
      total.push_back(at::zeros_like(buffer));
    }
    for (int64_t i = 0; i < input.micro_batches; ++i) {
      const std::vector<at::Tensor> sum =
          sum_over_replicas([&](int64_t replica) { run(replica, i); });
      for (size_t k = 0; k < total.size(); ++k) {
        total[k].add_(sum[k]);
      }
    }
  } else {
    total = sum_over_replicas([&](int64_t replica) {
      for (int64_t i = 0; i < input.micro_batches; ++i) {
        run(replica, i);
      }
      if (!order.adds_shared_last) {
        parameters.add_shares();
      }
    });
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    at::Tensor(buffers[i]).copy_(total[i]);
  }
  parameters.add_shares();
  states.merge();
  double sum = 0;
  for (const double one : sums) {
    sum += one;
  }
  return sum * scale;
}

LossSum evaluate(const model::Chain& chain,
                 const model::Parameters& parameters,
                 const model::Fields& batch) {
  const model::Tensors last = run_forward(chain, parameters, batch);
  const model::Tensors targets = targets_of(chain, batch);
  model::Tensors here;
  for (const at::Tensor& tensor : targets) {
    here.push_back(tensor.to(parameters.device().where));
  }
  return {chain.loss().evaluate(parameters.weights_of(chain.size()), last, here),
          chain.loss().count(targets)};
}

at::Tensor predict(const model::Chain& chain,
                   const model::Parameters& parameters,
                   const model::Fields& batch) {
  return chain.loss().predict(parameters.weights_of(chain.size()),
                              run_forward(chain, parameters, batch));
}

at::Tensor predict_next(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const model::Fields& batch) {
  model::Tensors all = run_forward(chain, parameters, batch);
  all[0] = all[0].narrow(1, all[0].size(1) - 1, 1).contiguous();
  return chain.loss().predict(parameters.weights_of(chain.size()), all).select(1, 0);
}

model::Fields rows_of(const model::Fields& batch, int64_t first, int64_t count) {
  model::Fields rows;
  for (const auto& [name, tensor] : batch) {
    rows[name] = tensor.narrow(0, first, count);
  }
  return rows;
}

model::Tensors targets_of(const model::Chain& chain, const model::Fields& batch) {
  return fields_of(batch, chain.edges().target_fields);
}

int64_t rows_in(const model::Fields& batch) {
  return batch.empty() ? 0 : batch.begin()->second.size(0);
}

}  // namespace penstock::run
