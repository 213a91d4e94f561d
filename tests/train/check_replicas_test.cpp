// check finds a layer that computes otherwise at one of the replicas, whatever they divide, and names
// the tensor and the rank; and states a tolerance where sums have another order.
#include <atomic>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/planner.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/profile/profile.h"
#include "penstock/train/check_ranks.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/rank_model.h"

#include "run/small_models.h"

namespace penstock::train {

namespace {

enum class Fault { None, InOutput, InGradient };

// The planted fault: it knows the thread that ran one of its kind first, which is that of rank 0, and
// does something else in others.
class KnowsItsThread final : public model::Layer {
 public:
  using Thread = std::atomic<std::thread::id>;

  KnowsItsThread(Fault fault, Thread& first) : fault_(fault), first_(first) {}

  const std::string& name() const override { return name_; }
  const std::vector<model::ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<model::SaveMode>& save_modes() const override { return modes_; }
  model::Tensors forward(model::Weights,
                         const model::Tensors& input,
                         const model::Pass&,
                         model::Saved*) const override {
    std::thread::id nobody;
    first_.compare_exchange_strong(nobody, std::this_thread::get_id());
    return {input[0] * (fault_ == Fault::InOutput ? factor() : 1)};
  }
  model::Tensors backward(model::Weights,
                          model::Gradients gradients,
                          const model::Tensors&,
                          model::Saved,
                          const model::Tensors& gradient,
                          const model::Pass&) const override {
    gradients[0].add_(fault_ == Fault::InGradient ? factor() : 1);
    return {gradient[0].clone()};
  }
  model::LayerSize size_for(const model::Shapes& inputs, at::ScalarType, int32_t) const override {
    return {inputs, model::bytes_of(inputs)};
  }

 private:
  double factor() const { return first_.load() == std::this_thread::get_id() ? 1 : 1.5; }

  Fault fault_;
  Thread& first_;
  std::string name_ = "knows its thread";
  std::vector<model::ParameterSpec> specs_{{.name = "thread.weight", .shape = {1}}};
  std::vector<model::SaveMode> modes_{{"all"}};
};

constexpr model::Gpt2Shape kShape{
    .layers = 1, .width = 48, .heads = 4, .context = 20, .vocabulary = 61, .dropout = 0.1};
constexpr int32_t kKnows = 2;

config::Recipe recipe_of(const std::string& shard, int64_t data) {
  config::Recipe recipe;
  recipe.train.batch = 4 * data;
  recipe.train.lr = 1e-2;
  recipe.plan.micro_batches = 2;
  recipe.plan.data = data;
  recipe.plan.shard = shard;
  return recipe;
}

model::Chain make_chain(Fault fault, KnowsItsThread::Thread& first) {
  model::Chain chain;
  chain.add(make_gpt2_embedding(kShape));
  chain.add(make_gpt2_attention(kShape, 0));
  chain.add(std::make_unique<KnowsItsThread>(fault, first));
  chain.add(make_gpt2_mlp(kShape, 0));
  chain.end_with(make_gpt2_head(kShape));
  return chain;
}

CheckReport check(const config::Recipe& recipe, Fault fault) {
  KnowsItsThread::Thread first = {};
  const model::Chain chain = make_chain(fault, first);
  const run::StepInput batch = test::token_batch(recipe.train.batch, 2);
  plan::CostTable costs;
  {
    model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
    costs = profile::measure(chain,
                             parameters,
                             test::first_rows(batch.batch, 2),
                             {.only_bytes = true, .measures_split = true});
  }
  first = std::thread::id();
  const plan::Outcome planned =
      plan::make_plan(plan_request(recipe, chain), costs, plan::Machine());
  const plan::OneRankAnswer kept = plan::solve_one_rank(
      costs,
      {.recompute = plan::Recompute::None,
       .micro_batches = 2,
       .holdings = plan::whole_holdings(model_sizes(recipe, chain), {}, plan::Machine())});
  return check_ranks(recipe,
                     [&](const device::Device&) { return make_chain(fault, first); },
                     planned.program,
                     {planned.schedule().rank_of, planned.cuts()},
                     kept.program,
                     {.steps = 3, .batch = [&](int64_t) { return batch.batch; }});
}

}  // namespace

TEST(CheckReplicas, SaysThatReplicasChangeNothing) {
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    const CheckReport report = check(recipe_of(shard, 2), Fault::None);
    EXPECT_TRUE(report.is_equal) << shard << ": " << report.first_difference;
    EXPECT_EQ(report.steps, 3);
    EXPECT_EQ(report.reordered, "");
    EXPECT_EQ(report.rank_peak_bytes.size(), 2U);
    EXPECT_GT(report.tensors, 3 * 2 * 2 * 8);
  }
}

TEST(CheckReplicas, NamesTheTensorAndTheReplica) {
  for (const char* shard : {"none", "parameters"}) {
    const CheckReport report = check(recipe_of(shard, 2), Fault::InOutput);
    EXPECT_FALSE(report.is_equal);
    EXPECT_EQ(report.steps, 1);
    EXPECT_TRUE(report.first_difference.starts_with(
        "the output of knows its thread, micro-batch 0, made by instruction "))
        << report.first_difference;
    EXPECT_NE(report.first_difference.find(" of rank 1 ("), std::string::npos)
        << report.first_difference;
  }
}

TEST(CheckReplicas, NamesTheGradientOfAParameter) {
  const CheckReport report = check(recipe_of("none", 2), Fault::InGradient);
  EXPECT_FALSE(report.is_equal);
  EXPECT_EQ(report.first_difference, "the gradient of thread.weight on rank 0, at step 1");
}

// With three replicas a ring adds in another order. All but the sums stays the same to the bit.
TEST(CheckReplicas, StatesATolerance) {
  config::Recipe recipe = recipe_of("gradients", 3);
  recipe.plan.collectives = "ring";
  const CheckReport report = check(recipe, Fault::None);
  EXPECT_TRUE(report.is_equal) << report.first_difference;
  EXPECT_NE(report.reordered.find("plan.collectives = \"ring\""), std::string::npos);
  EXPECT_GT(report.largest_difference, 0);
  EXPECT_LE(report.largest_difference, report.allowed_difference);
  EXPECT_EQ(report.allowed_difference, 1e-5);
  EXPECT_FALSE(check(recipe, Fault::InGradient).is_equal);
}

}  // namespace penstock::train
