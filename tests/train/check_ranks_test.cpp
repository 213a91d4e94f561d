// check finds a layer whose numbers depend on the order in which micro-batches run, which a
// pipeline changes, and names the tensor and the rank.
#include "penstock/train/check_ranks.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/one_rank.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/profile/profile.h"
#include "penstock/train/rank_holdings.h"

#include "run/small_models.h"

namespace penstock::train {

namespace {

enum class Fault { None, InOutput, InInputGradient, InGradient };

// The planted fault: it counts its forwards and begins anew with every backward, and puts the count
// into its output, its input's gradient, or squared into its parameter's gradient. One device runs
// each micro-batch forward and backward in turn and always finds 1.
class CountsForwards final : public model::Layer {
 public:
  explicit CountsForwards(Fault fault) : fault_(fault) {}

  const std::string& name() const override { return name_; }
  const std::vector<model::ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<model::SaveMode>& save_modes() const override { return modes_; }
  model::Tensors forward(model::Weights,
                         const model::Tensors& input,
                         const model::Pass&,
                         model::Saved*) const override {
    ++forwards_;
    return {input[0] * (fault_ == Fault::InOutput ? forwards_ : 1)};
  }
  model::Tensors backward(model::Weights,
                          model::Gradients gradients,
                          const model::Tensors&,
                          model::Saved,
                          const model::Tensors& gradient,
                          const model::Pass&) const override {
    gradients[0].add_(fault_ == Fault::InGradient ? forwards_ * forwards_ : 1);
    const int64_t factor = fault_ == Fault::InInputGradient ? forwards_ : 1;
    forwards_ = 0;
    return {gradient[0] * factor};
  }
  model::LayerSize size_for(const model::Shapes& inputs, at::ScalarType, int32_t) const override {
    return {inputs, model::bytes_of(inputs)};
  }

