// Optimizers over the flat buffers of a chain's parameters.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/base/exact_sum.h"
#include "penstock/config/recipe.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/lr_schedule.h"
#include "penstock/plan/exchanges.h"
#include "penstock/run/stepper.h"

namespace penstock::optim {

// One value per parameter element that outlives the step: a moment, say. Flat, laid out as the
// parameters' segments are.
struct StateBuffer {
  std::string name;  // "exp_avg"
  at::Tensor flat;   // float32
  // Each replica has its own values, of all elements, laid out as Parameter::offset says.
  bool is_per_replica = false;
  // Every replica has all elements, laid out as Parameter::offset says, whatever is sharded. Right
  // are those of its segments; all are to be loaded.
  bool is_whole = false;
  // One value for each parameter, in their order, the same at every replica.
  bool is_per_parameter = false;
  // Where given, the stretches that this replica has, and no other has: in the place of
  // Parameters::segments().
  std::optional<std::vector<model::Segment>> stretches = std::nullopt;
};

using run::Squares;
using run::Updated;
using run::UpdateSettings;

class Optimizer : public run::Stepper {
 public:
  void take_squares(model::Parameters& parameters,
                    const UpdateSettings& settings,
                    bool for_others) override;
  Squares own_squares() override { return squares_; }
  void decide(const Squares* all) override;
  void move(model::Parameters& parameters) override;
  Updated updated() override { return updated_; }

  // All of the above, by a rank that has the whole model.
  void update(model::Parameters& parameters, const UpdateSettings& settings);

  // Moves the weights by the gradients times `gradient_scale`. Does not clear the gradients, and
  // leaves compute copies to Parameters::refresh_compute.
  virtual void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) = 0;

  // What the next update is to exchange with its replicas: the program of the step has just that.
  virtual plan::UpdateForm next_form() const { return {}; }
  // Whether all replicas have the same weights, as they do but for steps that each takes by itself.
  // Only then can they be saved or compared.
  virtual bool replicas_agree() const { return true; }
  const std::vector<StateBuffer>& state() const { return state_; }
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }

 protected:
  std::vector<StateBuffer> state_;
  // What gradients are multiplied by, as was decided.
  double gradient_scale() const;

  int64_t steps_done_ = 0;
  // Of the update at hand.
  UpdateSettings settings_;
  Squares squares_;
  Updated updated_;
};

std::unique_ptr<Optimizer> make_optimizer(const config::TrainOptions& train,
                                          const model::Parameters& parameters);

// ConfigError where the optimizer has no rate by itself for the parameter
// (ParameterSpec::lr_scale).
void require_lr_scales(const config::TrainOptions& train,
                       const model::ParameterSpec& spec,
                       bool is_gpu);

// Its state buffers, zero, as optimizer_size() has them.
std::vector<StateBuffer> make_state(const config::TrainOptions& train,
                                    const model::Parameters& parameters);

// Euclidean norm of a flat float32 buffer. The same bits for any number of threads.
double flat_norm(const at::Tensor& flat);

// Of each parameter's gradient; the same bits for any number of threads, whatever lies beside it,
// and (added up over them) however many ranks have shards of it.
Squares gradient_squares(const model::Parameters& parameters);
double weight_norm(const model::Parameters& parameters);  // of this rank's shards
double norm_of(const Squares& squares);
double gradient_norm(const model::Parameters& parameters);  // of all gradients together

// What gradients are multiplied by so that their norm is at most `clip`; 1 when clip is 0.
double clip_scale(double norm, double clip);

}  // namespace penstock::optim
