#include "penstock/optim/onebit_bytes.h"

#include <algorithm>

#include "penstock/comm/compressed.h"
#include "penstock/kernels/onebit.h"

namespace penstock::optim {

namespace {

constexpr int64_t kStagingBytes = int64_t{1} << 21;
constexpr int64_t kFloatBytes = 4;

}  // namespace

int64_t sign_blocks(int64_t count) {
  return (count + kernels::kSignBlock - 1) / kernels::kSignBlock;
}

int64_t server_blocks(int64_t blocks, int32_t replicas) {
  return (blocks + replicas - 1) / replicas;
}

int64_t onebit_staging_bytes(int32_t replicas) {
  return replicas == 1 ? 0
                       : std::max(kStagingBytes, comm::CompressedReduce::least_staging(replicas));
}

OneBitBytes onebit_bytes(const config::TrainOptions& train, const OneBitElements& elements) {
  int64_t blocks = 0;
  for (const int64_t count : elements.parameters) {
    blocks += sign_blocks(count);
  }
  const int64_t server = server_blocks(blocks, elements.replicas) * kernels::kSignBlock;
  // Momentum and the worker's error of all; variance and the server's error in pieces.
  int64_t state = 2 * elements.whole + elements.state + server;
  if (train.optimizer == "onebit-lamb") {
    state += 3 * static_cast<int64_t>(elements.parameters.size());
  }
  int64_t working = kernels::bit_bytes(elements.whole) + onebit_staging_bytes(elements.replicas);
  if (train.optimizer == "zeroone-adam" && train.local_step_clipper > 1 && elements.replicas > 1) {
    working += kFloatBytes * elements.whole;
  }
  return {kFloatBytes * state, working};
}

}  // namespace penstock::optim
