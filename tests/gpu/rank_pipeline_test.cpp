// Pipelines of ranks that share a GPU: the numbers of one rank on that GPU, in deterministic mode.
//
// With a table of its own for the head every sum has the order of one device, so losses and weights
// have its bits. A tied table is with two ranks; each adds up its own part over the micro-batches
// before the two are added, where one device adds both as they come: the last bits may differ.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/model/units.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/evaluation.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"

#include "gpu/gpu_ranks.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

constexpr int64_t kSteps = 5;
constexpr int64_t kSamplesEach = 2;

struct Setting {
  at::ScalarType type = at::kBFloat16;
  bool is_tied = false;
  double dropout = 0;
  const char* family = "gpt2";
};

// 11 layers: no number of ranks divides them.
config::ModelOptions model_of(const Setting& setting) {
  config::ModelOptions model{.family = setting.family,
                             .layers = 5,
                             .width = 128,
                             .heads = 4,
                             .context = 64,
                             .vocabulary = 300,
                             .tied = setting.is_tied,
                             .dropout = setting.dropout};
  if (model.family == "llama") {
    model.kv_heads = 2;
  }
  return model;
}

config::TrainOptions train_options() {
  config::TrainOptions options;
  options.optimizer = "adamw";
  return options;
}

optim::UpdateSettings settings() {
  return {.rate = {.lr = 3e-3}, .clip = 0.5};
}

StepInput batch_of(const Setting& setting, int64_t micro_batches, int64_t step) {
  const config::ModelOptions shape = model_of(setting);
  const int64_t samples = kSamplesEach * micro_batches;
  const at::Tensor tokens = test::random_tokens(
      {2, samples, shape.context}, shape.vocabulary, 100 + static_cast<uint64_t>(step));
  return {.batch = {{"inputs", tokens[0]}, {"targets", tokens[1]}},
          .first_sample = step * samples,
          .micro_batches = micro_batches,
          .seed = 5,
          .step = step,
          .updates = {settings()}};
}

struct Trained {
  std::vector<double> losses, norms;
  double validation = 0;
  std::map<std::string, at::Tensor> weights;  // on the CPU
};

void take_weights(const model::Parameters& parameters, Trained& result) {
  for (const model::Parameter& parameter : parameters.all()) {
    result.weights[parameter.spec.name] = parameter.weight.cpu();
  }
}

plan::CostTable sizes(const Setting& setting,
                      const model::Chain& chain,
                      const model::Parameters& parameters,
                      int64_t micro_batches) {
  const StepInput input = batch_of(setting, micro_batches, 0);
  return profile::sizes_of(chain, parameters, rows_of(input.batch, 0, kSamplesEach));
}

Trained run_alone(const Setting& setting, int64_t micro_batches) {
  const device::Device& device = test::gpu(/*is_deterministic=*/true);
  const memory::AccountScope scope(device.account());
  const model::Chain chain = model::make_chain(model_of(setting), device);
  model::Parameters parameters(chain, setting.type, /*seed=*/3, device);
  const auto optimizer = optim::make_optimizer(train_options(), parameters);
  const plan::CostTable costs = sizes(setting, chain, parameters, micro_batches);
  const program::Program program = plan::lower(costs,
                                               plan::keep_everything(costs),
                                               static_cast<int32_t>(micro_batches),
                                               /*limit_bytes=*/0,
                                               test::holdings_alone(parameters));
  Executor executor(program, chain, parameters);
  Trained run;
  for (int64_t step = 0; step < kSteps; ++step) {
    run.losses.push_back(executor.run(batch_of(setting, micro_batches, step), *optimizer));
    run.norms.push_back(executor.outcomes().back().norm);
  }
  const StepInput held_out = batch_of(setting, 1, 77);
  run.validation = evaluate(chain, parameters, held_out.batch).sum;
  take_weights(parameters, run);
  return run;
}

// Of every rank: the weights and gradients of its layers. A GPU keeps no shares.
plan::Holdings holdings_of_ranks(const model::Chain& chain,
                                 const std::vector<model::Part>& parts,
                                 at::ScalarType type) {
  plan::Holdings holdings{.num_parameters = static_cast<int64_t>(chain.parameters().size())};
  for (const model::Part& part : parts) {
    const plan::Inventory inventory = model::take_inventory(
        chain, part, type == at::kFloat, /*keeps_shares=*/false, model::Replication{});
    holdings.units = test::units_of(inventory);
    holdings.ranks.push_back(test::rank_holdings(inventory, type));
  }
  return holdings;
}

