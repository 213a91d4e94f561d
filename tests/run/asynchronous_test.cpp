// Pipelines that are not drained for an update: losses and weights, to the bit, are those of one
// process that runs the micro-batches one after the other and hands each stage the weights that the
// schedule's definition names. The reference knows neither schedules nor programs: it keeps every
// version of every stage's weights and works with the one that a formula gives.
#include "penstock/train/asynchronous.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"

#include "support/error_text.h"
#include "support/holdings.h"
#include "support/random_tensor.h"

namespace penstock::run {

namespace {

using schedule::Kind;

constexpr uint64_t kModelSeed = 3;
constexpr uint64_t kDropoutSeed = 5;
constexpr int64_t kSamplesEach = 2;  // of a micro-batch
constexpr int64_t kContext = 12;
constexpr int64_t kVocabulary = 61;
constexpr int64_t kUpdates = 10;
constexpr int64_t kAnnealSteps = 8;  // so that both halves of PipeMare's rule are seen
constexpr double kRate = 3e-3;

// 11 layers, which no number of ranks divides.
model::Chain untied_gpt2() {
  return model::make_gpt2({.layers = 5,
                           .width = 32,
                           .heads = 4,
                           .context = kContext,
                           .vocabulary = kVocabulary,
                           .dropout = 0.1,
                           .is_tied = false});
}

config::TrainOptions train_options() {
  config::TrainOptions options;
  options.optimizer = "adamw";
  options.lr = kRate;
  return options;
}

struct Case {
  Kind kind = Kind::PipeDream;
  int32_t ranks = 2;
  int32_t micro_batches = 1;      // of each update
  std::vector<int32_t> segments;  // updates from one draining of the pipeline to the next
  at::ScalarType type = at::kFloat;
};

// As even as it goes.
std::vector<int32_t> even_cuts(int64_t layers, int32_t stages) {
  std::vector<int32_t> cuts;
  for (int32_t stage = 0; stage <= stages; ++stage) {
    cuts.push_back(static_cast<int32_t>(layers) * stage / stages);
  }
  return cuts;
}

// The batches of `updates` steps from `first_step` on.
StepInput batches(const Case& c, int64_t first_step, int64_t updates) {
  const int64_t micro_batches = updates * c.micro_batches;
  const int64_t samples = kSamplesEach * c.micro_batches;
  const auto tokens = [&](uint64_t seed) {
    std::vector<at::Tensor> steps;
    for (int64_t i = 0; i < updates; ++i) {
      steps.push_back(test::random_tokens(
          {samples, kContext}, kVocabulary, seed + static_cast<uint64_t>(first_step + i)));
    }
    return at::cat(steps);
  };
  return {.batch = {{"inputs", tokens(100)}, {"targets", tokens(8)}},
          .first_sample = first_step * samples,
          .micro_batches = micro_batches,
          .seed = kDropoutSeed,
          .step = first_step,
          .updates = std::vector<UpdateSettings>(static_cast<size_t>(updates))};
}

struct Trained {
  std::vector<double> losses;                               // of each step
  std::vector<std::pair<std::string, at::Tensor>> weights;  // at the end, in the order of the chain
};

void add_weights(const model::Parameters& parameters, Trained& trained) {
  for (const model::Parameter& parameter : parameters.all()) {
    trained.weights.emplace_back(parameter.spec.name, parameter.weight.clone());
  }
}

// --- the reference ---

// Updates that a stage has had, in this segment, when micro-batch `k` goes forward there. 1f1b lets
// as many micro-batches in ahead of the first backward as there are stages behind this one.
int64_t forward_updates(const Case& c, int64_t stage, int64_t k) {
  if (c.kind == Kind::PipeDream2BW) {
    return std::max<int64_t>(0, k / c.micro_batches - 1);
  }
  const int64_t behind = c.ranks - 1 - stage;
  return k < behind ? 0 : (k - behind) / c.micro_batches;
}

// PipeMare goes back with what is newest then: everything before this micro-batch's own update.
int64_t backward_updates(const Case& c, int64_t stage, int64_t k) {
  return c.kind == Kind::PipeMare ? k / c.micro_batches : forward_updates(c, stage, k);
}

// tau^-(1 - step / anneal_steps), tau = (2 (stages behind) + 1) / micro-batches, at least 1.
double rate_of(const Case& c, int64_t stage, int64_t step) {
  if (c.kind != Kind::PipeMare || step >= kAnnealSteps) {
    return kRate;
  }
  const double tau =
      std::max(1.0, (2.0 * static_cast<double>(c.ranks - 1 - stage) + 1) / c.micro_batches);
  return kRate * std::pow(tau, static_cast<double>(step) / kAnnealSteps - 1);
}

// The layers of one stage with all the weights that they have had since the pipeline was drained.
class Stage {
 public:
  Stage(const model::Chain& chain, const model::Part& part, at::ScalarType type)
      : chain_(chain),
        part_(part),
        parameters_(chain, part, type, kModelSeed, device::open_cpu()),
        optimizer_(optim::make_optimizer(train_options(), parameters_)) {}

