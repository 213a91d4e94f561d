// The 1-bit optimizers against their definitions: plain loops in double precision over simulated
// replicas, with nothing sent and nothing shared with the code under test.
#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/optim/optimizer.h"

#include "optim/onebit_replicas.h"

namespace penstock::optim {
namespace {

using test::Replica;
using test::ReplicaCase;
using Values = std::vector<double>;

constexpr int64_t kSteps = 30;

double square(double value) {
  return value * value;
}

// One parameter as the reference has it.
struct Tensor {
  bool has_decay;
  Values weights, mean, variance, start, server_error;
  std::vector<Values> means;  // the replicas' own
  std::vector<Values> replica_weights, worker_errors, gradients;
  double update_norm = 0, frozen_square = 0, gradient_square = 0;

  size_t size() const { return weights.size(); }
};

class Reference {
 public:
  Reference(const ReplicaCase& at, const model::Parameters& fresh)
      : train_(at.train), replicas_(at.replicas) {
    for (const model::Parameter& parameter : fresh.all()) {
      const at::Tensor flat = parameter.weight.reshape({-1}).contiguous();
      const float* values = flat.const_data_ptr<float>();
      Tensor tensor{.has_decay = parameter.spec.has_weight_decay,
                    .weights = Values(values, values + flat.numel())};
      const size_t size = tensor.size();
      for (Values* zero : {&tensor.mean, &tensor.variance, &tensor.server_error}) {
        zero->resize(size);
      }
      tensor.worker_errors.assign(count(), Values(size));
      tensor.gradients.assign(count(), Values(size));
      tensors_.push_back(tensor);
    }
  }

  // Of a gradient that none of the replicas has they know estimates: its norm, and for LAMB the
  // mean squares of every tensor's.
  struct Estimates {
    double norm;
    const float* mean_squares;
  };

  void step(int64_t step, const Estimates& estimates) {
    t_ = step;
    estimates_ = estimates;
    lr_ = test::test_rate(step).lr;
    beta1_ = train_.beta1;
    if (train_.optimizer == "zeroone-adam") {
      zero_one();
    } else if (t_ <= train_.freeze_step) {
      load_gradients(true);
      train_.optimizer == "onebit-adam" ? adam(t_) : lamb();
    } else {
      load_gradients(false);
      train_.optimizer == "onebit-adam" ? frozen_adam() : frozen_lamb();
    }
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  bool has_met() const { return has_met_; }

 private:
  size_t count() const { return static_cast<size_t>(replicas_); }

  // Clipped; is_reduced: all replicas have the mean.
  void load_gradients(bool is_reduced) {
    double squares = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (size_t e = 0; e < tensors_[i].size(); ++e) {
        double mean = 0;
        for (size_t r = 0; r < count(); ++r) {
          const auto value = static_cast<double>(
              test::gradient_at(static_cast<int32_t>(r), t_, i, static_cast<int64_t>(e)));
          tensors_[i].gradients[r][e] = value;
          mean += value / replicas_;
        }
        for (size_t r = 0; r < count() && is_reduced; ++r) {
          tensors_[i].gradients[r][e] = mean;
        }
        squares += square(mean);
      }
    }
    const double norm = is_reduced ? std::sqrt(squares) : estimates_.norm;
    const double scale = train_.clip > 0 ? std::min(1.0, train_.clip / (norm + 1e-6)) : 1;
    for (Tensor& tensor : tensors_) {
      for (Values& gradients : tensor.gradients) {
        for (double& gradient : gradients) {
          gradient *= scale;
        }
      }
    }
  }

  double correction1() const { return 1 - std::pow(beta1_, t_); }
  double correction2(int64_t updates) const { return 1 - std::pow(train_.beta2, updates); }
  double root(double variance, int64_t updates) const {
    return std::sqrt(variance / correction2(updates)) + train_.epsilon;
  }
  double decay(const Tensor& tensor) const { return tensor.has_decay ? train_.weight_decay : 0; }

  void adam(int64_t updates) {
    for (Tensor& tensor : tensors_) {
      for (size_t e = 0; e < tensor.size(); ++e) {
        const double gradient = tensor.gradients[0][e];
        tensor.mean[e] = beta1_ * tensor.mean[e] + (1 - beta1_) * gradient;
        tensor.variance[e] =
            train_.beta2 * tensor.variance[e] + (1 - train_.beta2) * square(gradient);
      }
    }
    move(updates);
  }

