#include "penstock/model/parameters.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/model/gpu_gradients.h"

namespace penstock::model {

namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes of float32

int64_t round_up(int64_t value) {
  return (value + kAlignElements - 1) / kAlignElements * kAlignElements;
}

// Box-Muller on Philox: block i of the parameter's stream gives elements 4i .. 4i+3.
void fill_normal(const at::Tensor& weight,
                 double deviation,
                 uint64_t seed,
                 const std::string& name) {
  const PhiloxKey key = philox_key(seed, hash_name(name));
  float* values = weight.data_ptr<float>();
  const int64_t count = weight.numel();
  const int64_t blocks = (count + 3) / 4;
  at::parallel_for(0, blocks, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const PhiloxBlock bits =
          philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0});
      for (int64_t pair = 0; pair < 2; ++pair) {
        // In (0, 1], so that the logarithm is finite.
        const double u =
            (static_cast<double>(bits[static_cast<size_t>(2 * pair)]) + 1) / 4294967296.0;
        const double angle = 2 * std::numbers::pi *
                             static_cast<double>(bits[static_cast<size_t>(2 * pair + 1)]) /
                             4294967296.0;
        const double radius = deviation * std::sqrt(-2 * std::log(u));
        const int64_t at = 4 * block + 2 * pair;
        if (at < count) {
          values[at] = static_cast<float>(radius * std::cos(angle));
        }
        if (at + 1 < count) {
          values[at + 1] = static_cast<float>(radius * std::sin(angle));
        }
      }
    }
  });
}

// Fills on the CPU, wherever the weight lies: the same bits on every device.
template <typename Fill>
void set_weight(const Parameter& parameter, const Fill& fill) {
  if (parameter.weight.is_cpu()) {
    return fill(parameter.weight);
  }
  const at::Tensor staged = at::empty(parameter.weight.sizes(), at::kFloat);
  fill(staged);
  at::Tensor(parameter.weight).copy_(staged);
}

}  // namespace

Parameters::Parameters(const Chain& chain,
                       at::ScalarType compute_type,
                       uint64_t seed,
                       const device::Device& device)
    : Parameters(chain, chain.whole(), compute_type, seed, device) {}

Parameters::Parameters(const Chain& chain,
                       const Part& part,
                       at::ScalarType compute_type,
                       uint64_t seed,
                       const device::Device& device)
    : device_(device), compute_type_(compute_type) {
  const c10::NoGradGuard no_grad;
  place(chain.parameters(part));
  initialise(seed);
  std::set<std::string> seen;
  layer_weights_.resize(static_cast<size_t>(chain.size()) + 1);
  layer_gradients_.resize(layer_weights_.size());
  layer_parameters_.resize(layer_weights_.size());
  for (const int64_t layer : part.layers) {
    collect(layer, chain.layer(layer).parameters(), seen);
  }
  if (part.has_loss) {
    collect(chain.size(), chain.loss().parameters(), seen);
  }
}

void Parameters::collect(int64_t layer,
                         const std::vector<ParameterSpec>& specs,
                         std::set<std::string>& seen) {
  for (const ParameterSpec& spec : specs) {
    const Parameter& parameter = *find(spec.name);
    at::Tensor gradient = parameter.gradient;
    if (!seen.insert(spec.name).second && !device_.is_gpu()) {
      shares_.push_back({gradient, at::zeros_like(gradient)});
      gradient = shares_.back().own;
    }
    const size_t at = static_cast<size_t>(layer);
    layer_weights_[at].push_back(spec.is_always_float32 ? parameter.weight : parameter.compute);
    layer_gradients_[at].push_back(gradient);
    layer_parameters_[at].push_back(index_.at(spec.name));
  }
}

Parameters::~Parameters() {
  if (device_.is_gpu()) {
    forget_gpu_gradients(*this);
  }
}

int64_t Parameters::flat_elements(const std::vector<ParameterSpec>& specs) {
  int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    total += round_up(spec.count() + spec.padding);
  }
  return total;
}

