// Every byte and every exchange, through the trainer: on every rank the peak that the program
// predicts is the one measured, to the byte, and what the rank hands to other ranks in a step is the
// sum of its program's instructions.
#include <filesystem>
#include <fstream>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/text.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/comm/group.h"
#include "penstock/model/family.h"
#include "penstock/run/executor.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_parts.h"

#include "support/temp_folder.h"

namespace penstock::train {

namespace {

struct Layout {
  int64_t pipeline = 1;
  int64_t data = 1;
  std::string shard = "none";
  std::string schedule = "auto";
  std::string optimizer = "adamw";
  std::string precision = "float32";
  std::string reduce = "float32";
  std::string collectives = "direct";
  bool is_tied = true;
  bool keeps_gathered = false;
  double clip = 1;
  int64_t steps = 2;
  std::string family = "gpt2";
};

std::string name_of(const Layout& one) {
  return cat(one.family,
             ", pipeline ",
             one.pipeline,
             ", data ",
             one.data,
             ", ",
             one.shard,
             ", ",
             one.schedule,
             ", ",
             one.optimizer,
             ", ",
             one.precision,
             one.reduce == "compute" ? " reduced" : "",
             ", ",
             one.collectives,
             one.is_tied ? ", tied" : "",
             one.keeps_gathered ? ", kept" : "",
             one.clip > 0 ? "" : ", not clipped",
             ", ",
             one.steps,
             " steps");
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    for (const bool is_tied : {true, false}) {
      all.push_back({.pipeline = 2, .schedule = schedule, .is_tied = is_tied});
    }
  }
  for (const char* schedule : {"pipedream", "2bw", "pipemare"}) {
    all.push_back({.pipeline = 2, .schedule = schedule, .is_tied = false, .clip = 0});
  }
  all.push_back({.pipeline = 4, .schedule = "1f1b"});
  all.push_back({.pipeline = 3, .schedule = "zb-h1", .precision = "bfloat16"});
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    for (const bool is_tied : {true, false}) {
      all.push_back({.data = 2, .shard = shard, .is_tied = is_tied});
      all.push_back({.data = 3, .shard = shard, .precision = "bfloat16", .is_tied = is_tied});
    }
    all.push_back({.data = 4, .shard = shard});
    all.push_back({.data = 2, .shard = shard, .optimizer = "sgd", .clip = 0});
    all.push_back({.data = 2, .shard = shard, .precision = "bfloat16", .reduce = "compute"});
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      for (const bool is_tied : {true, false}) {
        all.push_back(
            {.pipeline = 2, .data = 2, .shard = shard, .schedule = schedule, .is_tied = is_tied});
      }
    }
    for (const char* collectives : {"ring", "tree", "butterfly", "naive"}) {
      all.push_back({.data = 3, .shard = shard, .collectives = collectives});
    }
  }
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    all.push_back({.data = 2, .shard = shard, .optimizer = "lamb"});
    all.push_back(
        {.pipeline = 2, .data = 2, .shard = shard, .schedule = "1f1b", .optimizer = "lamb"});
  }
  // What the last step exchanges goes by how many there are.
  for (const char* optimizer : {"onebit-adam", "zeroone-adam", "onebit-lamb"}) {
    for (const char* shard : {"none", "optimizer"}) {
      for (const int64_t steps : {2, 3, 5}) {
        all.push_back({.data = 2, .shard = shard, .optimizer = optimizer, .steps = steps});
      }
      all.push_back({.pipeline = 2,
                     .data = 2,
                     .shard = shard,
                     .schedule = "1f1b",
                     .optimizer = optimizer,
                     .precision = "bfloat16",
                     .steps = 4});
    }
  }
  all.push_back({.data = 2, .shard = "parameters", .keeps_gathered = true});
  all.push_back({.pipeline = 2,
                 .data = 2,
                 .shard = "parameters",
                 .schedule = "1f1b",
                 .keeps_gathered = true});
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    all.push_back({.pipeline = 2, .schedule = schedule, .family = "llama"});
  }
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    all.push_back({.data = 2, .shard = shard, .is_tied = false, .family = "llama"});
    all.push_back({.data = 2, .shard = shard, .precision = "bfloat16", .family = "llama"});
  }
  return all;
}

