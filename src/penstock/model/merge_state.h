// What replicas have made of a layer's state, as one. It needs no memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/model/layer.h"

namespace penstock::model {

// One tensor's bytes at each replica, so many bytes apart.
struct OfReplicas {
  const std::byte* first = nullptr;
  int64_t stride = 0;
  int64_t replicas = 1;
};

// `current`: what the update began with. The replicas are taken in their order, so all of them get the
// same bits.
void merge_state(StateSpec::Merge how,
                 const at::Tensor& current,
                 const OfReplicas& changed,
                 const at::Tensor& into);

}  // namespace penstock::model