  void move(int64_t updates) {
    for (Tensor& tensor : tensors_) {
      for (size_t e = 0; e < tensor.size(); ++e) {
        tensor.weights[e] *= 1 - lr_ * decay(tensor);
        if (tensor.variance[e] > 0) {
          tensor.weights[e] -=
              lr_ * tensor.mean[e] / correction1() / root(tensor.variance[e], updates);
        }
      }
    }
  }

  // Signs times the root mean square of the living, by blocks of 512; the rest stays in `error`.
  static Values compress(const Values& values, const Values& variance, Values& error) {
    Values sent(values.size());
    for (size_t begin = 0; begin < values.size(); begin += 512) {
      const size_t end = std::min(values.size(), begin + 512);
      double squares = 0, living = 0;
      for (size_t e = begin; e < end; ++e) {
        error[e] = variance[e] > 0 ? error[e] + values[e] : 0;
        squares += square(error[e]);
        living += variance[e] > 0 ? 1 : 0;
      }
      for (size_t e = begin; e < end; ++e) {
        if (variance[e] > 0) {
          sent[e] = (error[e] >= 0 ? 1 : -1) * std::sqrt(squares / living);
          error[e] -= sent[e];
        }
      }
    }
    return sent;
  }

  // The average over the replicas as they all see it.
  Values average(Tensor& tensor, const std::vector<Values>& values) const {
    if (replicas_ == 1) {
      Values alone = values[0];
      for (size_t e = 0; e < alone.size(); ++e) {
        alone[e] = tensor.variance[e] > 0 ? alone[e] : 0;
      }
      return alone;
    }
    Values mean(tensor.size());
    for (size_t r = 0; r < count(); ++r) {
      const Values sent = compress(values[r], tensor.variance, tensor.worker_errors[r]);
      for (size_t e = 0; e < mean.size(); ++e) {
        mean[e] += sent[e] / replicas_;
      }
    }
    return compress(mean, tensor.variance, tensor.server_error);
  }

  std::vector<Values> own_means(const Tensor& tensor) const {
    std::vector<Values> means = tensor.gradients;
    for (Values& mean : means) {
      for (size_t e = 0; e < mean.size(); ++e) {
        mean[e] = beta1_ * tensor.mean[e] + (1 - beta1_) * mean[e];
      }
    }
    return means;
  }

  void frozen_adam() {
    for (Tensor& tensor : tensors_) {
      tensor.mean = average(tensor, own_means(tensor));
    }
    move(train_.freeze_step);
  }

  static double clamp(double value, double least, double most) {
    return std::min(std::max(value, least), most);
  }

  void lamb() {
    for (Tensor& tensor : tensors_) {
      double weights = 0, updates = 0;
      for (size_t e = 0; e < tensor.size(); ++e) {
        const double gradient = tensor.gradients[0][e];
        tensor.mean[e] = beta1_ * tensor.mean[e] + (1 - beta1_) * gradient;
        tensor.variance[e] =
            train_.beta2 * tensor.variance[e] + (1 - train_.beta2) * square(gradient);
        weights += square(tensor.weights[e]);
        updates += square(lamb_update(tensor, e, t_));
      }
      tensor.update_norm = 0.9 * tensor.update_norm + 0.1 * std::sqrt(updates);
      lamb_move(tensor, trust_ratio(tensor, std::sqrt(updates)), t_);
    }
  }

  // Of a variance that is `size` times as large.
  double lamb_update(const Tensor& tensor, size_t e, int64_t updates, double size = 1) const {
    return tensor.mean[e] / correction1() / root(size * tensor.variance[e], updates) +
           decay(tensor) * tensor.weights[e];
  }

  static double trust_ratio(const Tensor& tensor, double update_norm) {
    double weights = 0;
    for (const double weight : tensor.weights) {
      weights += square(weight);
    }
    const bool has_ratio = tensor.has_decay && weights > 0 && update_norm > 0;
    return has_ratio ? clamp(std::sqrt(weights) / update_norm, 0.01, 10) : 1;
  }