 private:
  Fault fault_;
  mutable int64_t forwards_ = 0;
  std::string name_ = "counts forwards";
  std::vector<model::ParameterSpec> specs_{{.name = "count.weight", .shape = {1}}};
  std::vector<model::SaveMode> modes_{{"all"}};
};

constexpr model::Gpt2Shape kShape{
    .layers = 2, .width = 48, .heads = 4, .context = 20, .vocabulary = 61, .dropout = 0.1};
constexpr int32_t kCounts = 2;  // the layer that counts
constexpr int64_t kMicroBatches = 3;

model::Chain make_chain(Fault fault) {
  model::Chain chain;
  chain.add(make_gpt2_embedding(kShape));
  chain.add(make_gpt2_attention(kShape, 0));
  chain.add(std::make_unique<CountsForwards>(fault));
  chain.add(make_gpt2_mlp(kShape, 0));
  chain.add(make_gpt2_attention(kShape, 1));
  chain.end_with(make_gpt2_head(kShape));
  return chain;
}

struct Checked {
  CheckReport report;
  program::Program program;
};

Checked check(Fault fault, schedule::Kind kind, std::vector<int32_t> first_layers) {
  config::Recipe recipe;
  recipe.train.batch = 2 * kMicroBatches;
  recipe.train.lr = 1e-2;
  recipe.plan.micro_batches = kMicroBatches;
  recipe.plan.pipeline = 2;
  const model::Chain chain = make_chain(fault);
  const run::StepInput batch = test::token_batch(recipe.train.batch, kMicroBatches);
  plan::CostTable costs;
  plan::Holdings alone;
  {
    model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
    costs = profile::measure(chain,
                             parameters,
                             test::first_rows(batch.batch, 2),
                             {.only_bytes = true, .measures_split = true});
    alone = plan::whole_holdings(model_sizes(recipe, chain), costs, plan::Machine());
  }
  const plan::PipelineAnswer planned = plan::solve_pipeline(
      costs,
      {.kind = kind,
       .ranks = 2,
       .micro_batches = kMicroBatches,
       .first_layers = first_layers,
       .holdings = [&](const plan::Pipeline& pipeline) {
         return plan::all_holdings(
             recipe.plan, model_sizes(recipe, chain), pipeline, costs, plan::Machine());
       }});
  const plan::OneRankAnswer kept = plan::solve_one_rank(
      costs,
      {.recompute = plan::Recompute::None, .micro_batches = kMicroBatches, .holdings = alone});
  const CheckReport report =
      check_ranks(recipe,
                  [&](const device::Device&) { return make_chain(fault); },
                  planned.program,
                  {planned.pipeline.schedule.rank_of, planned.pipeline.cuts},
                  kept.program,
                  {.steps = 3, .batch = [&](int64_t) { return batch.batch; }});
  return {report, planned.program};
}

size_t index_of(const program::RankProgram& rank, program::Op op, int32_t micro_batch) {
  const std::vector<program::Instruction>& list = rank.instructions;
  const auto found = std::find_if(list.begin(), list.end(), [&](const program::Instruction& one) {
    return one.op == op && one.layer == kCounts && one.micro_batch == micro_batch;
  });
  return static_cast<size_t>(found - list.begin());
}

}  // namespace

TEST(CheckRanks, SaysThatACorrectPipelineChangesNothing) {
  const std::pair<schedule::Kind, std::vector<int32_t>> cases[] = {
      {schedule::Kind::GPipe, {3}},
      {schedule::Kind::OneFOneB, {1}},
      {schedule::Kind::ZeroBubbleH1, {3}},
      {schedule::Kind::ZeroBubbleV, {1, 2, 4}},
      {schedule::Kind::Interleaved, {1, 2, 4}}};
  for (const auto& [kind, first_layers] : cases) {
    const CheckReport report = check(Fault::None, kind, first_layers).report;
    EXPECT_TRUE(report.is_equal) << schedule::kind_name(kind) << ": " << report.first_difference;
    EXPECT_EQ(report.steps, 3);
    EXPECT_EQ(report.first_difference, "");
    // Per step: each layer's output and each gradient but that of the tokens, per micro-batch;
    // those that cross between ranks twice; then gradient and weight of every parameter, of the
    // tied table at both ranks. In a V the two ends of the chain are with one rank, and so is its
    // middle.
    const bool is_v = kind == schedule::Kind::ZeroBubbleV;
    const int64_t crossings = static_cast<int64_t>(first_layers.size()) - (is_v ? 1 : 0);
    const int64_t tables = is_v ? 1 : 2;
    const int64_t parameters = 1 + 6 + 1 + 6 + 6 + 2 + tables;
    EXPECT_EQ(report.tensors, 3 * (kMicroBatches * (5 + 5 + 2 * crossings) + 2 * parameters));
    EXPECT_GT(report.loss, 1);
    ASSERT_EQ(report.rank_peak_bytes.size(), 2U);
    EXPECT_EQ(report.peak_bytes, std::max(report.rank_peak_bytes[0], report.rank_peak_bytes[1]));
    EXPECT_GT(std::min(report.rank_peak_bytes[0], report.rank_peak_bytes[1]), 0);
  }
}

// The second forward comes before the first backward. Rank 1 receives what is wrong; rank 0 made
// it.
TEST(CheckRanks, NamesTheTensorAndTheRankThatMadeIt) {
  const auto [report, program] = check(Fault::InOutput, schedule::Kind::OneFOneB, {kCounts + 1});
  EXPECT_FALSE(report.is_equal);
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.first_difference,
            cat("the output of counts forwards, micro-batch 1, made by instruction ",
                index_of(program.ranks[0], program::Op::Forward, 1),
                " of rank 0 (forward of counts forwards, micro-batch 1), at step 1"));
}

// Rank 0 receives what is wrong, and comes first among the ranks; rank 1 made it.
TEST(CheckRanks, NamesNotTheRankThatReceivedIt) {
  const auto [report, program] = check(Fault::InInputGradient, schedule::Kind::GPipe, {kCounts});
  EXPECT_FALSE(report.is_equal);
  EXPECT_EQ(report.first_difference,
            cat("the gradient of the input of counts forwards, micro-batch 0, made by instruction ",
                index_of(program.ranks[1], program::Op::Backward, 0),
                " of rank 1 (backward of counts forwards, micro-batch 0), at step 1"));
}

TEST(CheckRanks, NamesTheGradientOfAParameter) {
  const CheckReport report = check(Fault::InGradient, schedule::Kind::GPipe, {kCounts + 1}).report;
  EXPECT_FALSE(report.is_equal);
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.first_difference, "the gradient of count.weight on rank 0, at step 1");
}

}  // namespace penstock::train
