#include "penstock/model/module_buffers.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include "penstock/base/error.h"
#include "penstock/model/module_parts.h"

namespace penstock::model {

namespace {

// What files of checkpoints hold.
bool can_be_saved(at::ScalarType type) {
  switch (type) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return true;
    default:
      return false;
  }
}

bool is_norm(const torch::nn::Module& part) {
  return part.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
         part.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         part.as<torch::nn::BatchNorm3dImpl>() != nullptr ||
         part.as<torch::nn::InstanceNorm1dImpl>() != nullptr ||
         part.as<torch::nn::InstanceNorm2dImpl>() != nullptr ||
         part.as<torch::nn::InstanceNorm3dImpl>() != nullptr;
}

std::set<const c10::TensorImpl*> statistics_of_norms(const torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> found;
  for (const auto& part : module.modules(/*include_self=*/true)) {
    if (is_norm(*part)) {
      for (const at::Tensor& buffer : part->buffers(/*recurse=*/false)) {
        found.insert(buffer.unsafeGetTensorImpl());
      }
    }
  }
  return found;
}

StateSpec::Merge merge_of(at::ScalarType type) {
  return type == at::kBool          ? StateSpec::Merge::Max
         : at::isFloatingType(type) ? StateSpec::Merge::Mean
                                    : StateSpec::Merge::Sum;
}

// `next` is what `before` earlier micro-batches have left; this one has left `left`.
void put_together(StateSpec::Merge how,
                  const at::Tensor& current,
                  const at::Tensor& left,
                  int64_t before,
                  at::Tensor& next) {
  if (before == 0) {
    next.copy_(left);
    return;
  }
  switch (how) {
    case StateSpec::Merge::Mean:
      next.lerp_(left, 1 / static_cast<double>(before + 1));
      return;
    case StateSpec::Merge::Sum:
      next.add_(left).sub_(current);
      return;
    case StateSpec::Merge::Max:
      at::maximum_out(next, next, left);
      return;
  }
}

}  // namespace

ModuleBuffers::ModuleBuffers(const std::string& layer, const torch::nn::Module* module) {
  if (module == nullptr) {
    return;
  }
  const std::set<const c10::TensorImpl*> of_norms = statistics_of_norms(*module);
  for (const auto& [name, tensor] : each_once(module->named_buffers())) {
    if (!can_be_saved(tensor.scalar_type())) {
      throw ConfigError(cat("layer ",
                            layer,
                            ": its buffer ",
                            name,
                            " is ",
                            c10::toString(tensor.scalar_type()),
                            ", which checkpoints cannot hold; store it as real numbers, such as "
                            "view_as_real gives"));
    }
    tensors_.push_back(tensor);
    of_norms_.push_back(of_norms.count(tensor.unsafeGetTensorImpl()) > 0);
    specs_.push_back({.name = cat(layer, ".", name),
                      .shape = tensor.sizes().vec(),
                      .type = tensor.scalar_type(),
                      .initial = tensor.detach().clone(at::MemoryFormat::Contiguous),
                      .merge = merge_of(tensor.scalar_type())});
  }
}

void ModuleBuffers::forget_initial() {
  for (StateSpec& spec : specs_) {
    spec.initial = at::Tensor();
  }
  clear();
}

bool ModuleBuffers::has(const at::Tensor& tensor) const {
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const at::Tensor& buffer) {
    return buffer.is_alias_of(tensor);
  });
}

// With a count of changes of its own: autograd holds a saved buffer against it, and the next micro-batch's
// changes are of another copy.
void ModuleBuffers::put(size_t buffer,
                        const at::Tensor& value,
                        const c10::VariableVersion& version) const {
  at::Tensor(tensors_[buffer]).set_data(value);
  torch::autograd::impl::set_version_counter(tensors_[buffer], version);
}

void ModuleBuffers::clear() const {
  for (const at::Tensor& buffer : tensors_) {
    at::Tensor(buffer).set_data(at::empty({0}, buffer.options()));
  }
}

ModuleBuffers::Forward::Forward(const ModuleBuffers& buffers, const LayerState* state)
    : buffers_(buffers), state_(state) {
  const bool is_measured = state_ == nullptr || state_->current.empty();
  for (size_t i = 0; i < buffers_.tensors_.size(); ++i) {
    const StateSpec& spec = buffers_.specs_[i];
    const bool goes_on = buffers_.of_norms_[i] && !is_measured && !state_->next.empty();
    buffers_.put(i,
                 is_measured ? at::zeros(spec.shape, spec.type)
                 : goes_on   ? state_->next[i].clone()
                             : state_->current[i].clone(),
                 c10::VariableVersion(0));
    users_.push_back(buffers_.tensors_[i].use_count());
  }
}

void ModuleBuffers::Forward::commit() const {
  if (state_ == nullptr || state_->next.empty()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.tensors_.size(); ++i) {
    const at::Tensor& left = buffers_.tensors_[i];
    if (left.sizes() != state_->next[i].sizes()) {
      throw ConfigError(cat("its forward gives the buffer ",
                            buffers_.specs_[i].name,
                            " another shape, ",
                            shape_text(Tensors{left})));
    }
    put_together(buffers_.specs_[i].merge,
                 state_->current[i],
                 left,
                 buffers_.of_norms_[i] ? 0 : state_->micro_batches_before,
                 state_->next[i]);
  }
}

std::vector<SavedBuffer> ModuleBuffers::Forward::saved_by_autograd() const {
  std::vector<SavedBuffer> saved(users_.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    const at::Tensor& buffer = buffers_.tensors_[i];
    if (buffer.use_count() > users_[i]) {
      saved[i] = {buffer.variable_data(), torch::autograd::impl::version_counter(buffer)};
    }
  }
  return saved;
}

ModuleBuffers::Forward::~Forward() {
  buffers_.clear();
}

ModuleBuffers::Backward::Backward(const ModuleBuffers& buffers,
                                  const std::vector<SavedBuffer>& saved)
    : buffers_(buffers) {
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].tensor.defined()) {
      buffers_.put(i, saved[i].tensor, saved[i].version);
    }
  }
}

ModuleBuffers::Backward::~Backward() {
  buffers_.clear();
}

}  // namespace penstock::model
