// A pipeline changes no bit: the losses of ten steps, with dropout, tied weights, clipping and
// AdamW, are those of one device that runs the same micro-batches.
#include "penstock/plan/pipeline.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/lower.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"

#include "run/small_models.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

constexpr int64_t kSteps = 10;
constexpr int64_t kBlocks = 5;  // 11 layers: no number of ranks divides them

config::TrainOptions train_options() {
  config::TrainOptions options;
  options.optimizer = "adamw";
  options.lr = 3e-3;
  return options;
}

StepInput batch_of(int64_t micro_batches, int64_t step) {
  StepInput input = test::token_batch(2 * micro_batches, micro_batches);
  input.step = step;
  input.first_sample = step * 2 * micro_batches;
  input.batch["inputs"] =
      test::random_tokens({2 * micro_batches, 20}, 61, 100 + static_cast<uint64_t>(step));
  input.updates = {{.rate = {.lr = 3e-3}, .clip = 0.5}};
  return input;
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  at::Tensor table;  // the tied one, after the last step
};

plan::CostTable sizes(const model::Chain& chain, int64_t micro_batches) {
  const model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  const StepInput input = batch_of(micro_batches, 0);
  return profile::sizes_of(chain, parameters, rows_of(input.batch, 0, 2));
}

struct Family {
  const char* name;
  const char* table;  // the tied one's name
  model::Chain (*make_chain)();
};
constexpr Family kGpt2{
    "gpt2", "transformer.wte.weight", [] { return test::small_gpt2(/*dropout=*/0.1, kBlocks); }};
constexpr Family kLlama{
    "llama", "model.embed_tokens.weight", [] { return test::small_llama(kBlocks); }};

Trained run_on_one_device(const Family& family, int64_t micro_batches) {
  const model::Chain chain = family.make_chain();
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  const auto optimizer = optim::make_optimizer(train_options(), parameters);
  const plan::CostTable costs = sizes(chain, micro_batches);
  const program::Program program = plan::lower(costs,
                                               plan::keep_everything(costs),
                                               static_cast<int32_t>(micro_batches),
                                               /*limit_bytes=*/0,
                                               test::holdings_alone(parameters));
  Executor executor(program, chain, parameters);
  Trained run;
  for (int64_t step = 0; step < kSteps; ++step) {
    run.losses.push_back(executor.run(batch_of(micro_batches, step), *optimizer));
    run.norms.push_back(executor.outcomes().back().norm);
  }
  run.table = parameters.find(family.table)->weight.clone();
  return run;
}

// As even as it goes.
std::vector<int32_t> even_cuts(int32_t layers, int32_t stages) {
  std::vector<int32_t> cuts;
  for (int32_t stage = 0; stage <= stages; ++stage) {
    cuts.push_back(layers * stage / stages);
  }
  return cuts;
}

// A pipeline that keeps everything, and the layers of its ranks.
struct Prepared {
  Prepared(const model::Chain& chain,
           const plan::CostTable& costs,
           schedule::Kind kind,
           int32_t ranks,
           int32_t micro_batches) {
    plan::Pipeline pipeline{.schedule = schedule::make_schedule(kind, ranks, micro_batches)};
    pipeline.cuts =
        even_cuts(static_cast<int32_t>(costs.layers.size()), pipeline.schedule.stages());
    pipeline.operations = plan::keep_everything(costs, pipeline.cuts, micro_batches);
    parts = parts_of({pipeline.schedule.rank_of, pipeline.cuts}, ranks);
    program = plan::lower_pipeline(
        costs, pipeline, test::pipeline_holdings(chain, parts, at::kFloat), /*limit_bytes=*/0);
  }

  program::Program program;
  std::vector<model::Part> parts;
};

struct Case {
  schedule::Kind kind;
  int32_t ranks, micro_batches;
  Family family = kGpt2;
};

