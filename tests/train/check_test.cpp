// check finds a layer that does not come out the same when it is recomputed, and names the tensor.
#include "penstock/train/check.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/one_rank.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/profile/profile.h"
#include "penstock/train/rank_holdings.h"

#include "run/small_models.h"

namespace penstock::train {

namespace {

// The planted fault: dropout by a random state of the layer's own, which moves on with every
// forward and starts anew with every backward. Run once per step it is always the same;
// recomputed it is not.
class OwnRandomState final : public model::Layer {
 public:
  const std::string& name() const override { return name_; }
  const std::vector<model::ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<model::SaveMode>& save_modes() const override { return modes_; }
  model::Tensors forward(model::Weights,
                         const model::Tensors& input,
                         const model::Pass&,
                         model::Saved* saved) const override {
    const at::Tensor mask =
        test::random_tensor(input[0].sizes(), ++draws_).lt(1).to(input[0].scalar_type());
    if (saved != nullptr) {
      saved->tensors = {mask};
    }
    return {input[0] * mask};
  }
  model::Tensors backward(model::Weights,
                          model::Gradients,
                          const model::Tensors&,
                          model::Saved saved,
                          const model::Tensors& gradient,
                          const model::Pass&) const override {
    draws_ = 0;
    return {gradient[0] * saved.tensors[0]};
  }
  model::LayerSize size_for(const model::Shapes& inputs, at::ScalarType, int32_t) const override {
    return {inputs, 2 * model::bytes_of(inputs)};
  }

 private:
  mutable uint64_t draws_ = 0;
  std::string name_ = "own random state";
  std::vector<model::ParameterSpec> specs_;
  std::vector<model::SaveMode> modes_{{"all"}};
};

constexpr model::Gpt2Shape kShape{
    .layers = 2, .width = 48, .heads = 4, .context = 20, .vocabulary = 61, .dropout = 0.1};

model::Chain make_chain(bool is_faulty) {
  model::Chain chain;
  chain.add(make_gpt2_embedding(kShape));
  chain.add(make_gpt2_attention(kShape, 0));
  if (is_faulty) {
    chain.add(std::make_unique<OwnRandomState>());
  }
  chain.add(make_gpt2_mlp(kShape, 0));
  chain.end_with(make_gpt2_head(kShape));
  return chain;
}

CheckReport check(const model::Chain& chain, plan::Recompute recompute, int64_t micro_batches = 1) {
  config::Recipe recipe;
  recipe.train.batch = 4;
  recipe.train.lr = 1e-2;
  recipe.plan.micro_batches = micro_batches;
  const run::StepInput batch = test::token_batch(4, 1);
  const int64_t each = 4 / micro_batches;
  plan::CostTable costs;
  plan::Holdings holdings;
  {
    model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
    costs = profile::measure(
        chain, parameters, test::first_rows(batch.batch, each), {.only_bytes = true});
    holdings = plan::whole_holdings(model_sizes(recipe, chain), costs, plan::Machine());
  }
  const auto program = [&](plan::Recompute how) {
    return plan::solve_one_rank(costs,
                                {.recompute = how,
                                 .micro_batches = static_cast<int32_t>(micro_batches),
                                 .holdings = holdings})
        .program;
  };
  return check_plan(recipe,
                    chain,
                    program(recompute),
                    program(plan::Recompute::None),
                    {.steps = 3, .batch = [&](int64_t) { return batch.batch; }});
}

}  // namespace

TEST(Check, SaysThatACorrectPlanChangesNothing) {
  for (const int64_t micro_batches : {1, 2}) {
    const CheckReport report = check(make_chain(false), plan::Recompute::All, micro_batches);
    EXPECT_TRUE(report.is_equal) << report.first_difference;
    EXPECT_EQ(report.steps, 3);
    EXPECT_EQ(report.first_difference, "");
    // Per step: activations (each layer runs twice, the second time for its state alone) and
    // gradients per micro-batch, then the gradient and the weight of every parameter.
    const int64_t parameters = 2 + 6 + 6 + 2;
    EXPECT_EQ(report.tensors, 3 * (micro_batches * (3 + 3) + 2 * parameters));
    EXPECT_GT(report.peak_bytes, 0);
  }
}

TEST(Check, NamesTheFirstTensorOfALayerWithRandomStateOfItsOwn) {
  const CheckReport report = check(make_chain(true), plan::Recompute::All);
  EXPECT_FALSE(report.is_equal);
  EXPECT_EQ(report.steps, 1);
  // The mask of the second forward is another one, and the gradient goes through that.
  EXPECT_EQ(report.first_difference,
            "the gradient of the input of own random state, micro-batch 0, made by instruction 8 "
            "(backward of own random state, micro-batch 0), at step 1");
  // Where it runs once, nothing can be seen.
  EXPECT_TRUE(check(make_chain(true), plan::Recompute::None).is_equal);
}

}  // namespace penstock::train
