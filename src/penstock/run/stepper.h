// The update of a rank's weights, as a program's instructions ask for it. Optimizers implement it.
#pragma once

#include <optional>
#include <vector>

#include "penstock/base/exact_sum.h"

namespace penstock::comm {
class Group;
}
namespace penstock::model {
class Parameters;
}

namespace penstock::run {

struct Rate {
  double lr = 0;
  // Where the schedule also moves momentum (sgd) or beta1 (adamw, lamb).
  std::optional<double> momentum = std::nullopt;
};

// What an update is to do; its own for each of several.
struct UpdateSettings {
  Rate rate;
  double clip = 0;        // largest norm of the gradients; 0: none
  double loss_scale = 1;  // the gradients are this many times too large
};

struct Updated {
  double norm = 0;          // of the gradients, before clipping and without the loss scale; where
                            // replicas have only their own, an estimate (docs/onebit.md)
  bool was_applied = true;  // false: the norm is not finite, and nothing was changed
};

// Sums of squares of parameters' gradients, in the order of the parameters; of sharded ones, those
// of this rank's slices.
using Squares = std::vector<ExactSum>;

// Called in this order, for each update. On a GPU each only starts its work.
class Stepper {
 public:
  virtual ~Stepper() = default;

  // The gradients are complete. `for_others`: the squares go to other ranks.
  virtual void take_squares(model::Parameters& parameters,
                            const UpdateSettings& settings,
                            bool for_others) = 0;
  // On the host, for other ranks: those of each parameter.
  virtual Squares own_squares() = 0;
  // The norm, and what the gradients are multiplied by. `all`: of all ranks, in the order of the
  // chain's parameters; nothing: the rank's own.
  virtual void decide(const Squares* all) = 0;
  // Moves the weights, and what layers see of them, as was decided.
  virtual void move(model::Parameters& parameters) = 0;
  // What came of it. Waits for the device.
  virtual Updated updated() = 0;

  // What replicas exchange beside gradients and weights (plan/exchanges.h); a program asks only an
  // optimizer that has it to do. All replicas are asked for the same in the same order.
  //
  // In the place of take_squares(), where the gradients are this replica's own: sums that tell the
  // norm of the mean of all. Then those of all replicas, of the first first.
  virtual std::vector<double> take_sketches(model::Parameters& parameters,
                                            const UpdateSettings& settings);
  virtual void estimate_squares(model::Parameters& parameters, const std::vector<double>& sketches);
  // After decide(). The state of the replicas that an average takes, where it is sharded.
  virtual void fill_state(model::Parameters& parameters, comm::Group& replicas);
  // All of the update that comes before an exchange. Returns this rank's sums over its slices,
  // nothing where no replica needs those of others.
  virtual std::vector<double> prepare(model::Parameters& parameters);
  // What was prepared becomes the average of all replicas.
  virtual void exchange(model::Parameters& parameters, comm::Group& replicas);
  // The sums of all replicas, of the first first.
  virtual void take_lengths(const std::vector<double>& lengths);
};

// Leaves the weights as they are: for gradients alone, or to see whether a step fits.
class NoStepper final : public Stepper {
 public:
  void take_squares(model::Parameters& parameters, const UpdateSettings&, bool) override;
  Squares own_squares() override { return Squares(parameters_); }
  void decide(const Squares*) override {}
  void move(model::Parameters&) override {}
  Updated updated() override { return {}; }
  std::vector<double> take_sketches(model::Parameters& parameters,
                                    const UpdateSettings& settings) override;
  void estimate_squares(model::Parameters&, const std::vector<double>&) override {}
  void fill_state(model::Parameters&, comm::Group&) override {}
  std::vector<double> prepare(model::Parameters&) override { return {}; }
  void exchange(model::Parameters&, comm::Group&) override {}
  void take_lengths(const std::vector<double>&) override {}

 private:
  size_t parameters_ = 0;
};

}  // namespace penstock::run