  void drain() {
    versions_.clear();
    remember();
  }

  void clear_gradients() { parameters_.zero_gradients(); }

  // Runs on from `activation`; the layers' inputs and states wait in `work`.
  struct Work {
    std::vector<model::Tensors> inputs;
    std::vector<model::Saved> saved;
  };
  model::Tensors forward(model::Tensors activation,
                         int64_t updates,
                         model::Pass pass,
                         Work& work) const {
    for (const int64_t layer : part_.layers) {
      pass.layer = layer;
      work.inputs.push_back(std::move(activation));
      activation = chain_.layer(layer).forward(
          weights(layer, updates), work.inputs.back(), pass, &work.saved.emplace_back());
    }
    return activation;
  }

  model::Loss::Result loss(const model::Tensors& output,
                           const model::Tensors& targets,
                           int64_t updates,
                           double scale) {
    return chain_.loss().backward(weights(chain_.size(), updates),
                                  parameters_.gradients_of(chain_.size()),
                                  output,
                                  targets,
                                  scale);
  }

  model::Tensors backward(model::Tensors gradient, int64_t updates, model::Pass pass, Work work) {
    for (size_t i = part_.layers.size(); i-- > 0;) {
      const int64_t layer = part_.layers[i];
      pass.layer = layer;
      gradient = chain_.layer(layer).backward(weights(layer, updates),
                                              parameters_.gradients_of(layer),
                                              work.inputs[i],
                                              std::move(work.saved[i]),
                                              gradient,
                                              pass);
    }
    return gradient;
  }

  void update(double rate) {
    parameters_.add_shares();
    optimizer_->update(parameters_, {.rate = {.lr = rate}});
    remember();
  }

  const model::Parameters& parameters() const { return parameters_; }

 private:
  using Version = std::vector<model::Tensors>;  // by layer of the chain, the loss last

  void remember() {
    Version version(static_cast<size_t>(chain_.size()) + 1);
    for (int64_t layer = 0; layer <= chain_.size(); ++layer) {
      for (const at::Tensor& weight : parameters_.weights_of(layer)) {
        version[static_cast<size_t>(layer)].push_back(weight.clone());
      }
    }
    versions_.push_back(std::move(version));
  }

  model::Weights weights(int64_t layer, int64_t updates) const {
    return versions_.at(static_cast<size_t>(updates)).at(static_cast<size_t>(layer));
  }

  const model::Chain& chain_;
  const model::Part part_;
  model::Parameters parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<Version> versions_;  // by updates since the pipeline was drained
};

class Reference {
 public:
  explicit Reference(const Case& c) : case_(c), chain_(untied_gpt2()) {
    const std::vector<int32_t> cuts = even_cuts(chain_.size(), c.ranks);
    for (int32_t stage = 0; stage < c.ranks; ++stage) {
      model::Part part{.has_loss = stage + 1 == c.ranks};
      for (int32_t layer = cuts[static_cast<size_t>(stage)];
           layer < cuts[static_cast<size_t>(stage) + 1];
           ++layer) {
        part.layers.push_back(layer);
      }
      stages_.push_back(std::make_unique<Stage>(chain_, part, c.type));
    }
  }

  Trained run() {
    for (const int32_t updates : case_.segments) {
      for (const auto& stage : stages_) {
        stage->drain();
      }
      const int64_t first_step = step_;
      for (int64_t batch = 0; batch < updates; ++batch) {
        train_step(batch, batches(case_, first_step, updates));
      }
    }
    for (const auto& stage : stages_) {
      add_weights(stage->parameters(), trained_);
    }
    return std::move(trained_);
  }