  void lamb_move(Tensor& tensor, double ratio, int64_t updates, double size = 1) const {
    for (size_t e = 0; e < tensor.size(); ++e) {
      tensor.weights[e] -= lr_ * ratio * lamb_update(tensor, e, updates, size);
    }
  }

  void frozen_lamb() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      Tensor& tensor = tensors_[i];
      if (t_ == train_.freeze_step + 1) {
        for (const double variance : tensor.variance) {
          tensor.frozen_square += variance / correction2(train_.freeze_step);
        }
        tensor.gradient_square = tensor.frozen_square;
      }
      tensor.mean = average(tensor, own_means(tensor));
      double squares = 0;
      for (size_t e = 0; e < tensor.size(); ++e) {
        double gradient = 0;
        for (const Values& gradients : tensor.gradients) {
          gradient += gradients[e] / replicas_;
        }
        squares += square(gradient);
      }
      tensor.gradient_square = train_.beta2 * tensor.gradient_square + (1 - train_.beta2) * squares;
      const double update_norm = tensor.update_norm / (1 - std::pow(0.9, train_.freeze_step));
      lamb_move(tensor,
                trust_ratio(tensor, update_norm),
                train_.freeze_step,
                static_cast<double>(estimates_.mean_squares[i]) / tensor.frozen_square);
    }
  }

  // With train.var_freeze_step = 12, var_update_scaler = 3, local_step_scaler = 5 and
  // local_step_clipper = 4.
  void zero_one() {
    static const std::set<int64_t> kVarianceSteps{1, 2, 3, 5, 7, 9};
    static const std::set<int64_t> kMeetings{13, 14, 15, 16, 17, 19, 21, 22, 26, 30};
    if (kVarianceSteps.contains(t_)) {
      ++updates_;
      load_gradients(true);
      adam(updates_);
      return;
    }
    load_gradients(false);
    if (t_ <= 12) {
      for (Tensor& tensor : tensors_) {
        const Values gradients = average(tensor, tensor.gradients);
        for (size_t e = 0; e < tensor.size(); ++e) {
          tensor.mean[e] = beta1_ * tensor.mean[e] + (1 - beta1_) * gradients[e];
        }
      }
      move(updates_);
      return;
    }
    const bool meets = replicas_ == 1 || kMeetings.contains(t_);
    for (Tensor& tensor : tensors_) {
      if (t_ == 13) {
        tensor.worker_errors.assign(count(), Values(tensor.size()));
        tensor.server_error.assign(tensor.size(), 0);
      }
      local_step(tensor);
      if (meets) {
        meet(tensor);
      }
    }
    rates_ = meets ? 0 : rates_ + lr_ / correction1();
    kept_ = meets ? 1 : kept_ * (1 - lr_ * train_.weight_decay);
    has_met_ = meets;
  }

  void local_step(Tensor& tensor) const {
    if (has_met_) {
      tensor.replica_weights.assign(count(), tensor.weights);
      tensor.means.assign(count(), tensor.mean);
    }
    for (size_t r = 0; r < count(); ++r) {
      for (size_t e = 0; e < tensor.size(); ++e) {
        double& mean = tensor.means[r][e];
        mean = beta1_ * mean + (1 - beta1_) * tensor.gradients[r][e];
        if (tensor.variance[e] > 0) {
          tensor.replica_weights[r][e] -=
              lr_ * mean / correction1() / root(tensor.variance[e], updates_);
        }
      }
    }
  }

  void meet(Tensor& tensor) const {
    const double rates = rates_ + lr_ / correction1();
    const double kept = tensor.has_decay ? kept_ * (1 - lr_ * train_.weight_decay) : 1;
    std::vector<Values> means = tensor.replica_weights;
    for (Values& mean : means) {
      for (size_t e = 0; e < mean.size(); ++e) {
        mean[e] = (tensor.weights[e] - mean[e]) * root(tensor.variance[e], updates_) / rates;
      }
    }
    tensor.mean = average(tensor, means);
    for (size_t e = 0; e < tensor.size(); ++e) {
      tensor.weights[e] =
          kept * tensor.weights[e] - rates * tensor.mean[e] / root(tensor.variance[e], updates_);
    }
  }

