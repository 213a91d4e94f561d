// Optimizers over the flat buffers of a chain's parameters.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/config/recipe.h"
#include "penstock/optim/lr_schedule.h"

namespace penstock::model {
class Parameters;
}

namespace penstock::optim {

// One value per parameter element that outlives the step: a moment, say. Flat, laid out as the
// parameters are.
struct StateBuffer {
  std::string name;  // "exp_avg"
  at::Tensor flat;   // float32
};

// Sums of squares of parameters' gradients, in the order of the parameters.
using Squares = std::vector<double>;

struct UpdateSettings {
  Rate rate;
  double clip = 0;        // largest norm of the gradients; 0: none
  double loss_scale = 1;  // the gradients are this many times too large
  // Where several ranks share the model: from the squares of this rank's parameters to those of all
  // parameters, in the order of the chain, so that every cut gives the same norm.
  std::function<Squares(const Squares&)> gather = nullptr;
};

struct Updated {
  double norm = 0;          // of the gradients, before clipping and without the loss scale
  bool was_applied = true;  // false: the norm is not finite, and nothing was changed
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // What a program's step does, once the gradients are complete: their norm, clipping, the step, the compute copies. On a GPU
  // this only starts it; `updated` is right once the device has been waited for.
  virtual void update(model::Parameters& parameters, const UpdateSettings& settings);
  virtual Updated updated();

  // Moves the weights by the gradients times `gradient_scale`. Does not clear the gradients, and
  // leaves compute copies to Parameters::refresh_compute.
  virtual void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) = 0;

  const std::vector<StateBuffer>& state() const { return state_; }
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }

 protected:
  std::vector<StateBuffer> state_;
  int64_t steps_done_ = 0;

 private:
  Updated updated_;
};

std::unique_ptr<Optimizer> make_optimizer(const config::TrainOptions& train,
                                          const model::Parameters& parameters);

// Euclidean norm of a flat float32 buffer. The same bits for any number of threads.
double flat_norm(const at::Tensor& flat);

// Of each parameter's gradient; the same bits for any number of threads and whatever lies beside it.
Squares gradient_squares(const model::Parameters& parameters);
double norm_of(const Squares& squares);
double gradient_norm(const model::Parameters& parameters);  // of all gradients together

// What gradients are multiplied by so that their norm is at most `clip`; 1 when clip is 0.
double clip_scale(double norm, double clip);

}  // namespace penstock::optim