 private:
  // `input` has the batches of the whole segment.
  void train_step(int64_t batch, const StepInput& input) {
    for (const auto& stage : stages_) {
      stage->clear_gradients();
    }
    const int64_t samples = kSamplesEach * case_.micro_batches;
    const model::Fields rows = rows_of(input.batch, batch * samples, samples);
    const double scale = 1.0 / static_cast<double>(chain_.loss().count({rows.at("targets")}));
    double sum = 0;
    for (int64_t i = 0; i < case_.micro_batches; ++i) {
      sum += run_micro_batch(batch * case_.micro_batches + i, input, scale);
    }
    trained_.losses.push_back(sum * scale);
    for (int32_t stage = 0; stage < case_.ranks; ++stage) {
      stages_[static_cast<size_t>(stage)]->update(rate_of(case_, stage, step_));
    }
    ++step_;
  }

  double run_micro_batch(int64_t k, const StepInput& input, double scale) {
    const int64_t first = k * kSamplesEach;
    const model::Pass pass{
        .seed = kDropoutSeed, .step = step_, .first_sample = input.first_sample + first};
    std::vector<Stage::Work> works(stages_.size());
    const model::Fields rows = rows_of(input.batch, first, kSamplesEach);
    model::Tensors activation{rows.at("inputs").clone()};
    for (size_t s = 0; s < stages_.size(); ++s) {
      const int64_t updates = forward_updates(case_, static_cast<int64_t>(s), k);
      activation = stages_[s]->forward(std::move(activation), updates, pass, works[s]);
    }
    const int64_t last = case_.ranks - 1;
    const model::Loss::Result loss = stages_.back()->loss(
        activation, {rows.at("targets").clone()}, backward_updates(case_, last, k), scale);
    model::Tensors gradient = loss.input_gradients;
    for (size_t s = stages_.size(); s-- > 0;) {
      const int64_t updates = backward_updates(case_, static_cast<int64_t>(s), k);
      gradient = stages_[s]->backward(std::move(gradient), updates, pass, std::move(works[s]));
    }
    return loss.sum;
  }

