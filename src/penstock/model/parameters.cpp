#include "penstock/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/model/merge_state.h"

namespace penstock::model {

namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes of float32

int64_t round_up(int64_t value) {
  return (value + kAlignElements - 1) / kAlignElements * kAlignElements;
}

// Box-Muller on Philox: block i of the parameter's stream gives elements 4i .. 4i+3. Writes
// elements first .. first + count - 1 to `values`.
void fill_normal(float* values,
                 int64_t first,
                 int64_t count,
                 double deviation,
                 uint64_t seed,
                 const std::string& name) {
  const PhiloxKey key = philox_key(seed, hash_name(name));
  const auto set = [&](int64_t element, double value) {
    if (element >= first && element < first + count) {
      values[element - first] = static_cast<float>(value);
    }
  };
  at::parallel_for(first / 4, (first + count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
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
        set(4 * block + 2 * pair, radius * std::cos(angle));
        set(4 * block + 2 * pair + 1, radius * std::sin(angle));
      }
    }
  });
}

// Elements first .. first + count - 1 of a fresh parameter, on the CPU.
void fill_fresh(
    const ParameterSpec& spec, uint64_t seed, int64_t first, int64_t count, float* values) {
  switch (spec.init) {
    case ParameterSpec::Init::Zeros:
      std::fill_n(values, count, 0.0F);
      return;
    case ParameterSpec::Init::Ones:
      std::fill_n(values, count, 1.0F);
      return;
    case ParameterSpec::Init::Normal:
      return fill_normal(values, first, count, spec.deviation, seed, spec.name);
    case ParameterSpec::Init::Given: {
      const at::Tensor given =
          spec.given.reshape({-1}).narrow(0, first, count).cpu().to(at::kFloat);
      std::copy_n(given.const_data_ptr<float>(), count, values);
      return;
    }
  }
}

// Fills elements of a parameter where they lie, `flat` from element `first` on: the same bits on
// every device, and with little memory beside.
void set_fresh(const ParameterSpec& spec, uint64_t seed, int64_t first, const at::Tensor& flat) {
  if (flat.is_cpu() && flat.scalar_type() == at::kFloat) {
    return fill_fresh(spec, seed, first, flat.numel(), flat.data_ptr<float>());
  }
  constexpr int64_t kAtOnce = int64_t{1} << 18;
  const at::Tensor staged = at::empty({std::min(kAtOnce, flat.numel())}, at::kFloat);
  for (int64_t done = 0; done < flat.numel(); done += kAtOnce) {
    const int64_t count = std::min(kAtOnce, flat.numel() - done);
    fill_fresh(spec, seed, first + done, count, staged.data_ptr<float>());
    flat.narrow(0, done, count).copy_(staged.narrow(0, 0, count));
  }
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
                       const device::Device& device,
                       const Replication& replication)
    : device_(device),
      compute_type_(compute_type),
      shard_(replication.shard),
      replicas_(replication.replicas),
      replica_(replication.replica),
      inventory_(take_inventory(chain,
                                part,
                                compute_type == at::kFloat,
                                /*keeps_shares=*/!device.is_gpu(),
                                replication)) {
  const c10::NoGradGuard no_grad;
  place(chain.parameters(part));
  if (replicas_ > 1) {
    PENSTOCK_CHECK(!device.is_gpu(), "replicas on GPUs");
    place_units();
  }
  allocate();
  find_segments();
  initialise(seed);
  layer_weights_.resize(static_cast<size_t>(chain.size()) + 1);
  layer_gradients_.resize(layer_weights_.size());
  layer_parameters_.resize(layer_weights_.size());
  for (const int64_t layer : part.layers) {
    collect(layer, chain.parameters_of(layer));
  }
  if (part.has_loss) {
    collect(chain.size(), chain.parameters_of(chain.size()));
  }
  layer_state_.resize(layer_weights_.size());
  for (const int64_t layer : part.layers) {
    StateTensors& state = layer_state_[static_cast<size_t>(layer)];
    for (const StateSpec& spec : chain.layer(layer).state()) {
      state.names.push_back(spec.name);
      state.merges.push_back(spec.merge);
      state.current.push_back(
          spec.initial.to(device_.where, /*non_blocking=*/false, /*copy=*/true));
      state.next.push_back(state.current.back().clone());
    }
  }
}

namespace {

void copy_all(const Tensors& from, const Tensors& to) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor(to[i]).copy_(from[i]);
  }
}

}  // namespace

