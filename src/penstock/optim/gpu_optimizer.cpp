#include "penstock/optim/gpu_optimizer.h"

#include <cmath>
#include <cstring>

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/optimizers.h"
#include "penstock/model/gpu_ops.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/gpu_optimizer_size.h"

namespace penstock::optim {

namespace {

// An array of plain structs on the device.
template <typename T>
at::Tensor on_device(const std::vector<T>& items, c10::Device where) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(items.size() * sizeof(T))}, at::kByte);
  std::memcpy(bytes.data_ptr(), items.data(), items.size() * sizeof(T));
  return bytes.to(where);
}

template <typename T>
T* pointer(const at::Tensor& bytes) {
  return static_cast<T*>(bytes.data_ptr());
}

// What the three have in common: the norm, and the table of chunks that the kernels walk.
class GpuOptimizer : public Optimizer {
 public:
  GpuOptimizer(const config::TrainOptions& train, const model::Parameters& parameters)
      : train_(train), context_(parameters.device().gpu) {
    std::vector<gpu::LambParameter> groups;
    for (const model::Parameter& parameter : parameters.learning()) {
      groups.push_back({static_cast<int64_t>(chunks_.size()), 0, parameter.spec.has_weight_decay});
      for (int64_t done = 0; done < parameter.spec.count(); done += gpu::kChunkElements) {
        const int64_t count = std::min(gpu::kChunkElements, parameter.spec.count() - done);
        chunks_.push_back({parameter.offset + done,
                           static_cast<int32_t>(count),
                           parameter.spec.has_weight_decay});
        ++groups.back().chunk_count;
      }
    }
    group_count_ = static_cast<int64_t>(groups.size());
    const c10::Device where = parameters.device().where;
    device_chunks_ = on_device(chunks_, where);
    device_groups_ = on_device(groups, where);
    // Plans count what is allocated here by the same numbers (gpu_optimizer_size.h).
    const GpuUpdateSizes sizes = gpu_update_sizes(parameters.inventory());
    PENSTOCK_CHECK(
        sizes.chunks == static_cast<int64_t>(chunks_.size()) && sizes.parameters == group_count_,
        "an update of ",
        chunks_.size(),
        " chunks of ",
        group_count_,
        " parameters; the inventory has ",
        sizes.chunks,
        " of ",
        sizes.parameters);
    norm_workspace_ = at::empty({gpu::kNormBlocks}, at::TensorOptions(where).dtype(at::kDouble));
    const int64_t bytes = static_cast<int64_t>(sizeof(gpu::GradientState));
    device_state_ = at::zeros({bytes}, at::TensorOptions(where).dtype(at::kByte));
    host_state_ = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    norms_of_parameters_ = at::empty({group_count_ * bytes}, device_state_.options());
  }

  // Steps go through `update`, which decides on the device what to multiply the gradients by.
  void step(model::Parameters&, const Rate&, double) override {
    throw InternalError("Optimizer::step on a GPU; use update");
  }

  void take_squares(model::Parameters& parameters,
                    const UpdateSettings& settings,
                    bool for_others) override {
    settings_ = settings;
    const gpu::Stream stream = context_->compute();
    if (for_others) {
      squares_ = squares_of_parameters(parameters, stream);
      return;
    }
    // The norm and what follows from it are decided on the device, in one pass.
    gpu::gradient_norm({.gradients = parameters.flat_gradients().const_data_ptr<float>(),
                        .count = parameters.flat_gradients().numel(),
                        .clip = static_cast<float>(settings.clip),
                        .inverse_loss_scale = 1 / settings.loss_scale,
                        .workspace = norm_workspace_.data_ptr<double>(),
                        .state = pointer<gpu::GradientState>(device_state_)},
                       stream);
  }

  void decide(const Squares* all) override {
    if (all != nullptr) {
      decide_on_host(norm_of(*all));
    }
  }