  const config::TrainOptions train_;
  const int32_t replicas_;
  std::vector<Tensor> tensors_;
  int64_t t_ = 0, updates_ = 0;
  double lr_ = 0, beta1_ = 0;
  Estimates estimates_{};
  // Of local steps since the replicas met.
  double rates_ = 0, kept_ = 1;
  bool has_met_ = true;
};

// Where rounding decides a sign, an element goes another way for some steps, and its neighbours'
// scale is a little another: some elements may differ. A step moves a weight by 0.01 and more.
void expect_followed(const Replica& replica, const Reference& reference, const std::string& where) {
  for (size_t i = 0; i < reference.tensors().size(); ++i) {
    const model::Parameter& parameter = replica.parameters.all()[i];
    const float* found = parameter.weight.const_data_ptr<float>();
    const Values& expected = reference.tensors()[i].weights;
    size_t different = 0;
    for (size_t e = 0; e < expected.size(); ++e) {
      const double by = std::abs(static_cast<double>(found[e]) - expected[e]);
      different += by > 5e-4 * (1 + std::abs(expected[e])) ? 1 : 0;
    }
    ASSERT_LE(different, 1 + expected.size() / 200) << parameter.spec.name << ", " << where;
  }
}

// One replica alone has the gradient. Several estimate it, here by one sum for each of some small
// tensors, over at most 22 steps.
void expect_estimated(const Reference& reference,
                      const ReplicaCase& at,
                      const float* mean_squares,
                      int64_t step) {
  if (at.train.optimizer != "onebit-lamb" || step <= at.train.freeze_step) {
    return;
  }
  double known = 0, all = 0;
  for (size_t i = 0; i < reference.tensors().size(); ++i) {
    const double expected = reference.tensors()[i].gradient_square;
    const auto found = static_cast<double>(mean_squares[i]);
    if (at.replicas == 1) {
      ASSERT_NEAR(found, expected, 1e-5 * expected) << i << ", " << step;
    }
    known += found;
    all += expected;
  }
  ASSERT_NEAR(known, all, 0.4 * all) << step;
}

void expect_trajectory(const ReplicaCase& at) {
  const model::Chain chain = test::small_chain();
  const model::Parameters fresh(chain, at::kFloat, 1);
  test::run_replicas(at, [&](Replica& replica) {
    Reference reference(at, fresh);
    for (int64_t step = 1; step <= kSteps; ++step) {
      replica.step(step);
      const float* mean_squares =
          replica.optimizer->state().back().flat.const_data_ptr<float>();  // LAMB's
      reference.step(step, {replica.optimizer->updated().norm, mean_squares});
      ASSERT_NO_FATAL_FAILURE(expect_estimated(reference, at, mean_squares, step));
      ASSERT_TRUE(replica.optimizer->updated().was_applied);
      ASSERT_EQ(replica.optimizer->replicas_agree(), reference.has_met()) << step;
      if (reference.has_met()) {
        const std::string where =
            cat(at.train.optimizer, ", ", at.replicas, " replicas, step ", step);
        ASSERT_NO_FATAL_FAILURE(expect_followed(replica, reference, where));
      }
    }
  });
}

config::TrainOptions options(const std::string& optimizer, double clip) {
  return {.steps = kSteps,
          .optimizer = optimizer,
          .weight_decay = 0.1,
          .beta2 = 0.97,
          .epsilon = 1e-6,
          .freeze_step = 8,
          .var_freeze_step = 12,
          .var_update_scaler = 3,
          .local_step_scaler = 5,
          .local_step_clipper = 4,
          .clip = clip};
}

class OneBitReference : public testing::TestWithParam<const char*> {};

TEST_P(OneBitReference, IsFollowedByAnyNumberOfReplicas) {
  for (int32_t replicas = 1; replicas <= 4; ++replicas) {
    expect_trajectory({.train = options(GetParam(), 0), .replicas = replicas});
  }
}

TEST_P(OneBitReference, IsFollowedWithClipping) {
  expect_trajectory({.train = options(GetParam(), 0.2), .replicas = 3});
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         OneBitReference,
                         testing::Values("onebit-adam", "zeroone-adam", "onebit-lamb"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

}  // namespace
}  // namespace penstock::optim
