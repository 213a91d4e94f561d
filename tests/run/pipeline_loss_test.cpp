// The last rank takes the loss micro-batch by micro-batch. In the organisation of before, it waits
// for the outputs of all of them and has the logits of the whole batch at once: here a loss of the
// test's does that, so that the two can be measured side by side.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/comm/local.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/pipeline.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"

#include "support/holdings.h"
#include "support/random_tensor.h"

namespace penstock::run {

namespace {

constexpr int32_t kRanks = 4;
constexpr int32_t kMicroBatches = 8;
constexpr int64_t kSamples = 2;  // of a micro-batch
constexpr model::Gpt2Shape kShape{
    .layers = 4, .width = 64, .heads = 4, .context = 32, .vocabulary = 4096};

// Called for each micro-batch in turn; does everything at the first call.
class WholeBatchLoss final : public model::Loss {
 public:
  explicit WholeBatchLoss(model::Tensors targets)
      : inner_(model::make_gpt2_head(kShape)), targets_(std::move(targets)) {}

  const std::string& name() const override { return inner_->name(); }
  const std::vector<model::ParameterSpec>& parameters() const override {
    return inner_->parameters();
  }
  at::Tensor predict(model::Weights weights, const model::Tensors& input) const override {
    return inner_->predict(weights, input);
  }
  double evaluate(model::Weights weights,
                  const model::Tensors& input,
                  const model::Tensors& targets) const override {
    return inner_->evaluate(weights, input, targets);
  }
  int64_t count(const model::Tensors& targets) const override { return inner_->count(targets); }

  Result backward(model::Weights weights,
                  model::Gradients gradients,
                  const model::Tensors& input,
                  const model::Tensors& targets,
                  double scale) const override {
    if (outputs_.size() < kMicroBatches) {  // while costs are measured
      return inner_->backward(weights, gradients, input, targets, scale);
    }
    Result result;
    if (next_ == 0) {
      const model::Tensors whole{at::cat(outputs_)};
      const at::Tensor logits = inner_->predict(weights, whole);
      result = inner_->backward(weights, gradients, whole, targets_, scale);
      gradient_ = result.input_gradients[0];
    }
    result.input_gradients = {gradient_.narrow(0, kSamples * next_++, kSamples)};
    return result;
  }

  void add_output(const at::Tensor& output) { outputs_.push_back(output); }

 private:
  std::unique_ptr<model::Loss> inner_;
  model::Tensors targets_;
  std::vector<at::Tensor> outputs_;  // of the last layer, as they are made
  mutable at::Tensor gradient_;
  mutable int64_t next_ = 0;
};

struct Measured {
  double loss = 0;
  int64_t peak_bytes = 0;  // of the last rank, weights included
};

Measured run_last_rank(const StepInput& input, bool takes_whole_batch) {
  model::Chain chain;
  chain.add(model::make_gpt2_embedding(kShape));
  for (int64_t block = 0; block < kShape.layers; ++block) {
    chain.add(model::make_gpt2_attention(kShape, block));
    chain.add(model::make_gpt2_mlp(kShape, block));
  }
  WholeBatchLoss* whole = nullptr;
  if (takes_whole_batch) {
    auto loss = std::make_unique<WholeBatchLoss>(model::Tensors{input.batch.at("targets")});
    whole = loss.get();
    chain.end_with(std::move(loss));
  } else {
    chain.end_with(model::make_gpt2_head(kShape));
  }
  plan::CostTable costs;
  {
    const model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
    costs = profile::sizes_of(chain, parameters, rows_of(input.batch, 0, kSamples));
  }
  plan::Pipeline pipeline{
      .schedule = schedule::make_schedule(schedule::Kind::GPipe, kRanks, kMicroBatches)};
  pipeline.cuts = {0, 3, 5, 7, 9};
  pipeline.operations = plan::keep_everything(costs, pipeline.cuts, kMicroBatches);
  const std::vector<model::Part> parts =
      parts_of({pipeline.schedule.rank_of, pipeline.cuts}, kRanks);
  const program::Program program = plan::lower_pipeline(
      costs, pipeline, test::pipeline_holdings(chain, parts, at::kFloat), /*limit_bytes=*/0);
  Measured measured;
  comm::run_local(kRanks, [&](comm::Group& group) {
    const memory::AccountScope scope(memory::make_account());
    const model::Part& part = parts[static_cast<size_t>(group.rank())];
    model::Parameters parameters(chain, part, at::kFloat, /*seed=*/3, device::open_cpu());
    Executor executor(program, chain, parameters, group);
    if (whole != nullptr && part.has_loss) {
      executor.watch([&](const Made& made) {
        const bool is_output = made.value.kind == program::ValueKind::Activation &&
                               made.value.layer == program.loss_index();
        if (is_output) {
          whole->add_output(made.tensors[0]);
        }
      });
    }
    NoStepper none;
    const double loss = executor.run(input, none);
    if (part.has_loss) {
      measured = {loss, executor.measured().ranks[0].peak_bytes};
    }
  });
  return measured;
}

}  // namespace

TEST(PipelineLoss, NeedsLessOnTheLastRankThanThatOfTheWholeBatch) {
  const StepInput input{
      .batch = {{"inputs",
                 test::random_tokens({kSamples * kMicroBatches, kShape.context}, 4096, 7)},
                {"targets",
                 test::random_tokens({kSamples * kMicroBatches, kShape.context}, 4096, 8)}},
      .micro_batches = kMicroBatches,
      .seed = 5};
  const Measured one_by_one = run_last_rank(input, /*takes_whole_batch=*/false);
  const Measured at_once = run_last_rank(input, /*takes_whole_batch=*/true);
  EXPECT_NEAR(one_by_one.loss, at_once.loss, 1e-5 * at_once.loss);
  RecordProperty("micro_batch_loss_bytes", std::to_string(one_by_one.peak_bytes));
  RecordProperty("whole_batch_loss_bytes", std::to_string(at_once.peak_bytes));
  std::printf(
      "last rank: %lld bytes with the loss of each micro-batch, %lld with that of the whole "
      "batch\n",
      static_cast<long long>(one_by_one.peak_bytes),
      static_cast<long long>(at_once.peak_bytes));
  const int64_t logits_bytes = 4 * kSamples * kMicroBatches * kShape.context * kShape.vocabulary;
  EXPECT_LT(one_by_one.peak_bytes + logits_bytes, at_once.peak_bytes);
}

}  // namespace penstock::run
