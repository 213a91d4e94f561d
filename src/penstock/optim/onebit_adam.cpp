// 1-bit Adam (Tang et al., 2021): AdamW until the variance is known well enough; from then on it
// stays, and the replicas' momentum goes between them 1-bit compressed.
#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

class OneBitAdam final : public FreezingOneBit {
 public:
  OneBitAdam(const config::TrainOptions& train, const model::Parameters& parameters)
      : FreezingOneBit(train, parameters) {}

 private:
  float* begin_step(model::Parameters& parameters,
                    const Rate& rate,
                    double gradient_scale) override {
    if (!is_frozen()) {
      return nullptr;
    }
    take_in_gradients(parameters, settings_for(rate, freeze_), gradient_scale);
    return flat(kMean);
  }

  void end_step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    if (!is_frozen()) {
      move_as_adamw(parameters, settings_for(rate, steps_done_ + 1), gradient_scale);
      return;
    }
    const kernels::AdamSettings settings = settings_for(rate, freeze_);
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
      kernels::frozen_adam_update(chunk.weights,
                                  chunk.mean,
                                  chunk.mean_square,
                                  chunk.count,
                                  chunk.has_weight_decay ? settings : without_decay(settings));
    });
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit_adam(const config::TrainOptions& train,
                                            const model::Parameters& parameters) {
  return std::make_unique<OneBitAdam>(train, parameters);
}

}  // namespace penstock::optim