  void move(model::Parameters& parameters) override {
    const gpu::Stream stream = context_->compute();
    ++steps_done_;
    is_pending_ = true;
    apply(parameters, settings_.rate, stream);
    PENSTOCK_CUDA(cudaMemcpyAsync(host_state_.data_ptr(),
                                  device_state_.data_ptr(),
                                  sizeof(gpu::GradientState),
                                  cudaMemcpyDeviceToHost,
                                  stream));
  }

  Updated updated() override {
    if (is_pending_) {
      context_->wait();
    }
    const auto* state = pointer<const gpu::GradientState>(host_state_);
    const bool was_applied = state->is_finite != 0;
    if (is_pending_ && !was_applied) {
      --steps_done_;
    }
    is_pending_ = false;
    return {state->norm, was_applied};
  }

 protected:
  virtual void apply(model::Parameters& parameters, const Rate& rate, gpu::Stream stream) = 0;

  // The fields that AdamW, Sgd and Lamb share.
  template <typename Work>
  Work work_on(model::Parameters& parameters) const {
    Work work{};
    work.weights = parameters.flat_weights().data_ptr<float>();
    work.gradients = parameters.flat_gradients().template data_ptr<float>();
    if (parameters.compute_type() != at::kFloat) {
      work.compute_copy = parameters.flat_compute().data_ptr();
      work.copy_type = model::gpu_type(parameters.compute_type());
    }
    work.chunks = pointer<const gpu::UpdateChunk>(device_chunks_);
    work.chunk_count = static_cast<int64_t>(chunks_.size());
    work.state = pointer<const gpu::GradientState>(device_state_);
    return work;
  }

  float* state_data(size_t index) const { return state_[index].flat.data_ptr<float>(); }

  config::TrainOptions train_;
  std::shared_ptr<device::GpuContext> context_;
  std::vector<gpu::UpdateChunk> chunks_;
  int64_t group_count_ = 0;
  at::Tensor device_chunks_, device_groups_;

 private:
  // Several ranks share the model, so the host has heard the squares of all: whether the step is
  // taken is decided there, alike at every rank.
  void decide_on_host(double norm) {
    const double true_norm = norm / settings_.loss_scale;
    const bool is_finite = std::isfinite(true_norm);
    const double scale = clip_scale(true_norm, settings_.clip) / settings_.loss_scale;
    *pointer<gpu::GradientState>(host_state_) = {
        .norm = true_norm,
        .scale = is_finite ? static_cast<float>(scale) : 0.0f,
        .is_finite = is_finite};
    PENSTOCK_CUDA(cudaMemcpyAsync(device_state_.data_ptr(),
                                  host_state_.data_ptr(),
                                  sizeof(gpu::GradientState),
                                  cudaMemcpyHostToDevice,
                                  context_->compute()));
  }

  // Of each parameter, as the norm of its gradient. Waits for the device.
  Squares squares_of_parameters(const model::Parameters& parameters, gpu::Stream stream) {
    const int64_t bytes = norms_of_parameters_.numel();
    if (!host_norms_.defined()) {
      host_norms_ = at::empty({bytes}, host_state_.options().pinned_memory(true));
    }
    const float* gradients = parameters.flat_gradients().const_data_ptr<float>();
    auto* norms = pointer<gpu::GradientState>(norms_of_parameters_);
    for (const model::Parameter& parameter : parameters.learning()) {
      gpu::gradient_norm({.gradients = gradients + parameter.offset,
                          .count = parameter.spec.count(),
                          .clip = 0,
                          .inverse_loss_scale = 1,
                          .workspace = norm_workspace_.data_ptr<double>(),
                          .state = norms++},
                         stream);
    }
    PENSTOCK_CUDA(cudaMemcpyAsync(host_norms_.data_ptr(),
                                  norms_of_parameters_.data_ptr(),
                                  static_cast<size_t>(bytes),
                                  cudaMemcpyDeviceToHost,
                                  stream));
    context_->wait();
    Squares squares;
    const auto* found = pointer<const gpu::GradientState>(host_norms_);
    for (int64_t i = 0; i < group_count_; ++i) {
      squares.push_back(found[i].norm * found[i].norm);
    }
    return squares;
  }

