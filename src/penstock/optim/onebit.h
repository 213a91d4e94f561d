// What the 1-bit optimizers share: 1-bit Adam, 0/1 Adam and 1-bit LAMB. Replicas send
// each other their momentum (0/1 Adam also gradients) as one bit an element and a scale for a few
// hundred; what the bits leave out is kept and sent later. See docs/onebit.md. Internal to optim/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>

#include "penstock/comm/compressed.h"
#include "penstock/kernels/optimizers.h"
#include "penstock/optim/optimizer.h"

namespace penstock::optim {

class OneBit : public Optimizer {
 public:
  plan::UpdateForm next_form() const final;
  void take_squares(model::Parameters& parameters,
                    const UpdateSettings& settings,
                    bool for_others) final;
  std::vector<double> take_sketches(model::Parameters& parameters,
                                    const UpdateSettings& settings) final;
  void estimate_squares(model::Parameters& parameters, const std::vector<double>& sketches) final;
  Squares own_squares() final;
  void fill_state(model::Parameters& parameters, comm::Group& replicas) final;
  std::vector<double> prepare(model::Parameters& parameters) final;
  void exchange(model::Parameters& parameters, comm::Group& replicas) final;
  void take_lengths(const std::vector<double>& lengths) final;
  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) final;

 protected:
  OneBit(const config::TrainOptions& train, const model::Parameters& parameters);

  // A step is these two, and between them what replicas exchange. The first returns what is to be
  // averaged over them, laid out as Parameter::offset says; nothing: nothing is.
  virtual float* begin_step(model::Parameters& parameters,
                            const Rate& rate,
                            double gradient_scale) = 0;
  virtual void end_step(model::Parameters& parameters, const Rate& rate, double gradient_scale) = 0;

  // Part of a segment, with the state that belongs to it.
  struct Chunk {
    size_t parameter;  // index into Parameters::all()
    bool has_weight_decay;
    int64_t count;
    float* weights;
    const float* gradients;
    float* mean;
    float* mean_square;
    int64_t offset;  // into buffers that are laid out as segments are
  };
  // Calls use(chunk, number) for every segment in chunks of the same size whatever the threads and
  // ranks; there are num_chunks() of them.
  template <typename Use>
  void for_each_chunk(model::Parameters& parameters, const Use& use);
  static size_t num_chunks(const model::Parameters& parameters);

  // Calls use(first, count) for ranges of the whole flat buffers, over all threads.
  template <typename Use>
  void for_each_range(const Use& use) const;

  // AdamW's for step steps_done_ + 1, of a variance that was updated so often.
  kernels::AdamSettings settings_for(const Rate& rate, int64_t variance_updates) const;
  static kernels::AdamSettings without_decay(kernels::AdamSettings settings);

  // The step of AdamW, from gradients that were reduced.
  void move_as_adamw(model::Parameters& parameters,
                     const kernels::AdamSettings& settings,
                     double gradient_scale);

  // What this replica's own gradients are multiplied by, so that their mean over the replicas is
  // the gradient: they are shares of a sum.
  float own_scale(double gradient_scale) const;

  // The momentum takes in this replica's own gradient.
  void take_in_gradients(model::Parameters& parameters,
                         const kernels::AdamSettings& settings,
                         double gradient_scale);

  void forget_errors();

  // Of the gradient of this step before it is scaled; an estimate, of all of it, where it was not
  // reduced.
  const Squares& squares() const { return squares_; }

  // Of this rank's segments when a step begins; of whole parameters when it ends.
  std::vector<ExactSum> sums_;

  int32_t num_replicas() const { return num_replicas_; }
  float* flat(size_t buffer) { return state_[buffer].flat.data_ptr<float>(); }

  static constexpr size_t kMean = 0, kMeanSquare = 1, kWorkerError = 2, kServerError = 3;
  static constexpr size_t kNumBuffers = 4;  // of the above

  const config::TrainOptions train_;

 private:
  static constexpr int64_t kGrain = 1 << 15;  // elements per piece of work

  // While the variance moves, a replica keeps the momentum of its segments. Before all of it is
  // needed.
  void complete_momentum(model::Parameters& parameters, comm::CompressedReduce& reduce);
  void find_alive(const model::Parameters& parameters);
  comm::CompressedReduce& reduce_over(comm::Group& replicas);
  // From this replica's values to the average as all replicas see it, to the bit; dead ones become
  // zero. Nobody: the replica is alone.
  void average(float* values, comm::Group* replicas);

  const int32_t num_replicas_;
  const program::Shard shard_;
  const int64_t elements_;  // of the whole flat buffers of what learns
  const comm::SignBlocks blocks_;
  at::Tensor staging_;
  at::Tensor alive_;          // a bit for each element
  int64_t alive_since_ = -1;  // steps_done_ that they are right for
  std::unique_ptr<comm::CompressedReduce> reduce_;
  // Of the update at hand.
  plan::UpdateForm form_;
  float* averaged_ = nullptr;      // what begin_step() has returned
  bool is_prepared_ = false;       // it has begun
  bool counts_elsewhere_ = false;  // another replica gives the squares of these gradients
};

std::unique_ptr<Optimizer> make_onebit_adam(const config::TrainOptions& train,
                                            const model::Parameters& parameters);
std::unique_ptr<Optimizer> make_zeroone_adam(const config::TrainOptions& train,
                                             const model::Parameters& parameters);
std::unique_ptr<Optimizer> make_onebit_lamb(const config::TrainOptions& train,
                                            const model::Parameters& parameters);

// Steps from reduced gradients up to train.freeze_step, and others after it.
class FreezingOneBit : public OneBit {
 protected:
  FreezingOneBit(const config::TrainOptions& train, const model::Parameters& parameters);

  bool is_frozen() const { return steps_done_ >= freeze_; }

  const int64_t freeze_;
};

template <typename Use>
void OneBit::for_each_chunk(model::Parameters& parameters, const Use& use) {
  size_t before = 0;
  for (const model::Segment& segment : parameters.segments()) {
    const model::Parameter& parameter = parameters.all()[segment.parameter];
    float* weights = parameters.own_weights(segment).data_ptr<float>();
    const float* gradients = parameters.own_gradients(segment).const_data_ptr<float>();
    float* mean = flat(kMean) + parameter.offset + segment.first;
    float* mean_square = flat(kMeanSquare) + segment.offset;
    const int64_t chunks = (segment.count + plan::kSliceGrain - 1) / plan::kSliceGrain;
    at::parallel_for(0, chunks, kGrain / plan::kSliceGrain, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t first = chunk * plan::kSliceGrain;
        use(Chunk{.parameter = segment.parameter,
                  .has_weight_decay = parameter.spec.has_weight_decay,
                  .count = std::min(plan::kSliceGrain, segment.count - first),
                  .weights = weights + first,
                  .gradients = gradients + first,
                  .mean = mean + first,
                  .mean_square = mean_square + first,
                  .offset = segment.offset + first},
            before + static_cast<size_t>(chunk));
      }
    });
    before += static_cast<size_t>(chunks);
  }
}

template <typename Use>
void OneBit::for_each_range(const Use& use) const {
  at::parallel_for(
      0, elements_, kGrain, [&](int64_t begin, int64_t end) { use(begin, end - begin); });
}

}  // namespace penstock::optim