void Parameters::place(const std::vector<ParameterSpec>& specs) {
  int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    all_.push_back({.spec = spec, .offset = total});
    index_[spec.name] = all_.size() - 1;
    count_ += spec.count();
    total += round_up(spec.count() + spec.padding);
  }
  const at::TensorOptions options = at::TensorOptions(device_.where).dtype(at::kFloat);
  weights_ = at::zeros({total}, options);
  gradients_ = at::zeros({total}, options);
  compute_ =
      compute_type_ == at::kFloat ? weights_ : at::zeros({total}, options.dtype(compute_type_));
  for (Parameter& parameter : all_) {
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, parameter.offset, parameter.spec.count()).view(parameter.spec.shape);
    };
    parameter.weight = view(weights_);
    parameter.gradient = view(gradients_);
    parameter.compute = view(compute_);
  }
}

void Parameters::initialise(uint64_t seed) {
  for (const Parameter& parameter : all_) {
    switch (parameter.spec.init) {
      case ParameterSpec::Init::Zeros:
        break;
      case ParameterSpec::Init::Ones:
        at::Tensor(parameter.weight).fill_(1);
        break;
      case ParameterSpec::Init::Normal:
        set_weight(parameter, [&](const at::Tensor& weight) {
          fill_normal(weight, parameter.spec.deviation, seed, parameter.spec.name);
        });
        break;
      case ParameterSpec::Init::Given:
        at::Tensor(parameter.weight).copy_(parameter.spec.given);
        break;
    }
  }
  refresh_compute();
}

const Parameter* Parameters::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &all_[found->second];
}

namespace {

// Some parameters stay float32 in a lower compute precision: a copy has them apart, one after the
// other.
bool is_apart(const ParameterSpec& spec, at::ScalarType compute_type) {
  return spec.is_always_float32 && compute_type != at::kFloat;
}

}  // namespace

Tensors Parameters::copy_weights() const {
  const c10::NoGradGuard no_grad;
  Tensors copy{compute_.clone()};
  std::vector<at::Tensor> apart;
  for (const Parameter& parameter : all_) {
    if (is_apart(parameter.spec, compute_type_)) {
      apart.push_back(parameter.weight.reshape({-1}));
    }
  }
  if (!apart.empty()) {
    copy.push_back(at::cat(apart));
  }
  return copy;
}

int64_t Parameters::copy_bytes(const std::vector<ParameterSpec>& specs,
                               at::ScalarType compute_type) {
  int64_t bytes = flat_elements(specs) * static_cast<int64_t>(c10::elementSize(compute_type));
  for (const ParameterSpec& spec : specs) {
    bytes += is_apart(spec, compute_type) ? 4 * spec.count() : 0;
  }
  return bytes;
}

Tensors Parameters::weights_in(const Tensors& copy, int64_t layer) const {
  Tensors weights;
  for (const size_t index : layer_parameters_[static_cast<size_t>(layer)]) {
    const ParameterSpec& spec = all_[index].spec;
    int64_t offset = all_[index].offset;
    const bool has_own_place = is_apart(spec, compute_type_);
    if (has_own_place) {
      offset = 0;
      for (size_t before = 0; before < index; ++before) {
        const ParameterSpec& other = all_[before].spec;
        offset += is_apart(other, compute_type_) ? other.count() : 0;
      }
    }
    weights.push_back(copy[has_own_place ? 1 : 0].narrow(0, offset, spec.count()).view(spec.shape));
  }
  return weights;
}

void Parameters::zero_gradients() {
  const c10::NoGradGuard no_grad;
  if (device_.is_gpu()) {
    empty_gpu_gradients(*this);
  } else {
    gradients_.zero_();
    for (Share& share : shares_) {
      share.own.zero_();
    }
  }
}

void Parameters::complete_gradients() {
  if (device_.is_gpu()) {
    complete_gpu_gradients(*this);
  }
  const c10::NoGradGuard no_grad;
  for (Share& share : shares_) {
    share.whole.add_(share.own);
    share.own.zero_();  // so that asking again adds nothing
  }
}

void Parameters::refresh_compute() {
  if (compute_type_ != at::kFloat) {
    const c10::NoGradGuard no_grad;
    compute_.copy_(weights_);
  }
}

}  // namespace penstock::model
