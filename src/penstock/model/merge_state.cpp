#include "penstock/model/merge_state.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <ATen/Dispatch.h>

#include "penstock/base/error.h"

namespace penstock::model {

namespace {

template <typename T>
T value_at(const OfReplicas& changed, int64_t replica, int64_t element) {
  T value;
  std::memcpy(&value,
              changed.first + replica * changed.stride + element * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

// Counters are added up as they are; a mean is taken in float64.
template <typename T>
T merged(StateSpec::Merge how, T current, const OfReplicas& changed, int64_t element) {
  using Sum = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  if (changed.replicas == 1) {
    return value_at<T>(changed, 0, element);
  }
  if (how == StateSpec::Merge::Max) {
    T most = value_at<T>(changed, 0, element);
    for (int64_t replica = 1; replica < changed.replicas; ++replica) {
      most = std::max(most, value_at<T>(changed, replica, element));
    }
    return most;
  }
  if (how == StateSpec::Merge::Sum) {
    Sum sum = static_cast<Sum>(current);
    for (int64_t replica = 0; replica < changed.replicas; ++replica) {
      sum += static_cast<Sum>(value_at<T>(changed, replica, element)) - static_cast<Sum>(current);
    }
    return static_cast<T>(sum);
  }
  double sum = 0;
  for (int64_t replica = 0; replica < changed.replicas; ++replica) {
    sum += static_cast<double>(value_at<T>(changed, replica, element));
  }
  return static_cast<T>(sum / static_cast<double>(changed.replicas));
}

}  // namespace

void merge_state(StateSpec::Merge how,
                 const at::Tensor& current,
                 const OfReplicas& changed,
                 const at::Tensor& into) {
  PENSTOCK_CHECK(current.is_cpu() && into.is_contiguous() && current.is_contiguous(),
                 "state of layers on the CPU is merged");
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, into.scalar_type(), "merge_state", [&] {
        const auto* const before = current.const_data_ptr<scalar_t>();
        auto* const after = into.data_ptr<scalar_t>();
        for (int64_t i = 0; i < into.numel(); ++i) {
          after[i] = merged<scalar_t>(how, before[i], changed, i);
        }
      });
}

}  // namespace penstock::model