config::Recipe recipe_of(const Layout& layout, const std::filesystem::path& folder) {
  config::Recipe recipe;
  recipe.model = {.layers = 3, .width = 48, .heads = 4, .context = 32, .vocabulary = 256};
  recipe.model.family = layout.family;
  recipe.model.kv_heads = layout.family == "llama" ? 2 : 0;
  recipe.model.tied = layout.is_tied;
  recipe.data.path = (folder / "text.txt").string();
  recipe.train.steps = layout.steps;
  recipe.train.freeze_step = recipe.train.var_freeze_step = 2;
  recipe.train.var_update_scaler = recipe.train.local_step_scaler = 1;
  recipe.train.local_step_clipper = layout.shard == "none" ? 4 : 1;
  recipe.train.batch = 24;
  recipe.train.optimizer = layout.optimizer;
  recipe.train.precision = layout.precision;
  recipe.train.clip = layout.clip;
  recipe.plan.pipeline = layout.pipeline;
  recipe.plan.data = layout.data;
  recipe.plan.shard = layout.shard;
  recipe.plan.schedule = layout.schedule;
  recipe.plan.micro_batches = layout.pipeline > 1 ? 4 : 2;
  recipe.plan.keep_gathered = layout.keeps_gathered;
  recipe.plan.reduce = layout.reduce;
  recipe.plan.bucket = "40KiB";
  recipe.plan.collectives = layout.collectives;
  recipe.plan.flush_every = 2;
  recipe.run.out = (folder / "run").string();
  recipe.run.log = "none";
  recipe.run.threads = 1;
  return recipe;
}

class Accounting : public testing::Test {
 protected:
  void SetUp() override {
    // Some scratch memory goes by threads, and costs are measured by one rank alone.
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
    std::ofstream text(folder_.path() / "text.txt");
    for (int i = 0; i < 2000; ++i) {
      text << "line " << i * 7919 % 1009 << " of some text; ";
    }
  }

  void TearDown() override { at::set_num_threads(threads_); }

  Summary train(const Layout& layout) {
    const config::Recipe recipe = recipe_of(layout, folder_.path());
    Summary summary;
    run_ranks(recipe, /*asked=*/0, [&](comm::Group& group) {
      RankTrainer trainer(recipe, {}, group);
      const Summary own = trainer.run();
      if (group.rank() == 0) {
        summary = own;
      }
    });
    return summary;
  }

  test::TempFolder folder_;
  int threads_ = 1;
};

}  // namespace

TEST_F(Accounting, PeaksAndPayloadAreAsPredictedOnEveryRankOfEveryLayout) {
  const std::vector<Layout> layouts = all_layouts();
  EXPECT_GE(layouts.size(), 60U);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(name_of(layout));
    const Summary summary = train(layout);
    const auto ranks = static_cast<size_t>(layout.pipeline * layout.data);
    ASSERT_EQ(summary.rank_payload_bytes.size(), ranks);
    EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes);
    EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes);
    for (const int64_t bytes : summary.rank_payload_bytes) {
      EXPECT_GT(bytes, 0);
    }
  }
}

namespace {

// Takes steps first .. end - 1, counted from 0, by a rank that has just begun or resumed; adds the
// forms of their updates.
void take_steps(const config::Recipe& recipe,
                comm::Group& group,
                int64_t first,
                int64_t end,
                std::set<plan::UpdateForm>& forms) {
  const auto parts = make_trainer_parts(recipe, group, PlanSource(), family_subject(), nullptr);
  parts->optimizer.set_steps_done(first);
  const at::Tensor tokens = at::randint(
      recipe.model.vocabulary, {2, recipe.train.batch, recipe.model.context}, at::kLong);
  for (int64_t step = first; step < end; ++step) {
    forms.insert(parts->optimizer.next_form());
    run::Executor& executor = *parts->next_variant(1).executor;
    executor.run({.batch = {{"inputs", tokens[0]}, {"targets", tokens[1]}},
                  .micro_batches = recipe.plan.micro_batches,
                  .step = step,
                  .updates = {{.rate = {.lr = 1e-3}, .clip = recipe.train.clip}}},
                 parts->optimizer);
    ASSERT_TRUE(parts->optimizer.updated().was_applied);
    EXPECT_EQ(executor.sent_bytes(), executor.rank_program().sent_bytes())
        << "rank " << group.rank() << ", step " << step;
  }
}

}  // namespace

