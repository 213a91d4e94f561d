// What the 1-bit optimizers promise beside their formulas (onebit_reference_test.cpp): bits, bytes,
// shards and state.
#include "penstock/optim/onebit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"

#include "optim/onebit_replicas.h"
#include "support/error_text.h"

namespace penstock::optim {
namespace {

using test::Replica;
using test::ReplicaCase;
using test::run_replicas;

constexpr const char* kKinds[] = {"onebit-adam", "zeroone-adam", "onebit-lamb"};

config::TrainOptions options(const std::string& optimizer, int64_t local_steps = 4) {
  return {.steps = 24,
          .optimizer = optimizer,
          .beta2 = 0.97,
          .freeze_step = 8,
          .var_freeze_step = 8,
          .var_update_scaler = 3,
          .local_step_scaler = 4,
          .local_step_clipper = local_steps,
          .clip = 0.5};
}

// Weights by parameter, gathered from the segments of all replicas.
using Weights = std::vector<std::vector<float>>;

class Collected {
 public:
  explicit Collected(const model::Parameters& parameters) {
    for (const model::Parameter& parameter : parameters.all()) {
      weights.emplace_back(static_cast<size_t>(parameter.spec.count()), NAN);
    }
  }
  void add(const model::Parameters& parameters) {
    for (const model::Segment& segment : parameters.segments()) {
      const float* own = parameters.own_weights(segment).const_data_ptr<float>();
      std::copy_n(own, segment.count, weights[segment.parameter].begin() + segment.first);
    }
  }
  Weights weights;
};

// The weights after the last step, and that of every replica where it has all of them.
Weights train(const ReplicaCase& at, int64_t steps = 24) {
  std::mutex mutex;
  std::unique_ptr<Collected> all;
  run_replicas(at, [&](Replica& replica) {
    for (int64_t step = 1; step <= steps; ++step) {
      replica.step(step);
    }
    const std::lock_guard lock(mutex);
    if (all == nullptr) {
      all = std::make_unique<Collected>(replica.parameters);
    }
    if (at.replicas > 1 && at.shard == program::Shard::None) {
      Collected own(replica.parameters);
      own.add(replica.parameters);
      all->add(replica.parameters);
      EXPECT_EQ(own.weights, all->weights);
    }
    all->add(replica.parameters);
  });
  return all->weights;
}

TEST(OneBit, WarmsUpWithTheBitsOfAdamW) {
  config::TrainOptions adamw = options("adamw");
  for (const int32_t replicas : {1, 3}) {
    EXPECT_EQ(train({.train = options("onebit-adam"), .replicas = replicas}, 8),
              train({.train = adamw, .replicas = replicas}, 8));
    EXPECT_NE(train({.train = options("onebit-adam"), .replicas = replicas}, 9),
              train({.train = adamw, .replicas = replicas}, 9));
  }
}

TEST(OneBit, ReplicasHaveTheSameBitsWhereTheyAgree) {
  for (const char* kind : kKinds) {
    std::vector<Weights> seen(3);
    run_replicas({.train = options(kind), .replicas = 3}, [&](Replica& replica) {
      for (int64_t step = 1; step <= 24; ++step) {
        replica.step(step);
      }
      EXPECT_TRUE(replica.optimizer->replicas_agree());
      Collected own(replica.parameters);
      own.add(replica.parameters);
      seen[static_cast<size_t>(replica.parameters.replica())] = own.weights;
    });
    EXPECT_EQ(seen[0], seen[1]) << kind;
    EXPECT_EQ(seen[0], seen[2]) << kind;
  }
}

TEST(ZeroOneAdam, ReplicasDifferWhileTheyTakeStepsByThemselves) {
  std::vector<Weights> seen(2);
  run_replicas({.train = options("zeroone-adam"), .replicas = 2}, [&](Replica& replica) {
    for (int64_t step = 1; step <= 13; ++step) {
      EXPECT_TRUE(replica.optimizer->replicas_agree());
      replica.step(step);
    }
    EXPECT_FALSE(replica.optimizer->replicas_agree());
    Collected own(replica.parameters);
    own.add(replica.parameters);
    seen[static_cast<size_t>(replica.parameters.replica())] = own.weights;
    replica.step(14);
    EXPECT_TRUE(replica.optimizer->replicas_agree());
  });
  EXPECT_NE(seen[0], seen[1]);
}

TEST(OneBit, AskForReducedGradientsUntilTheVarianceIsFrozen) {
  for (const char* kind : kKinds) {
    run_replicas({.train = options(kind), .replicas = 2}, [&](Replica& replica) {
      std::vector<int64_t> reduced;
      for (int64_t step = 1; step <= 24; ++step) {
        if (replica.optimizer->next_form().reduces) {
          reduced.push_back(step);
        }
        replica.step(step);
      }
      const std::vector<int64_t> some{1, 2, 3, 5, 7}, all{1, 2, 3, 4, 5, 6, 7, 8};
      EXPECT_EQ(reduced, std::string(kind) == "zeroone-adam" ? some : all) << kind;
    });
  }
}

TEST(OneBit, HaveTheSameBitsWithAShardedState) {
  for (const char* kind : kKinds) {
    for (const int32_t replicas : {2, 3}) {
      ReplicaCase at{.train = options(kind, 1), .replicas = replicas};
      const Weights whole = train(at);
      at.shard = program::Shard::Optimizer;
      EXPECT_EQ(train(at), whole) << kind << ", " << replicas << " replicas";
    }
  }
}

TEST(OneBit, WorkWithBfloat16AndItsShardedMasters) {
  for (const char* kind : kKinds) {
    ReplicaCase at{.train = options(kind, 1), .replicas = 2};
    const Weights float32 = train(at);
    at.type = at::kBFloat16;
    EXPECT_EQ(train(at), float32) << kind;
    at.shard = program::Shard::Optimizer;
    EXPECT_EQ(train(at), float32) << kind;
  }
}

// Buffers as a checkpoint has them, for the same number of replicas.
TEST(OneBit, GoOnFromTheirState) {
  for (const char* kind : kKinds) {
    for (const program::Shard shard : {program::Shard::None, program::Shard::Optimizer}) {
      const int64_t local_steps = shard == program::Shard::None ? 4 : 1;
      const ReplicaCase at{.train = options(kind, local_steps), .replicas = 2, .shard = shard};
      const model::Chain chain = test::small_chain();
      comm::run_local(2, [&](comm::Group& group) {
        for (const int64_t stop : {5, 8, 9, 14, 16}) {
          Replica whole(at, chain, group), first(at, chain, group), second(at, chain, group);
          for (int64_t step = 1; step <= 24; ++step) {
            whole.step(step);
            if (step <= stop) {
              first.step(step);
            }
          }
          ASSERT_TRUE(first.optimizer->replicas_agree());
          for (size_t i = 0; i < first.optimizer->state().size(); ++i) {
            at::Tensor(second.optimizer->state()[i].flat).copy_(first.optimizer->state()[i].flat);
          }
          second.optimizer->set_steps_done(first.optimizer->steps_done());
          second.parameters.flat_weights().copy_(first.parameters.flat_weights());
          for (int64_t step = stop + 1; step <= 24; ++step) {
            second.step(step);
          }
          for (const model::Segment& segment : whole.parameters.segments()) {
            EXPECT_TRUE(at::equal(whole.parameters.own_weights(segment),
                                  second.parameters.own_weights(segment)))
                << kind << " from step " << stop;
          }
        }
      });
    }
  }
}

TEST(OneBit, KeepNoErrorOfElementsThatNeverHadAGradient) {
  for (const char* kind : kKinds) {
    run_replicas({.train = options(kind), .replicas = 2}, [&](Replica& replica) {
      const model::Chain chain = test::small_chain();
      const model::Parameters fresh(chain, at::kFloat, 1);
      for (int64_t step = 1; step <= 24; ++step) {
        replica.parameters.zero_gradients();
        test::fill_gradients(replica.parameters, step, replica.optimizer->next_form().reduces);
        if (step > 8) {  // too late: nothing is known of their variance
          for (const model::Parameter& parameter : replica.parameters.all()) {
            for (int64_t e = 3; e < parameter.spec.count(); e += 7) {
              parameter.gradient.data_ptr<float>()[e] = 0.01f;
            }
          }
        }
        replica.update(step);
      }
      const model::Parameters& parameters = replica.parameters;
      const StateBuffer& errors = replica.optimizer->state()[2];
      ASSERT_EQ(errors.name, "worker_error");
      for (size_t i = 0; i < parameters.all().size(); ++i) {
        const model::Parameter& parameter = parameters.all()[i];
        if (parameter.spec.has_weight_decay) {
          continue;
        }
        for (int64_t e = 3; e < parameter.spec.count(); e += 7) {
          EXPECT_EQ(parameter.weight.const_data_ptr<float>()[e],
                    fresh.all()[i].weight.const_data_ptr<float>()[e])
              << kind << " " << parameter.spec.name;
          EXPECT_EQ(errors.flat.const_data_ptr<float>()[parameter.offset + e], 0);
        }
      }
    });
  }
}

comm::SignBlocks blocks_of(const model::Parameters& parameters) {
  std::vector<comm::Stretch> tensors;
  for (const model::Parameter& parameter : parameters.all()) {
    tensors.push_back({parameter.offset, parameter.spec.count()});
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  return comm::SignBlocks(tensors);
}

// A double for each 4096 elements of a parameter, at most 64.
int64_t norm_bytes(const model::Parameters& parameters) {
  int64_t bytes = 0;
  for (const model::Parameter& parameter : parameters.all()) {
    bytes += 8 * std::min<int64_t>(64, (parameter.spec.count() + 4095) / 4096);
  }
  return bytes;
}

TEST(OneBit, SendWhatTheFormulaSays) {
  for (const char* kind : kKinds) {
    for (const int32_t replicas : {2, 4}) {
      run_replicas({.train = options(kind, 1), .replicas = replicas}, [&](Replica& replica) {
        // Sums for the norm, then the signs.
        const int64_t norms = norm_bytes(replica.parameters);
        const int64_t signs =
            blocks_of(replica.parameters).sent_bytes(replica.parameters.replica(), replicas);
        for (int64_t step = 1; step <= 24; ++step) {
          const bool is_reduced = replica.optimizer->next_form().reduces;
          const int64_t before = replica.sent_bytes();
          replica.step(step);
          EXPECT_EQ(replica.sent_bytes() - before, is_reduced ? 0 : norms * (replicas - 1) + signs)
              << kind << " step " << step;
        }
      });
    }
  }
}

// What the program of a step says that it sends, of every form that there is.
TEST(OneBit, SendWhatTheFormOfTheStepSays) {
  std::set<plan::UpdateForm> forms;
  std::mutex mutex;
  for (const char* kind : {"onebit-adam", "zeroone-adam", "onebit-lamb", "lamb"}) {
    for (const program::Shard shard : {program::Shard::None, program::Shard::Optimizer}) {
      for (const int32_t replicas : {2, 3}) {
        const bool is_sharded = shard != program::Shard::None;
        const ReplicaCase at{
            .train = options(kind, is_sharded ? 1 : 4), .replicas = replicas, .shard = shard};
        run_replicas(at, [&](Replica& replica) {
          const plan::ExchangeBytes bytes = exchange_bytes(replica.parameters.inventory());
          const auto parameters = static_cast<int64_t>(replica.parameters.all().size());
          for (int64_t step = 1; step <= 24; ++step) {
            const plan::UpdateForm form = replica.optimizer->next_form();
            const int64_t before = replica.sent_bytes();
            replica.step(step);
            const bool averages = form.average != plan::UpdateForm::Average::None;
            EXPECT_EQ(replica.sent_bytes() - before,
                      (is_sharded ? 16 * parameters * (replicas - 1) : 0) +
                          (form.reduces ? 0 : bytes.sketches) + (averages ? bytes.average : 0) +
                          (form.fills_momentum ? bytes.momentum : 0) +
                          (form.fills_alive ? bytes.alive : 0) + form.lengths * bytes.lengths)
                << kind << ", " << shard_name(shard) << ", step " << step;
            const std::lock_guard lock(mutex);
            forms.insert(form);
          }
        });
      }
    }
  }
  EXPECT_EQ(forms.size(), 11U);
}

TEST(ZeroOneAdam, SendsNoSignsWhileReplicasTakeStepsByThemselves) {
  run_replicas({.train = options("zeroone-adam"), .replicas = 2}, [&](Replica& replica) {
    const int64_t norms = norm_bytes(replica.parameters);
    for (int64_t step = 1; step <= 24; ++step) {
      const int64_t before = replica.sent_bytes();
      replica.step(step);
      EXPECT_EQ(replica.sent_bytes() - before == norms, !replica.optimizer->replicas_agree())
          << step;
    }
  });
}

TEST(OneBit, HoldWhatIsPlannedFor) {
  const model::Chain chain = test::small_chain();
  for (const char* kind : kKinds) {
    for (const program::Shard shard : {program::Shard::None, program::Shard::Optimizer}) {
      const config::TrainOptions train = options(kind, shard == program::Shard::None ? 4 : 1);
      const model::Replication replication{
          .shard = shard,
          .replicas = 3,
          .replica = 1,
          .units = model::make_units(chain, {0, static_cast<int32_t>(chain.size())}, 1 << 12)};
      const model::Parameters parameters(
          chain, chain.whole(), at::kFloat, 1, device::open_cpu(), replication);
      const plan::OptimizerSize expected = optimizer_size(train, parameters.inventory());
      int64_t state_bytes = 0, working_bytes = 0;
      for (const plan::StateSize& size : expected.state) {
        state_bytes += 4 * parameters.inventory().state_elements(size);
      }
      for (const auto& [name, bytes] : expected.workspaces) {
        working_bytes += bytes;
      }
      const int64_t before = memory::usage().current_bytes;
      const std::unique_ptr<Optimizer> optimizer = make_optimizer(train, parameters);
      const int64_t held = memory::usage().current_bytes - before;
      int64_t state = 0;
      for (const StateBuffer& buffer : optimizer->state()) {
        state += static_cast<int64_t>(buffer.flat.nbytes());
      }
      EXPECT_EQ(state, state_bytes) << kind;
      EXPECT_EQ(held, state_bytes + working_bytes) << kind;
    }
  }
}

// The server error of every element is with one replica.
TEST(OneBit, ShareOutTheServerError) {
  const model::Chain chain = test::small_chain();
  for (const int32_t replicas : {1, 2, 5}) {
    std::vector<std::vector<int>> owners;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      const model::Replication replication{
          .replicas = replicas,
          .replica = replica,
          .units = model::make_units(chain, {0, static_cast<int32_t>(chain.size())}, 1 << 12)};
      const model::Parameters parameters(chain,
                                         chain.whole(),
                                         at::kFloat,
                                         1,
                                         device::open_cpu(),
                                         replicas == 1 ? model::Replication{} : replication);
      const std::unique_ptr<Optimizer> optimizer =
          make_optimizer(options("onebit-adam"), parameters);
      if (owners.empty()) {
        for (const model::Parameter& parameter : parameters.all()) {
          owners.emplace_back(static_cast<size_t>(parameter.spec.count()));
        }
      }
      const StateBuffer& server = optimizer->state()[3];
      ASSERT_EQ(server.name, "server_error");
      for (const model::Segment& stretch : server.stretches.value()) {
        EXPECT_LE(stretch.offset + stretch.count, server.flat.numel());
        for (int64_t i = 0; i < stretch.count; ++i) {
          ++owners[stretch.parameter][static_cast<size_t>(stretch.first + i)];
        }
      }
    }
    for (const std::vector<int>& parameter : owners) {
      EXPECT_EQ(parameter, std::vector<int>(parameter.size(), 1));
    }
  }
}

// The estimate is of few sums, for the tensors are small: right on average.
TEST(OneBit, KnowTheNormOfAGradientThatNoReplicaHas) {
  for (const int32_t replicas : {2, 4}) {
    run_replicas({.train = options("onebit-adam"), .replicas = replicas}, [&](Replica& replica) {
      replica.optimizer->set_steps_done(8);
      double mean = 0;
      constexpr int64_t kSteps = 100;
      for (int64_t step = 9; step < 9 + kSteps; ++step) {
        test::fill_gradients(replica.parameters, step, true);
        const double norm = gradient_norm(replica.parameters);
        replica.step(step);
        const double estimate = replica.optimizer->updated().norm;
        mean += estimate * estimate / (norm * norm) / kSteps;
      }
      EXPECT_NEAR(mean, 1, 0.25) << replicas << " replicas";
    });
  }
}

TEST(OneBit, SkipAStepOfGradientsThatAreNotFiniteOnAllReplicas) {
  for (const char* kind : kKinds) {
    run_replicas({.train = options(kind), .replicas = 2}, [&](Replica& replica) {
      for (int64_t step = 1; step <= 13; ++step) {
        replica.step(step);
      }
      const at::Tensor before = replica.parameters.flat_weights().clone();
      const at::Tensor mean = replica.optimizer->state()[0].flat.clone();
      test::fill_gradients(replica.parameters, 14, false);
      if (replica.parameters.replica() == 1) {
        replica.parameters.flat_gradients()[5] = std::numeric_limits<float>::infinity();
      }
      replica.update(14);
      EXPECT_FALSE(replica.optimizer->updated().was_applied);
      EXPECT_EQ(replica.optimizer->steps_done(), 13);
      EXPECT_TRUE(at::equal(replica.parameters.flat_weights(), before));
      EXPECT_TRUE(at::equal(replica.optimizer->state()[0].flat, mean));
    });
  }
}

TEST(OneBit, SayThatTheProgramIsOfAnotherStep) {
  const model::Chain chain = test::small_chain();
  const model::Replication replication{
      .replicas = 2,
      .replica = 0,
      .units = model::make_units(chain, {0, static_cast<int32_t>(chain.size())}, 1 << 12)};
  model::Parameters parameters(
      chain, chain.whole(), at::kFloat, 1, device::open_cpu(), replication);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(options("onebit-adam"), parameters);
  optimizer->set_steps_done(8);
  const std::string text = penstock::test::error_text<InternalError>(
      [&] { optimizer->update(parameters, {.rate = test::test_rate(9)}); });
  EXPECT_NE(text.find("reduces gradients whose average is to be 1-bit compressed"),
            std::string::npos)
      << text;
  optimizer->set_steps_done(7);
  EXPECT_THROW(optimizer->take_sketches(parameters, {.rate = test::test_rate(8)}), InternalError);
}

}  // namespace
}  // namespace penstock::optim