  const Case case_;
  const model::Chain chain_;
  std::vector<std::unique_ptr<Stage>> stages_;
  int64_t step_ = 0;
  Trained trained_;
};

// --- the pipeline ---

// Bytes, measured; no seconds.
plan::CostTable costs_of(const model::Chain& chain, at::ScalarType type) {
  model::Parameters parameters(chain, type, kModelSeed);
  const at::Tensor tokens = test::random_tokens({kSamplesEach, kContext}, kVocabulary, 1);
  return profile::measure(
      chain, parameters, {{"inputs", tokens}, {"targets", tokens.clone()}}, {.only_bytes = true});
}

// As many bytes as copies of the ranks' weights really have.
std::vector<int64_t> copy_bytes(const model::Chain& chain,
                                const std::vector<model::Part>& parts,
                                at::ScalarType type) {
  std::vector<int64_t> all;
  for (const model::Part& part : parts) {
    all.push_back(model::Parameters::copy_bytes(chain.parameters(part), type));
  }
  return all;
}

std::vector<model::Part> stage_parts(const plan::Pipeline& pipeline) {
  return parts_of({pipeline.schedule.rank_of, pipeline.cuts}, pipeline.schedule.ranks());
}

plan::PipelineAnswer plan_segment(const model::Chain& chain,
                                  const plan::CostTable& costs,
                                  const Case& c,
                                  int32_t updates,
                                  int64_t limit_bytes) {
  const std::vector<int32_t> cuts = even_cuts(chain.size(), c.ranks);
  plan::PipelineRequest request{
      .kind = c.kind,
      .ranks = c.ranks,
      .micro_batches = c.micro_batches,
      .updates = updates,
      .first_layers = std::vector<int32_t>(cuts.begin() + 1, cuts.end() - 1),
      .mode = limit_bytes > 0 ? plan::SlotMode::Apart : plan::SlotMode::KeepAll,
      .limit_bytes = limit_bytes,
  };
  request.holdings = [&](const plan::Pipeline& pipeline) {
    return test::without_bytes(test::pipeline_holdings(chain, stage_parts(pipeline), c.type));
  };
  request.weight_bytes = [&](const plan::Pipeline& pipeline) {
    return copy_bytes(chain, stage_parts(pipeline), c.type);
  };
  return plan::solve_pipeline(costs, request);
}

// One executor for each number of updates, as the trainer has them.
Trained run_as_pipeline(const Case& c, int64_t limit_bytes = 0) {
  const model::Chain chain = untied_gpt2();
  const plan::CostTable costs = costs_of(chain, c.type);
  std::map<int32_t, plan::PipelineAnswer> plans;
  for (const int32_t updates : c.segments) {
    const auto [plan, is_new] =
        plans.try_emplace(updates, plan_segment(chain, costs, c, updates, limit_bytes));
    EXPECT_TRUE(plan->second.is_feasible);
    EXPECT_EQ(plan->second.recomputed_forwards > 0, limit_bytes > 0);
  }
  const std::vector<model::Part> parts = stage_parts(plans.begin()->second.pipeline);
  config::PlanOptions options;
  options.pipeline = c.ranks;
  options.micro_batches = c.micro_batches;
  options.schedule = schedule::kind_name(c.kind);
  options.anneal_steps = kAnnealSteps;

  std::vector<Trained> by_rank(static_cast<size_t>(c.ranks));
  comm::run_local(c.ranks, [&](comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    Trained& trained = by_rank[rank];
    const memory::AccountScope scope(memory::make_account());
    model::Parameters parameters(chain, parts[rank], c.type, kModelSeed, device::open_cpu());
    const auto optimizer = optim::make_optimizer(train_options(), parameters);
    std::map<int32_t, Executor> executors;
    for (const auto& [updates, plan] : plans) {
      executors.try_emplace(updates, plan.program, chain, parameters, group);
    }
    int64_t step = 0;
    for (const int32_t updates : c.segments) {
      Executor& executor = executors.at(updates);
      StepInput input = batches(c, step, updates);
      for (UpdateSettings& settings : input.updates) {
        settings.rate.lr = kRate * train::rate_factor(options, group.rank(), step++);
      }
      executor.run(input, *optimizer);
      EXPECT_EQ(executor.outcomes().size(), static_cast<size_t>(updates));
      const std::vector<double>& losses = executor.losses();
      trained.losses.insert(trained.losses.end(), losses.begin(), losses.end());
    }
    add_weights(parameters, trained);
  });
  Trained all;
  all.losses = by_rank.back().losses;
  for (const Trained& one : by_rank) {
    all.weights.insert(all.weights.end(), one.weights.begin(), one.weights.end());
  }
  return all;
}

void expect_same(const Trained& found, const Trained& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) {
    EXPECT_EQ(found.weights[i].first, expected.weights[i].first);
    EXPECT_TRUE(at::equal(found.weights[i].second, expected.weights[i].second))
        << found.weights[i].first;
  }
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << schedule::kind_name(c.kind) << " with " << c.ranks << " ranks";
}

class AsynchronousPipelines : public testing::TestWithParam<Case> {};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return cat(schedule::kind_name(c.kind),
             "_",
             c.ranks,
             "_ranks_",
             c.micro_batches,
             "_micro_batches_",
             c.segments.size(),
             "_segments",
             c.type == at::kFloat ? "" : "_bfloat16");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDream2BW, Kind::PipeMare}) {
    for (const int32_t ranks : {2, 4}) {
      for (const int32_t micro_batches : {1, 3, 8}) {
        const bool is_possible = kind != Kind::PipeDream2BW || micro_batches >= ranks;
        for (const std::vector<int32_t>& segments :
             {std::vector<int32_t>{kUpdates}, std::vector<int32_t>{4, 4, 2}}) {
          if (is_possible) {
            cases.push_back({kind, ranks, micro_batches, segments});
          }
        }
      }
    }
  }
  // Some parameters stay float32 in bfloat16: a copy of the weights has two parts.
  cases.push_back({Kind::PipeDream, 4, 3, {4, 4, 2}, at::kBFloat16});
  cases.push_back({Kind::PipeDream2BW, 2, 3, {kUpdates}, at::kBFloat16});
  cases.push_back({Kind::PipeMare, 4, 3, {kUpdates}, at::kBFloat16});
  return cases;
}

}  // namespace

TEST_P(AsynchronousPipelines, GiveTheBitsOfOneProcessWithTheSameDelays) {
  const Trained expected = Reference(GetParam()).run();
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(kUpdates));
  expect_same(run_as_pipeline(GetParam()), expected);
}

