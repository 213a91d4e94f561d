#include "penstock/run/plain_step.h"

#include <vector>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/device/stopwatch.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/run/watched_step.h"

namespace penstock::run {

namespace {

struct MicroBatch {
  at::Tensor inputs, targets;
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

// Forward, loss and backward; returns the loss summed over targets, without its gradient.
model::Loss::Result run_micro_batch(const model::Chain& chain,
                                    model::Parameters& parameters,
                                    MicroBatch work,
                                    double scale,
                                    const StepWatch* watch = nullptr) {
  const int64_t layers = chain.size();
  std::vector<model::Tensors> inputs(static_cast<size_t>(layers));
  std::vector<model::Saved> saved(static_cast<size_t>(layers));
  model::Tensors activation{work.inputs};
  for (int64_t i = 0; i < layers; ++i) {
    work.pass.layer = i;
    const size_t at = static_cast<size_t>(i);
    inputs[at] = std::move(activation);
    activation =
        chain.layer(i).forward(parameters.weights_of(i), inputs[at], work.pass, &saved[at]);
    show(watch, program::ValueKind::Activation, i + 1, work, activation);
  }

  model::Loss::Result loss = chain.loss().backward(parameters.weights_of(layers),
                                                   parameters.gradients_of(layers),
                                                   activation[0],
                                                   work.targets,
                                                   scale);
  activation.clear();

  model::Tensors gradient{std::move(loss.input_gradient)};
  show(watch, program::ValueKind::Gradient, layers, work, gradient);
  for (int64_t i = layers - 1; i >= 0; --i) {
    work.pass.layer = i;
    const size_t at = static_cast<size_t>(i);
    gradient = chain.layer(i).backward(parameters.weights_of(i),
                                       parameters.gradients_of(i),
                                       inputs[at],
                                       std::move(saved[at]),
                                       gradient,
                                       work.pass);
    show(watch, program::ValueKind::Gradient, i, work, gradient);
    inputs[at].clear();
  }
  return loss;
}

at::Tensor run_forward(const model::Chain& chain,
                       const model::Parameters& parameters,
                       const at::Tensor& inputs) {
  model::Tensors activation{inputs.to(parameters.device().where)};
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Pass pass{.layer = i, .is_training = false};
    activation =
        chain.layer(i).forward(parameters.weights_of(i), activation, pass, /*saved=*/nullptr);
  }
  return activation[0];
}

}  // namespace

double accumulate_gradients(const model::Chain& chain,
                            model::Parameters& parameters,
                            const StepInput& input) {
  const int64_t samples = input.inputs.size(0);
  PENSTOCK_CHECK(samples % input.micro_batches == 0,
                 samples,
                 " samples in ",
                 input.micro_batches,
                 " micro-batches");
  const int64_t each = samples / input.micro_batches;
  // Known before the first micro-batch, so that each contributes by its share of the targets, not
  // of the micro-batches.
  const int64_t count = chain.loss().count(input.targets);
  PENSTOCK_CHECK(count > 0, "no target of the batch counts");
  const double scale = 1.0 / static_cast<double>(count);
  const auto on_device = [&](const at::Tensor& whole, int64_t first) {
    return whole.narrow(0, first, each).to(parameters.device().where);
  };
  std::vector<model::Loss::Result> losses;
  for (int64_t first = 0; first < samples; first += each) {
    losses.push_back(run_micro_batch(chain,
                                     parameters,
                                     {.inputs = on_device(input.inputs, first),
                                      .targets = on_device(input.targets, first),
                                      .pass = {.seed = input.seed,
                                               .step = input.step,
                                               .first_sample = input.first_sample + first}},
                                     scale * input.loss_scale));
  }
  parameters.add_shares();
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
  const int64_t each = input.inputs.size(0) / (order.replicas * input.micro_batches);
  const double scale = 1.0 / static_cast<double>(chain.loss().count(input.targets));
  std::vector<double> sums(static_cast<size_t>(order.replicas * input.micro_batches));
  const auto run = [&](int64_t replica, int64_t micro_batch) {
    const int64_t number = replica * input.micro_batches + micro_batch;
    const int64_t first = number * each;
    sums[static_cast<size_t>(number)] =
        run_micro_batch(chain,
                        parameters,
                        {.inputs = input.inputs.narrow(0, first, each),
                         .targets = input.targets.narrow(0, first, each),
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
  double sum = 0;
  for (const double one : sums) {
    sum += one;
  }
  return sum * scale;
}

LossSum evaluate(const model::Chain& chain,
                 const model::Parameters& parameters,
                 const at::Tensor& inputs,
                 const at::Tensor& targets) {
  const at::Tensor last = run_forward(chain, parameters, inputs);
  const at::Tensor here = targets.to(parameters.device().where);
  return {chain.loss().evaluate(parameters.weights_of(chain.size()), last, here),
          chain.loss().count(targets)};
}

at::Tensor predict(const model::Chain& chain,
                   const model::Parameters& parameters,
                   const at::Tensor& inputs) {
  return chain.loss().predict(parameters.weights_of(chain.size()),
                              run_forward(chain, parameters, inputs));
}

at::Tensor predict_next(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const at::Tensor& inputs) {
  const at::Tensor all = run_forward(chain, parameters, inputs);
  const at::Tensor last = all.narrow(1, all.size(1) - 1, 1).contiguous();
  return chain.loss().predict(parameters.weights_of(chain.size()), last).select(1, 0);
}

}  // namespace penstock::run