void Parameters::commit_state() {
  for (StateTensors& state : layer_state_) {
    copy_all(state.next, state.current);
    state.changed = 0;
  }
}

int64_t Parameters::state_bytes() const {
  int64_t bytes = 0;
  for (const StateTensors& state : layer_state_) {
    for (const at::Tensor& tensor : state.next) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

void Parameters::write_state(std::byte* into) const {
  for (const StateTensors& state : layer_state_) {
    for (const at::Tensor& tensor : state.next) {
      std::memcpy(into, tensor.const_data_ptr(), tensor.nbytes());
      into += tensor.nbytes();
    }
  }
}

void Parameters::merge_state(const std::byte* of_replicas, int64_t replicas) {
  const int64_t stride = state_bytes();
  for (const StateTensors& state : layer_state_) {
    for (size_t i = 0; i < state.next.size(); ++i) {
      model::merge_state(
          state.merges[i], state.current[i], {of_replicas, stride, replicas}, state.next[i]);
      of_replicas += state.next[i].nbytes();
    }
  }
}

void Parameters::reset_state() {
  for (StateTensors& state : layer_state_) {
    copy_all(state.current, state.next);
    state.changed = 0;
  }
}

bool Parameters::has_state() const {
  return std::any_of(layer_state_.begin(), layer_state_.end(), [](const StateTensors& state) {
    return !state.current.empty();
  });
}

void Parameters::collect(int64_t layer, const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    const size_t index = index_.at(spec.name);
    const Parameter& parameter = all_[index];
    at::Tensor gradient = parameter.gradient;
    const size_t unit = homes_[index].unit;
    for (const auto& [user, elements] : inventory_.units[unit].shares) {
      if (user == layer) {
        // Sharded, it is alone in its unit.
        const at::Tensor whole =
            has_own_gradients() ? own_slice(own_gradients_, unit, 0) : gradient;
        PENSTOCK_CHECK(whole.numel() == elements, "a share of ", elements, " elements");
        shares_.push_back({whole, at::zeros_like(whole), layer, index});
        gradient = has_own_gradients() ? at::Tensor() : shares_.back().own;
      }
    }
    const size_t at = static_cast<size_t>(layer);
    layer_weights_[at].push_back(spec.is_always_float32 ? parameter.weight : parameter.compute);
    layer_gradients_[at].push_back(gradient);
    layer_parameters_[at].push_back(index);
  }
}

Parameters::~Parameters() = default;

int64_t Parameters::flat_elements(const std::vector<ParameterSpec>& specs) {
  int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    total += round_up(spec.count() + spec.padding);
  }
  return total;
}

void Parameters::place(const std::vector<ParameterSpec>& specs) {
  for (const bool is_frozen : {false, true}) {
    for (const ParameterSpec& spec : specs) {
      if (spec.is_frozen != is_frozen) {
        continue;
      }
      all_.push_back({.spec = spec, .offset = elements_});
      index_[spec.name] = all_.size() - 1;
      count_ += spec.count();
      elements_ += round_up(spec.count() + spec.padding);
    }
    num_learning_ = is_frozen ? num_learning_ : all_.size();
  }
  homes_.resize(all_.size());
  for (size_t unit = 0; unit < inventory_.units.size(); ++unit) {
    for (const plan::ParameterSize& parameter : inventory_.sizes[unit].parameters) {
      if (const auto found = index_.find(parameter.name); found != index_.end()) {
        homes_[found->second].unit = unit;
      }
    }
  }
}

// Moves the parameters to where their units are.
void Parameters::place_units() {
  int64_t first = 0;
  int64_t own_first = 0;
  for (size_t number = 0; number < inventory_.units.size(); ++number) {
    PlacedUnit& unit = units_.emplace_back();
    PENSTOCK_CHECK(number == 0 || inventory_.sizes[number].unit.is_frozen ||
                       !inventory_.sizes[number - 1].unit.is_frozen,
                   "a unit that learns comes after a frozen one");
    const plan::UnitStock& here = inventory_.units[number];
    unit.first = first;
    unit.own_first = own_first;
    first += here.layout.elements;
    own_first += here.is_here ? here.layout.slice_count(replica_) : 0;
    const std::vector<plan::ParameterSize>& parameters = inventory_.sizes[number].parameters;
    for (size_t i = 0; here.is_here && i < parameters.size(); ++i) {
      const size_t index = index_.at(parameters[i].name);
      const int64_t offset = here.layout.offsets[i];
      size_t range = 0;
      while (offset >= here.layout.ranges[range].first + here.layout.ranges[range].count) {
        ++range;
      }
      all_[index].offset = unit.first + offset;
      homes_[index] = {number, range, offset - here.layout.ranges[range].first};
    }
  }
  PENSTOCK_CHECK(first == elements_, "units of ", first, " elements of ", elements_);
}