// Bytes as measured: what a rank holds is what its program says, instruction by instruction, copies
// of the weights included.
TEST_P(AsynchronousPipelines, HoldWhatTheirProgramsSay) {
  const Case& c = GetParam();
  const model::Chain chain = untied_gpt2();
  const int32_t updates = c.segments[0];
  const plan::PipelineAnswer plan =
      plan_segment(chain, costs_of(chain, c.type), c, updates, /*limit_bytes=*/0);
  const std::vector<model::Part> parts = stage_parts(plan.pipeline);
  comm::run_local(c.ranks, [&](comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    const memory::AccountScope scope(memory::make_account());
    model::Parameters parameters(chain, parts[rank], c.type, kModelSeed, device::open_cpu());
    Executor executor(plan.program, chain, parameters, group);
    const StepInput input = batches(c, 0, updates);
    const int64_t held = memory::usage().current_bytes;
    NoStepper none;
    executor.run(input, none);
    const program::RankTimeline& measured = executor.measured().ranks[0];
    const program::RankProgram& program = plan.program.ranks[rank];
    int64_t live = held + program.bytes_of(program.given);
    EXPECT_EQ(measured.memory[0].bytes, live);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const program::Instruction& instruction = program.instructions[i];
      const std::string what =
          cat("rank ", rank, ", instruction ", i, ", ", describe(plan.program, instruction));
      ASSERT_LE(measured.memory[2 * i + 1].bytes, live + instruction.working_bytes) << what;
      live += program.bytes_of(instruction.makes) - program.bytes_of(instruction.frees);
      ASSERT_LE(measured.memory[2 * i + 2].bytes, live) << what;
      if (instruction.op == program::Op::Stash) {
        ASSERT_EQ(measured.memory[2 * i + 2].bytes, live) << what;
      }
    }
    EXPECT_EQ(live, held);
  });
}

// A rank that runs out of memory between two of its updates says how many are done.
TEST(AsynchronousPipeline, StoppedByItsLimitSaysHowManyUpdatesAreDone) {
  const Case c{Kind::PipeDream, 2, 1, {4}};
  const model::Chain chain = untied_gpt2();
  const plan::PipelineAnswer plan =
      plan_segment(chain, costs_of(chain, c.type), c, /*updates=*/4, /*limit_bytes=*/0);
  const std::vector<model::Part> parts = stage_parts(plan.pipeline);
  const std::vector<program::Instruction>& first = plan.program.ranks[0].instructions;
  const auto is_step = [](const program::Instruction& one) { return one.op == program::Op::Step; };
  const auto update = std::find_if(first.begin(), first.end(), is_step) - first.begin();
  const std::string text = test::error_text<Error>([&] {
    comm::run_local(c.ranks, [&](comm::Group& group) {
      const memory::AccountScope scope(memory::make_account());
      model::Parameters parameters(
          chain, parts[static_cast<size_t>(group.rank())], c.type, kModelSeed, device::open_cpu());
      Executor executor(plan.program, chain, parameters, group);
      executor.watch([&](const Made& made) {
        if (group.rank() == 0 && made.instruction > update) {
          memory::set_limit(memory::current_account(), memory::usage().current_bytes);
        }
      });
      NoStepper none;
      executor.run(batches(c, 0, 4), none);
    });
  });
  EXPECT_NE(text.find("rank 0 stopped at instruction "), std::string::npos) << text;
  EXPECT_NE(text.find("; the weights are as after 1 of 4 updates"), std::string::npos) << text;
}

// The reference has something to tell: delays change the numbers.
TEST(AsynchronousPipeline, DiffersFromOneThatIsDrained) {
  const std::vector<int32_t> drained(static_cast<size_t>(kUpdates), 1);
  const std::vector<int32_t> not_drained{kUpdates};
  std::vector<std::vector<double>> seen;
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDream2BW}) {
    const Case alone{kind, 4, 8, drained};
    seen.push_back(run_as_pipeline({kind, 4, 8, not_drained}).losses);
    EXPECT_NE(seen.back(), run_as_pipeline(alone).losses);
  }
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_EQ(run_as_pipeline({Kind::PipeDream, 4, 8, drained}).losses,
            run_as_pipeline({Kind::PipeDream2BW, 4, 8, drained}).losses);
}

// What is recomputed works with the weights that the micro-batch went forward with.
TEST(AsynchronousPipeline, RecomputesToTheSameBits) {
  for (const int32_t micro_batches : {1, 3}) {
    const Case c{Kind::PipeDream, 4, micro_batches, {4, 4, 2}};
    const model::Chain chain = untied_gpt2();
    const plan::CostTable costs = costs_of(chain, c.type);
    const plan::PipelineAnswer all = plan_segment(chain, costs, c, 4, /*limit_bytes=*/0);
    const plan::PipelineAnswer least = plan_segment(chain, costs, c, 4, /*limit_bytes=*/1);
    const int64_t most = *std::max_element(all.peak_bytes.begin(), all.peak_bytes.end());
    const int64_t enough = *std::max_element(least.least_bytes.begin(), least.least_bytes.end());
    ASSERT_LT(enough, most);
    expect_same(run_as_pipeline(c, (enough + most) / 2), Reference(c).run());
  }
}

INSTANTIATE_TEST_SUITE_P(All, AsynchronousPipelines, testing::ValuesIn(all_cases()), name_of);

}  // namespace penstock::run
