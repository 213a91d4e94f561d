// Replicas, through the trainer: the losses of ten steps and the weights after them are, to the
// bit, those of one device that adds gradients up in the replicas' order; and to rounding those of
// one device that does as it likes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/file.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/data/loader.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/cost_table.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"
#include "penstock/train/subject.h"

#include "support/temp_folder.h"

namespace penstock::train {

namespace {

struct Case {
  int64_t pipeline = 1;
  int64_t data = 2;
  std::string shard = "none";
  int64_t micro_batches = 1;
  std::string schedule = "auto";
  bool is_limited = false;
  std::string precision = "float32";
  std::string optimizer = "adamw";
  bool keeps_gathered = false;
  bool is_tied = true;
  std::string family = "gpt2";
};

std::string name_of(const Case& c) {
  std::string name = cat(c.family == "gpt2" ? "" : cat(c.family, "_"),
                         c.pipeline > 1 ? cat("pipeline", c.pipeline, "_", c.schedule, "_") : "",
                         "data",
                         c.data,
                         "_",
                         c.shard,
                         "_",
                         c.micro_batches,
                         "_micro_batches",
                         c.is_limited ? "_limited" : "",
                         c.precision == "float32" ? "" : cat("_", c.precision),
                         c.optimizer == "adamw" ? "" : cat("_", c.optimizer),
                         c.keeps_gathered ? "_kept" : "",
                         c.is_tied ? "" : "_untied");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c);
}

constexpr int64_t kSteps = 10;

class DataParallel : public testing::TestWithParam<Case> {
 protected:
  std::string costs_file() const { return (folder_.path() / "costs.json").string(); }
  config::Recipe recipe() const {
    config::Recipe recipe = recipe_without_costs();
    recipe.plan.costs = costs_file();
    return recipe;
  }
  config::Recipe recipe_without_costs() const {
    const Case& c = GetParam();
    config::Recipe recipe;
    // Wide enough that matrices are cut in the middle.
    recipe.model = {.layers = 3, .width = 48, .heads = 4, .context = 64, .vocabulary = 256};
    recipe.model.family = c.family;
    recipe.model.tied = c.is_tied;
    if (c.is_limited) {
      recipe.model.layers = 6;
      // The first stage has more: that is where recomputation helps, two micro-batches being in
      // flight.
      recipe.plan.cuts = c.pipeline > 1 ? "9" : "";
    }
    if (c.family == "llama") {
      recipe.model.kv_heads = 2;
      recipe.model.hidden = 112;
    } else {
      recipe.model.dropout = 0.1;
    }
    recipe.data.path = (folder_.path() / "text.txt").string();
    recipe.train.steps = kSteps;
    recipe.train.batch = 16;
    recipe.train.lr = 3e-3;
    recipe.train.optimizer = c.optimizer;
    recipe.train.precision = c.precision;
    recipe.plan.pipeline = c.pipeline;
    recipe.plan.data = c.data;
    recipe.plan.shard = c.shard;
    recipe.plan.keep_gathered = c.keeps_gathered;
    recipe.plan.micro_batches = c.micro_batches;
    recipe.plan.schedule = c.schedule;
    recipe.plan.bucket = "40KiB";  // some layers each
    recipe.plan.collectives = "direct";
    recipe.run.out = (folder_.path() / "run").string();
    recipe.run.log = "none";
    recipe.run.check_replicas = 3;
    return recipe;
  }

  void SetUp() override {
    std::ofstream text(folder_.path() / "text.txt");
    for (int i = 0; i < 3000; ++i) {
      text << "line " << i * 7919 % 1009 << " of some text; ";
    }
    // Measured once, so that all runs have the same plan.
    write_text_file(costs_file(), plan::format_costs(measure_recipe(recipe_without_costs())));
  }

  Summary train(const config::Recipe& recipe) {
    Summary summary;
    run_ranks(recipe, /*asked=*/0, [&](comm::Group& group) {
      RankTrainer trainer(recipe, {}, group);
      const Summary own = trainer.run();
      if (group.rank() == 0) {
        summary = own;
        title_ = trainer.plan_title();
      }
    });
    return summary;
  }

  bool recomputes() const { return title_.find(" 0 forwards recomputed") == std::string::npos; }