void Parameters::allocate() {
  using program::Shard;
  const at::TensorOptions options = at::TensorOptions(device_.where).dtype(at::kFloat);
  const bool is_float32 = compute_type_ == at::kFloat;
  const plan::UnitStock stock = inventory_.total();
  state_elements_ = stock.state;
  const plan::RankPlace& place = inventory_.place;
  (place.has_whole_weights() ? weights_ : own_weights_) = at::zeros({stock.weights}, options);
  (place.has_whole_gradients() ? gradients_ : own_gradients_) =
      at::zeros({stock.gradients}, options);
  if (is_float32) {
    compute_ = weights_;
  } else if (stock.compute > 0) {
    compute_ = at::zeros({stock.compute}, options.dtype(compute_type_));
  }
  if (!is_float32 && (shard_ == Shard::Optimizer || shard_ == Shard::Gradients)) {
    int64_t float32 = 0;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      for (const plan::UnitRange& range : inventory_.units[unit].layout.ranges) {
        units_[unit].float32_first.push_back(float32);
        float32 += range.is_float32 ? range.count : 0;
      }
    }
    float32_ = at::zeros({stock.whole_float32}, options);
  }
  for (size_t i = 0; i < all_.size(); ++i) {
    Parameter& parameter = all_[i];
    const auto view = [&](const at::Tensor& flat, int64_t offset) {
      return flat.defined()
                 ? flat.narrow(0, offset, parameter.spec.count()).view(parameter.spec.shape)
                 : at::Tensor();
    };
    parameter.weight = view(weights_, parameter.offset);
    parameter.gradient =
        parameter.spec.is_frozen ? at::Tensor() : view(gradients_, parameter.offset);
    parameter.compute = view(compute_, parameter.offset);
    if (float32_.defined() && parameter.spec.is_always_float32) {
      const Home& home = homes_[i];
      parameter.weight = view(float32_, units_[home.unit].float32_first[home.range] + home.offset);
    }
  }
}

void Parameters::find_segments() {
  if (shard_ == program::Shard::None) {
    for (size_t i = 0; i < all_.size(); ++i) {
      held_segments_.push_back({i, 0, all_[i].spec.count(), all_[i].offset});
    }
  }
  for (size_t i = 0; shard_ != program::Shard::None && i < all_.size(); ++i) {
    const Home& home = homes_[i];
    const plan::UnitLayout& layout = inventory_.units[home.unit].layout;
    int64_t own = units_[home.unit].own_first;
    for (size_t range = 0; range < home.range; ++range) {
      own += layout.ranges[range].slice_count(replica_);
    }
    const plan::UnitRange& range = layout.ranges[home.range];
    const int64_t slice = range.slice_first(replica_);
    const int64_t begin = std::max(slice, home.offset);
    const int64_t end =
        std::min(slice + range.slice_count(replica_), home.offset + all_[i].spec.count());
    if (begin < end) {
      held_segments_.push_back({i, begin - home.offset, end - begin, own + begin - slice});
    }
  }
  std::copy_if(held_segments_.begin(),
               held_segments_.end(),
               std::back_inserter(segments_),
               [&](const Segment& segment) { return segment.parameter < num_learning_; });
}

void Parameters::initialise(uint64_t seed) {
  for (const Parameter& parameter : all_) {
    const bool layers_see_copy = has_own_weights() && parameter.compute.defined();
    for (const at::Tensor& whole :
         {parameter.weight, layers_see_copy ? parameter.compute : at::Tensor()}) {
      if (whole.defined()) {
        set_fresh(parameter.spec, seed, 0, whole.view({-1}));
      }
    }
  }
  if (has_own_weights()) {
    for (const Segment& segment : held_segments_) {
      set_fresh(all_[segment.parameter].spec, seed, segment.first, own_weights(segment));
    }
  } else {
    refresh_compute();
  }
}

at::Tensor Parameters::own_weights(const Segment& segment) const {
  const Parameter& parameter = all_[segment.parameter];
  return has_own_weights() ? own_weights_.narrow(0, segment.offset, segment.count)
                           : weights_.narrow(0, parameter.offset + segment.first, segment.count);
}