  at::Tensor norm_workspace_, device_state_, host_state_;
  at::Tensor norms_of_parameters_, host_norms_;  // used where several ranks share the model
  bool is_pending_ = false;
};

class GpuAdamW final : public GpuOptimizer {
 public:
  GpuAdamW(const config::TrainOptions& train, const model::Parameters& parameters)
      : GpuOptimizer(train, parameters) {
    state_ = make_state(train, parameters);
  }

 private:
  void apply(model::Parameters& parameters, const Rate& rate, gpu::Stream stream) override {
    auto work = work_on<gpu::AdamW>(parameters);
    work.mean = state_data(0);
    work.mean_square = state_data(1);
    work.settings = adam_settings(train_, rate, steps_done_);
    gpu::adamw_update(work, stream);
  }
};

class GpuSgd final : public GpuOptimizer {
 public:
  GpuSgd(const config::TrainOptions& train, const model::Parameters& parameters)
      : GpuOptimizer(train, parameters) {
    state_ = make_state(train, parameters);
  }

 private:
  void apply(model::Parameters& parameters, const Rate& rate, gpu::Stream stream) override {
    auto work = work_on<gpu::Sgd>(parameters);
    work.momentum_buffer = state_.empty() ? nullptr : state_data(0);
    const double momentum = state_.empty() ? 0 : rate.momentum.value_or(train_.momentum);
    work.settings = {static_cast<float>(rate.lr),
                     static_cast<float>(momentum),
                     static_cast<float>(train_.weight_decay),
                     train_.nesterov,
                     steps_done_ == 1};
    gpu::sgd_update(work, stream);
  }
};

class GpuLamb final : public GpuOptimizer {
 public:
  GpuLamb(const config::TrainOptions& train, const model::Parameters& parameters)
      : GpuOptimizer(train, parameters) {
    state_ = make_state(train, parameters);
    const int64_t count = static_cast<int64_t>(chunks_.size());
    const at::TensorOptions options(parameters.device().where);
    norms_ =
        at::empty({count * gpu::kChunkSlices * static_cast<int64_t>(sizeof(kernels::LambNorms))},
                  options.dtype(at::kByte));
    rates_ = at::empty({count}, options.dtype(at::kFloat));
  }

 private:
  void apply(model::Parameters& parameters, const Rate& rate, gpu::Stream stream) override {
    auto work = work_on<gpu::Lamb>(parameters);
    work.mean = state_data(0);
    work.mean_square = state_data(1);
    work.update = parameters.flat_gradients().data_ptr<float>();  // nobody reads these afterwards
    work.parameters = pointer<const gpu::LambParameter>(device_groups_);
    work.parameter_count = group_count_;
    work.norms = pointer<kernels::LambNorms>(norms_);
    work.rates = rates_.data_ptr<float>();
    work.settings = adam_settings(train_, rate, steps_done_);
    gpu::lamb_direction(work, stream);
    gpu::lamb_ratio(work, stream);
    gpu::lamb_apply(work, stream);
  }

  at::Tensor norms_, rates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_gpu_optimizer(const config::TrainOptions& train,
                                              const model::Parameters& parameters) {
  if (train.optimizer == "adamw") {
    return std::make_unique<GpuAdamW>(train, parameters);
  }
  if (train.optimizer == "sgd") {
    return std::make_unique<GpuSgd>(train, parameters);
  }
  PENSTOCK_CHECK(train.optimizer == "lamb", "no optimizer ", train.optimizer);
  return std::make_unique<GpuLamb>(train, parameters);
}

}  // namespace penstock::optim