struct Prepared {
  Prepared(const model::Chain& chain,
           at::ScalarType type,
           const plan::CostTable& costs,
           schedule::Kind kind,
           int32_t ranks,
           int32_t parts_of_batch) {
    plan::Pipeline pipeline{.schedule = schedule::make_schedule(kind, ranks, parts_of_batch)};
    const int32_t layers = static_cast<int32_t>(costs.layers.size());
    for (int32_t stage = 0; stage <= pipeline.schedule.stages(); ++stage) {
      pipeline.cuts.push_back(layers * stage / pipeline.schedule.stages());
    }
    pipeline.operations = plan::keep_everything(costs, pipeline.cuts, parts_of_batch);
    parts = parts_of({pipeline.schedule.rank_of, pipeline.cuts}, ranks);
    program = plan::lower_pipeline(
        costs, pipeline, holdings_of_ranks(chain, parts, type), /*limit_bytes=*/0);
    evaluation = plan::write_evaluation(program, costs);
  }

  program::Program program, evaluation;
  std::vector<model::Part> parts;
};

// An optimizer that finds gradients to which something was done.
class SpoiledStepper final : public Stepper {
 public:
  SpoiledStepper(Stepper& stepper, const std::function<void()>& spoil)
      : stepper_(stepper), spoil_(spoil) {}

  void take_squares(model::Parameters& parameters,
                    const UpdateSettings& settings,
                    bool for_others) override {
    spoil_();
    stepper_.take_squares(parameters, settings, for_others);
  }
  Squares own_squares() override { return stepper_.own_squares(); }
  void decide(const Squares* all) override { stepper_.decide(all); }
  void move(model::Parameters& parameters) override { stepper_.move(parameters); }
  Updated updated() override { return stepper_.updated(); }

 private:
  Stepper& stepper_;
  const std::function<void()>& spoil_;
};

// One rank's share of a pipeline.
class Rank {
 public:
  Rank(const Setting& setting,
       schedule::Kind kind,
       int32_t micro_batches,
       comm::Group& group,
       const device::Device& device)
      : setting_(setting),
        chain_(model::make_chain(model_of(setting), device)),
        prepared_(
            chain_, setting.type, table(micro_batches, device), kind, group.size(), micro_batches),
        part_(prepared_.parts[static_cast<size_t>(group.rank())]),
        parameters_(chain_, part_, setting.type, /*seed=*/3, device),
        optimizer_(optim::make_optimizer(train_options(), parameters_)),
        executor_(prepared_.program, chain_, parameters_, group),
        evaluator_(prepared_.evaluation, executor_) {}

  double step(
      StepInput input, const std::function<void()>& spoil = [] {}) {
    input.updates.front().loss_scale = input.loss_scale;
    SpoiledStepper stepper(*optimizer_, spoil);
    return executor_.run(input, stepper);
  }

  LossSum validate() {
    const StepInput held_out = batch_of(setting_, 1, 77);
    return evaluator_.evaluate(held_out.batch, rows_in(held_out.batch));
  }

  bool has_loss() const { return part_.has_loss; }
  model::Parameters& parameters() { return parameters_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const Updated& updated() const { return executor_.outcomes().back(); }

 private:
  plan::CostTable table(int64_t micro_batches, const device::Device& device) const {
    const model::Parameters whole(chain_, setting_.type, /*seed=*/3, device);
    return sizes(setting_, chain_, whole, micro_batches);
  }

  Setting setting_;
  model::Chain chain_;
  Prepared prepared_;
  const model::Part& part_;
  model::Parameters parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Executor executor_, evaluator_;
};

Trained run_as_pipeline(const Setting& setting,
                        schedule::Kind kind,
                        int32_t ranks,
                        int32_t micro_batches) {
  Trained result;
  std::mutex mutex;
  test::run_gpu_ranks(ranks, [&](comm::Group& group, const device::Device& device) {
    Rank rank(setting, kind, micro_batches, group, device);
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = rank.step(batch_of(setting, micro_batches, step));
      if (rank.has_loss()) {
        result.losses.push_back(loss);
        result.norms.push_back(rank.updated().norm);
      }
    }
    const LossSum validation = rank.validate();
    const std::lock_guard lock(mutex);
    result.validation += validation.sum;
    take_weights(rank.parameters(), result);
  });
  return result;
}

struct Case {
  schedule::Kind kind;
  int32_t ranks, micro_batches;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name(schedule::kind_name(info.param.kind));
  std::replace(name.begin(), name.end(), '-', '_');
  return cat(name, "_", info.param.ranks, "_ranks_", info.param.micro_batches, "_micro_batches");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& name : schedule::kind_names()) {
    const schedule::Kind kind = schedule::parse_kind(name);
    for (const int32_t ranks : {2, 4}) {
      for (const int32_t micro_batches : {1, 3, 8}) {
        if (!schedule::is_asynchronous(kind)) {
          cases.push_back({kind, ranks, micro_batches});
        }
      }
    }
  }
  return cases;
}

// Runs of one rank are made once for all cases.
const Trained& alone(const Setting& setting, int64_t micro_batches) {
  static auto* known = new std::map<std::tuple<std::string, int, bool, double, int64_t>, Trained>;
  const std::tuple key(std::string(setting.family),
                       static_cast<int>(setting.type),
                       setting.is_tied,
                       setting.dropout,
                       micro_batches);
  const auto found = known->find(key);
  return found != known->end()
             ? found->second
             : known->emplace(key, run_alone(setting, micro_batches)).first->second;
}