at::Tensor Parameters::own_gradients(const Segment& segment) const {
  const Parameter& parameter = all_[segment.parameter];
  return has_own_gradients()
             ? own_gradients_.narrow(0, segment.offset, segment.count)
             : gradients_.narrow(0, parameter.offset + segment.first, segment.count);
}

at::Tensor Parameters::own_slice(const at::Tensor& own, size_t unit, size_t range) const {
  const std::vector<plan::UnitRange>& ranges = inventory_.units[unit].layout.ranges;
  int64_t first = units_[unit].own_first;
  for (size_t before = 0; before < range; ++before) {
    first += ranges[before].slice_count(replica_);
  }
  return own.narrow(0, first, ranges[range].slice_count(replica_));
}

// A range of a unit as layers see it, where it is whole from step to step.
at::Tensor Parameters::range_view(size_t unit, size_t range) const {
  const plan::UnitRange& part = inventory_.units[unit].layout.ranges[range];
  if (part.is_float32) {
    return float32_.narrow(0, units_[unit].float32_first[range], part.count);
  }
  return compute_.narrow(0, units_[unit].first + part.first, part.count);
}

std::vector<int64_t> Parameters::units_of(int64_t layer) const {
  std::set<int64_t> units;
  for (const size_t index : layer_parameters_[static_cast<size_t>(layer)]) {
    units.insert(static_cast<int64_t>(homes_[index].unit));
  }
  return {units.begin(), units.end()};
}

Tensors Parameters::unit_weights(int64_t number) const {
  const c10::NoGradGuard no_grad;
  const auto unit = static_cast<size_t>(number);
  const plan::UnitLayout& layout = inventory_.units[unit].layout;
  Tensors ranges;
  for (size_t i = 0; i < layout.ranges.size(); ++i) {
    const plan::UnitRange& range = layout.ranges[i];
    if (shard_ != program::Shard::Parameters) {
      ranges.push_back(range_view(unit, i));
      continue;
    }
    const at::TensorOptions options = at::TensorOptions(device_.where);
    ranges.push_back(
        at::empty({range.count}, options.dtype(range.is_float32 ? at::kFloat : compute_type_)));
    ranges.back()
        .narrow(0, range.slice_first(replica_), range.slice_count(replica_))
        .copy_(own_slice(own_weights_, unit, i));
  }
  return ranges;
}

Tensors Parameters::weights_in_units(int64_t layer,
                                     const std::function<const Tensors*(int64_t)>& find) const {
  Tensors weights;
  for (const size_t index : layer_parameters_[static_cast<size_t>(layer)]) {
    const Home& home = homes_[index];
    const ParameterSpec& spec = all_[index].spec;
    const Tensors* unit = find(static_cast<int64_t>(home.unit));
    weights.push_back(
        unit == nullptr
            ? at::Tensor()
            : (*unit)[home.range].narrow(0, home.offset, spec.count()).view(spec.shape));
  }
  return weights;
}

at::Tensor Parameters::unit_gradients(int64_t number) const {
  return gradients_.narrow(
      0, units_[static_cast<size_t>(number)].first, unit_layout(number).elements);
}

at::Tensor Parameters::make_bucket(int64_t unit) const {
  return at::zeros({unit_layout(unit).elements},
                   at::TensorOptions(device_.where).dtype(at::kFloat));
}

Tensors Parameters::gradients_in_buckets(
    int64_t layer, const std::function<const at::Tensor&(int64_t)>& find) const {
  Tensors gradients;
  for (const size_t index : layer_parameters_[static_cast<size_t>(layer)]) {
    const Home& home = homes_[index];
    const ParameterSpec& spec = all_[index].spec;
    if (spec.is_frozen) {
      gradients.emplace_back();
      continue;
    }
    const int64_t first = unit_layout(static_cast<int64_t>(home.unit)).ranges[home.range].first;
    gradients.push_back(find(static_cast<int64_t>(home.unit))
                            .narrow(0, first + home.offset, spec.count())
                            .view(spec.shape));
  }
  return gradients;
}