// In every step, whatever it exchanges, of runs that begin and of runs that go on.
TEST_F(Accounting, EveryStepSendsWhatItsProgramSays) {
  std::set<plan::UpdateForm> forms;
  std::mutex mutex;
  for (const char* optimizer : {"lamb", "onebit-adam", "zeroone-adam", "onebit-lamb"}) {
    for (const char* shard : {"none", "optimizer"}) {
      for (const Layout& layout :
           {Layout{.data = 3, .shard = shard, .optimizer = optimizer, .steps = 12},
            Layout{.pipeline = 2,
            .data = 2,
            .shard = shard,
            .schedule = "1f1b",
            .optimizer = optimizer,
            .steps = 12}}) {
        SCOPED_TRACE(name_of(layout));
        const config::Recipe recipe = recipe_of(layout, folder_.path());
        std::filesystem::create_directories(recipe.run.out);
        run_ranks(recipe, /*asked=*/0, [&](comm::Group& group) {
          std::set<plan::UpdateForm> own;
          take_steps(recipe, group, 0, 12, own);
          take_steps(recipe, group, 3, 5, own);
          const std::lock_guard lock(mutex);
          forms.merge(own);
        });
      }
    }
  }
  EXPECT_EQ(forms.size(), 13U);
}

namespace {

// Says something to every other rank that no instruction of the program says.
class TalkingStepper final : public run::Stepper {
 public:
  explicit TalkingStepper(comm::Group& group) : group_(group) {}

  void take_squares(model::Parameters& parameters,
                    const run::UpdateSettings& settings,
                    bool for_others) override {
    quiet_.take_squares(parameters, settings, for_others);
  }
  run::Squares own_squares() override { return quiet_.own_squares(); }
  void decide(const run::Squares*) override {
    const double word = 1;
    group_.all_gather({&word, 1}, [] { return std::string("eight bytes"); });
  }
  void move(model::Parameters&) override {}
  run::Updated updated() override { return {}; }

 private:
  comm::Group& group_;
  run::NoStepper quiet_;
};

}  // namespace

// The comparison above can fail.
TEST_F(Accounting, EightBytesMoreThanTheProgramSaysAreSeen) {
  for (const Layout& layout : {Layout{.data = 2}, Layout{.pipeline = 2, .schedule = "1f1b"}}) {
    const config::Recipe recipe = recipe_of(layout, folder_.path());
    const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
    run_ranks(recipe, /*asked=*/0, [&](comm::Group& group) {
      const RankModel model =
          build_rank_model(recipe, chain, device::open_cpu(), group, PlanSource());
      run::Executor executor(
          model.planned.result.program, chain, *model.parameters, group, model.replicas.get());
      const at::Tensor tokens = at::zeros({2, recipe.train.batch, recipe.model.context}, at::kLong);
      const run::StepInput input{.batch = {{"inputs", tokens[0]}, {"targets", tokens[1]}},
                                 .micro_batches = recipe.plan.micro_batches};
      run::NoStepper quiet;
      executor.run(input, quiet);
      EXPECT_EQ(executor.sent_bytes(), executor.rank_program().sent_bytes());
      TalkingStepper talking(group);
      executor.run(input, talking);
      EXPECT_EQ(executor.sent_bytes(), executor.rank_program().sent_bytes() + 8);
    });
  }
}

}  // namespace penstock::train