Trained run_as_pipeline(const Case& c) {
  const auto& [kind, ranks, micro_batches, family] = c;
  const model::Chain chain = family.make_chain();
  const Prepared prepared(chain, sizes(chain, micro_batches), kind, ranks, micro_batches);
  const std::vector<model::Part>& parts = prepared.parts;
  Trained result;
  comm::run_local(ranks, [&](comm::Group& group) {
    const memory::AccountScope scope(memory::make_account());
    const model::Part& part = parts[static_cast<size_t>(group.rank())];
    model::Parameters parameters(chain, part, at::kFloat, /*seed=*/3, device::open_cpu());
    const auto optimizer = optim::make_optimizer(train_options(), parameters);
    Executor executor(prepared.program, chain, parameters, group);
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = executor.run(batch_of(micro_batches, step), *optimizer);
      if (part.has_loss) {
        result.losses.push_back(loss);
        result.norms.push_back(executor.outcomes().back().norm);
      }
    }
    if (part.has_loss) {
      result.table = parameters.find(c.family.table)->weight.clone();
    }
  });
  return result;
}

class Pipelines : public testing::TestWithParam<Case> {};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name(schedule::kind_name(info.param.kind));
  std::replace(name.begin(), name.end(), '-', '_');
  return cat(info.param.family.name,
             "_",
             name,
             "_",
             info.param.ranks,
             "_ranks_",
             info.param.micro_batches,
             "_micro_batches");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& name : schedule::kind_names()) {
    const schedule::Kind kind = schedule::parse_kind(name);
    if (schedule::is_asynchronous(kind)) {
      continue;
    }
    for (const int32_t ranks : {1, 2, 4}) {
      for (const int32_t micro_batches : {1, 3, 8}) {
        cases.push_back({kind, ranks, micro_batches});
      }
      cases.push_back({kind, ranks, /*micro_batches=*/3, kLlama});
    }
  }
  return cases;
}

}  // namespace

TEST_P(Pipelines, GiveTheBitsOfOneDevice) {
  const Trained expected = run_on_one_device(GetParam().family, GetParam().micro_batches);
  const Trained found = run_as_pipeline(GetParam());
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_TRUE(at::equal(found.table, expected.table));
}

// Bytes as measured: what a rank holds is what its program says, instruction by instruction.
TEST_P(Pipelines, HoldWhatTheirProgramsSay) {
  const auto& [kind, ranks, micro_batches, family] = GetParam();
  const model::Chain chain = family.make_chain();
  plan::CostTable costs;
  {
    model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
    const StepInput input = batch_of(micro_batches, 0);
    costs = profile::measure(chain,
                             parameters,
                             test::first_rows(input.batch, 2),
                             {.only_bytes = true, .measures_split = true});
  }
  const Prepared prepared(chain, costs, kind, ranks, micro_batches);
  comm::run_local(ranks, [&](comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    const memory::AccountScope scope(memory::make_account());
    model::Parameters parameters(
        chain, prepared.parts[rank], at::kFloat, /*seed=*/3, device::open_cpu());
    Executor executor(prepared.program, chain, parameters, group);
    const StepInput input = batch_of(micro_batches, 0);
    const int64_t held = memory::usage().current_bytes;
    NoStepper none;
    executor.run(input, none);
    const program::RankTimeline& measured = executor.measured().ranks[0];
    const program::RankProgram& program = prepared.program.ranks[rank];
    int64_t live = held + program.bytes_of(program.given);
    EXPECT_EQ(measured.memory[0].bytes, live);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const program::Instruction& instruction = program.instructions[i];
      const std::string what =
          cat("rank ", rank, ", instruction ", i, ", ", describe(prepared.program, instruction));
      ASSERT_LE(measured.memory[2 * i + 1].bytes, live + instruction.working_bytes) << what;
      live += program.bytes_of(instruction.makes) - program.bytes_of(instruction.frees);
      ASSERT_LE(measured.memory[2 * i + 2].bytes, live) << what;
    }
    EXPECT_EQ(live, held);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pipelines, testing::ValuesIn(all_cases()), name_of);

}  // namespace penstock::run