void Parameters::add_slices(int64_t number, int64_t layer, const at::Tensor& bucket, bool sets) {
  const c10::NoGradGuard no_grad;
  const std::vector<plan::UnitRange>& ranges = unit_layout(number).ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const plan::UnitRange& range = ranges[i];
    at::Tensor target = own_slice(own_gradients_, static_cast<size_t>(number), i);
    for (const Share& share : shares_) {
      if (share.layer == layer && homes_[share.parameter].unit == static_cast<size_t>(number)) {
        target = share.own;
      }
    }
    // Beside the rank's own work: a plain loop, not threads that would take its cores.
    float* const sums = target.data_ptr<float>();
    const float* const added =
        bucket.const_data_ptr<float>() + range.first + range.slice_first(replica_);
    const int64_t count = range.slice_count(replica_);
    if (sets) {
      std::copy_n(added, count, sums);
      continue;
    }
    for (int64_t element = 0; element < count; ++element) {
      sums[element] += added[element];
    }
  }
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
  (has_own_gradients() ? own_gradients_ : gradients_).zero_();
  for (Share& share : shares_) {
    share.own.zero_();
  }
}

std::vector<uint8_t> Parameters::begin_gradients(int64_t layer, const std::vector<int32_t>& units) {
  const c10::NoGradGuard no_grad;
  const std::vector<size_t>& indices = layer_parameters_[static_cast<size_t>(layer)];
  std::vector<uint8_t> fresh(indices.size(), 0);
  // Neighbours in the flat buffer are zeroed together.
  int64_t first = 0, end = 0;
  const auto zero = [&] {
    if (end > first) {
      gradients_.narrow(0, first, end - first).zero_();
    }
    first = end = 0;
  };
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto unit = static_cast<int32_t>(homes_[indices[i]].unit);
    if (!units.empty() && std::find(units.begin(), units.end(), unit) == units.end()) {
      continue;
    }
    const Parameter& parameter = all_[indices[i]];
    if (parameter.spec.is_frozen) {
      continue;
    }
    at::Tensor& gradient = layer_gradients_[static_cast<size_t>(layer)][i];
    if (parameter.spec.is_gradient_overwritten) {
      fresh[i] = 1;
    } else if (!gradient.is_same(parameter.gradient)) {
      gradient.zero_();  // a share
    } else {
      if (parameter.offset != end) {
        zero();
        first = parameter.offset;
      }
      end = parameter.offset + round_up(parameter.spec.count() + parameter.spec.padding);
    }
  }
  zero();
  return fresh;
}

std::vector<uint8_t> Parameters::overwritten_gradients(int64_t layer) const {
  std::vector<uint8_t> fresh;
  for (const size_t index : layer_parameters_[static_cast<size_t>(layer)]) {
    const ParameterSpec& spec = all_[index].spec;
    fresh.push_back(spec.is_gradient_overwritten && !spec.is_frozen ? 1 : 0);
  }
  return fresh;
}

Tensors Parameters::shared_gradients(int64_t unit, bool is_whole) const {
  Tensors gradients;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (homes_[i].unit != static_cast<size_t>(unit)) {
      continue;
    }
    if (is_whole) {
      gradients.push_back(all_[i].gradient.view({-1}));
      continue;
    }
    for (const Segment& segment : segments_) {
      if (segment.parameter == i) {
        gradients.push_back(own_gradients(segment));
      }
    }
  }
  return gradients;
}

void Parameters::add_share(int64_t unit, int64_t layer) {
  const c10::NoGradGuard no_grad;
  for (Share& share : shares_) {
    if (share.layer == layer && homes_[share.parameter].unit == static_cast<size_t>(unit)) {
      share.whole.add_(share.own);
    }
  }
}

void Parameters::add_shares() {
  const c10::NoGradGuard no_grad;
  for (Share& share : shares_) {
    share.whole.add_(share.own);
    share.own.zero_();  // so that asking again adds nothing
  }
}

Tensors Parameters::gradient_buffers() const {
  Tensors buffers{gradients_};
  for (const Share& share : shares_) {
    buffers.push_back(share.own);
  }
  return buffers;
}

void Parameters::refresh_compute() {
  const c10::NoGradGuard no_grad;
  if (!has_own_weights()) {
    if (compute_type_ != at::kFloat) {
      compute_.copy_(weights_);
    }
    return;
  }
  if (shard_ == program::Shard::Parameters) {
    return;  // layers see what is gathered
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const std::vector<plan::UnitRange>& ranges = inventory_.units[unit].layout.ranges;
    for (size_t i = 0; i < ranges.size(); ++i) {
      range_view(unit, i)
          .narrow(0, ranges[i].slice_first(replica_), ranges[i].slice_count(replica_))
          .copy_(own_slice(own_weights_, unit, i));
    }
  }
}

}  // namespace penstock::model