  test::TempFolder folder_;
  std::string title_;  // of the last plan
};

// The highest, in steps of a four-hundredth, that makes the plan recompute something; 1 where none
// does.
int64_t limit_that_recomputes(config::Recipe recipe) {
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  const plan::CostTable costs = plan::read_costs(recipe.plan.costs);
  const plan::Machine machine = probe_machine(recipe, recipe.plan.ranks());  // as the run does
  const plan::Outcome whole = plan::make_plan(plan_request(recipe, chain), costs, machine);
  const int64_t peak = whole.most_peak_bytes();
  for (int64_t part = 399; part > 200; --part) {
    recipe.plan.memory = cat(peak * part / 400);
    const plan::Outcome result = plan::make_plan(plan_request(recipe, chain), costs, machine);
    if (!result.is_feasible) {
      return 1;
    }
    if (result.recomputed_forwards > 0) {
      return peak * part / 400;
    }
  }
  return 1;
}

struct Reference {
  std::vector<double> losses;
  std::unique_ptr<model::Parameters> parameters;
};

Reference train_alone(const config::Recipe& recipe) {
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  Reference reference;
  reference.parameters =
      std::make_unique<model::Parameters>(chain, compute_type(recipe.train), recipe.train.seed);
  model::Parameters& parameters = *reference.parameters;
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  const data::Split split = family_subject().open_data(recipe);
  data::Loader loader(
      split.train, {.seed = static_cast<uint64_t>(recipe.train.seed), .batch = recipe.train.batch});
  const bool is_sharded = recipe.plan.shard == "gradients" || recipe.plan.shard == "parameters";
  for (int64_t step = 0; step < kSteps; ++step) {
    const data::Batch batch = loader.next();
    reference.losses.push_back(
        run::accumulate_as_replicas(chain,
                                    parameters,
                                    {.batch = as_tensors(batch),
                                     .first_sample = batch.first_sample,
                                     .micro_batches = recipe.plan.micro_batches,
                                     .seed = static_cast<uint64_t>(recipe.train.seed),
                                     .step = step},
                                    {.replicas = recipe.plan.data,
                                     .reduces_each_micro_batch = is_sharded,
                                     .adds_shared_last = is_sharded || recipe.plan.pipeline > 1}));
    optimizer->update(parameters,
                      {.rate = optim::rate_at(recipe.train, step), .clip = recipe.train.clip});
  }
  return reference;
}

// Of all batches that the replicas evaluate, in order.
double validate_alone(const config::Recipe& recipe, const model::Parameters& parameters) {
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  const data::Split split = family_subject().open_data(recipe);
  const int64_t sequences = std::min(recipe.run.validate_sequences, split.validation->samples());
  const int64_t at_once = recipe.micro_batch_size();
  run::LossSum total;
  for (int64_t first = 0; first < sequences; first += at_once) {
    const data::Batch batch =
        data::read_in_order(*split.validation, first, std::min(at_once, sequences - first));
    const run::LossSum part = run::evaluate(chain, parameters, as_tensors(batch));
    total.sum += part.sum;
    total.count += part.count;
  }
  return total.sum / static_cast<double>(total.count);
}

TEST_P(DataParallel, HasTheBitsOfOneDevice) {
  config::Recipe replicas = recipe();
  if (GetParam().is_limited) {
    replicas.plan.memory = cat(limit_that_recomputes(replicas));
  }
  const Summary summary = train(replicas);
  if (GetParam().is_limited) {
    EXPECT_TRUE(recomputes()) << title_;
    EXPECT_LE(summary.peak_bytes, replicas.plan.memory_bytes());
  }
  for (size_t rank = 0; rank < summary.rank_peak_bytes.size(); ++rank) {
    EXPECT_LE(summary.rank_peak_bytes[rank], summary.predicted_rank_peak_bytes[rank]) << rank;
  }
  const Reference reference = train_alone(replicas);
  ASSERT_EQ(summary.losses.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < summary.losses.size(); ++i) {
    EXPECT_EQ(summary.losses[i], reference.losses[i]) << "step " << i + 1;
  }
  EXPECT_EQ(*summary.validation_loss, validate_alone(replicas, *reference.parameters));
  // What was saved, by name.
  config::Recipe alone = replicas;
  alone.plan = config::PlanOptions();
  const model::Chain chain = model::make_chain(alone.model, device::open_cpu());
  model::Parameters loaded(chain, compute_type(alone.train), 99);
  checkpoint::load_weights(summary.checkpoint, loaded);
  for (const model::Parameter& parameter : reference.parameters->all()) {
    EXPECT_TRUE(at::equal(loaded.find(parameter.spec.name)->weight, parameter.weight))
        << parameter.spec.name;
  }
  // And to rounding, one device as it is. (bfloat16: its micro-batches are others.)
  alone.plan.micro_batches = replicas.plan.data * replicas.plan.micro_batches;
  alone.run.out += "-alone";
  const Summary ordinary = train(alone);
  for (size_t i = 0; i < ordinary.losses.size(); ++i) {
    const double allowed = replicas.train.precision == "float32" ? 2e-6 : 2e-3;
    EXPECT_NEAR(summary.losses[i] / ordinary.losses[i], 1, allowed) << "step " << i + 1;
  }
  EXPECT_NEAR(*summary.validation_loss / *ordinary.validation_loss,
              1,
              replicas.train.precision == "float32" ? 2e-6 : 2e-3);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::string> shards{"none", "optimizer", "gradients", "parameters"};
  for (const std::string& shard : shards) {
    for (const int64_t data : {2, 4}) {
      for (const int64_t micro_batches : {1, 4}) {
        all.push_back({.data = data, .shard = shard, .micro_batches = micro_batches});
      }
    }
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      all.push_back({.pipeline = 2,
                     .shard = shard,
                     .micro_batches = 4,
                     .schedule = schedule,
                     .is_limited = true});
    }
    all.push_back({.data = 2, .shard = shard, .micro_batches = 2, .optimizer = "lamb"});
    all.push_back({.data = 2, .shard = shard, .optimizer = "sgd", .is_tied = false});
    all.push_back({.data = 2, .shard = shard, .micro_batches = 4, .is_limited = true});
  }
  for (const std::string& shard : shards) {
    all.push_back({.data = 4, .shard = shard, .micro_batches = 2, .precision = "bfloat16"});
  }
  all.push_back({.data = 4, .shard = "parameters", .micro_batches = 2, .keeps_gathered = true});
  for (const char* schedule : {"gpipe", "interleaved", "zb-h2", "zb-v"}) {
    all.push_back({.pipeline = 2, .shard = "parameters", .micro_batches = 4, .schedule = schedule});
  }
  for (const std::string& shard : shards) {
    all.push_back({.shard = shard, .micro_batches = 2, .family = "llama"});
  }
  all.push_back({.shard = "gradients", .micro_batches = 4, .is_limited = true, .family = "llama"});
  all.push_back({.pipeline = 2,
                 .shard = "parameters",
                 .micro_batches = 4,
                 .schedule = "zb-v",
                 .is_tied = false,
                 .family = "llama"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, DataParallel, testing::ValuesIn(cases()), [](const auto& one) {
  return name_of(one.param);
});

}  // namespace

}  // namespace penstock::train