void expect_near(double found, double expected, double tolerance, const char* name) {
  EXPECT_NEAR(found, expected, tolerance * std::abs(expected)) << name;
}

class GpuPipelines : public test::OnGpu<testing::TestWithParam<Case>> {};
class GpuRanks : public test::OnGpu<> {};

}  // namespace

namespace {

void expect_bits_of_one_device(const Setting& setting, const Case& row) {
  const Trained& expected = alone(setting, row.micro_batches);
  const Trained found = run_as_pipeline(setting, row.kind, row.ranks, row.micro_batches);
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.validation, expected.validation);
  for (size_t i = 0; i < found.norms.size(); ++i) {
    // The same squares, added parameter by parameter.
    expect_near(found.norms[i], expected.norms[i], 1e-12, "norm");
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    EXPECT_TRUE(at::equal(found.weights.at(name), weight)) << name;
  }
}

}  // namespace

TEST_P(GpuPipelines, GiveTheBitsOfOneDevice) {
  expect_bits_of_one_device({}, GetParam());
}

// Its backward is split into input gradient and weight gradient, which zero-bubble schedules run
// apart.
TEST_P(GpuPipelines, OfLlamaGiveTheBitsOfOneDevice) {
  if (GetParam().micro_batches == 1) {
    GTEST_SKIP() << "3 and 8 are enough";
  }
  expect_bits_of_one_device({.family = "llama"}, GetParam());
}

namespace {

void expect_losses_of_one_device(const Setting& setting, const Case& row) {
  const Trained& expected = alone(setting, row.micro_batches);
  const Trained found = run_as_pipeline(setting, row.kind, row.ranks, row.micro_batches);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) {
    expect_near(found.losses[i], expected.losses[i], 1e-5, "loss");
    expect_near(found.norms[i], expected.norms[i], 1e-4, "norm");
  }
  expect_near(found.validation, expected.validation, 1e-5, "validation");
}

}  // namespace

TEST_P(GpuPipelines, WithATiedTableGiveTheLossesOfOneDevice) {
  if (GetParam().micro_batches == 3) {
    GTEST_SKIP() << "1 and 8 are enough";
  }
  expect_losses_of_one_device({.type = at::kFloat, .is_tied = true, .dropout = 0.1}, GetParam());
}

TEST_P(GpuPipelines, OfLlamaWithATiedTableGiveTheLossesOfOneDevice) {
  if (GetParam().micro_batches != 3) {
    GTEST_SKIP() << "3 are enough";
  }
  expect_losses_of_one_device({.type = at::kFloat, .is_tied = true, .family = "llama"}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, GpuPipelines, testing::ValuesIn(all_cases()), name_of);

// Both have it after the step, and it has moved.
TEST_F(GpuRanks, KeepASharedTableTheSame) {
  const Setting setting{.is_tied = true};
  std::vector<at::Tensor> tables(2);
  test::run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
    Rank rank(setting, schedule::Kind::OneFOneB, 4, group, device);
    const model::Parameter& table = *rank.parameters().find("transformer.wte.weight");
    const at::Tensor before = table.weight.cpu();
    rank.step(batch_of(setting, 4, 0));
    const at::Tensor after = table.weight.cpu();
    EXPECT_FALSE(at::equal(before, after));
    tables[static_cast<size_t>(group.rank())] = after;
  });
  EXPECT_TRUE(at::equal(tables[0], tables[1]));
}

// Gradients that overflow at one rank: no rank may take the step.
TEST_F(GpuRanks, AllSkipAStepWhoseGradientsOverflowAtOne) {
  const Setting setting{.type = at::kHalf};
  for (const int32_t spoiled : {0, 1}) {
    test::run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
      Rank rank(setting, schedule::Kind::GPipe, 2, group, device);
      const at::Tensor before = rank.parameters().flat_weights().cpu();
      StepInput input = batch_of(setting, 2, 0);
      input.loss_scale = 128;
      rank.step(input, [&] {
        if (group.rank() == spoiled) {
          const at::Tensor gradient = rank.parameters().all().back().gradient;
          gradient.view({-1})[0].fill_(std::numeric_limits<float>::infinity());
        }
      });
      EXPECT_FALSE(rank.updated().was_applied) << "rank " << group.rank();
      EXPECT_EQ(rank.optimizer().steps_done(), 0);
      EXPECT_TRUE(at::equal(rank.parameters().flat_weights().cpu(), before));
      rank.step(input);
      EXPECT_TRUE(rank.updated().was_applied) << "rank " << group.rank();
      EXPECT_EQ(rank.optimizer().steps_done(), 1);
      EXPECT_FALSE(at::equal(rank.parameters().flat_weights().cpu(), before));
    });
  }
}

}  // namespace penstock::run
