// Which channel of a group carries what, for a chain of so many layers: one place, so that no two
// uses meet.
#pragma once

#include <cstdint>

namespace penstock::comm {

constexpr int64_t activation_channel(int64_t layer) {
  return 2 * layer;
}
constexpr int64_t gradient_channel(int64_t layer) {
  return 2 * layer + 1;
}
// Beyond those of what enters the loss.
constexpr int64_t shared_gradient_channel(int64_t layers) {
  return 2 * (layers + 1);
}
constexpr int64_t record_channel(int64_t layers) {
  return 2 * (layers + 1) + 1;
}

constexpr int64_t carried_channel(int64_t layers, int64_t element) {
  return 2 * (layers + 2 + element);
}
constexpr int64_t carried_gradient_channel(int64_t layers, int64_t element) {
  return 2 * (layers + 2 + element) + 1;
}

}  // namespace penstock::comm
