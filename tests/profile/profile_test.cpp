#include "penstock/profile/profile.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/model/parameters.h"
#include "penstock/profile/timings.h"

#include "run/small_models.h"

namespace penstock::profile {

namespace {

plan::CostTable measure_small(const model::Chain& chain, const ProfileOptions& options) {
  model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
  const run::StepInput batch = test::token_batch(3, 1);
  return measure(chain, parameters, batch.batch, options);
}

// Counts how often it runs; costs nothing.
class CountingLayer final : public model::Layer {
 public:
  CountingLayer(std::string name, std::string kind, int* runs)
      : name_(std::move(name)), kind_(std::move(kind)), runs_(runs) {}
  const std::string& name() const override { return name_; }
  const std::vector<model::ParameterSpec>& parameters() const override { return specs_; }
  std::string kind() const override { return kind_; }
  const std::vector<model::SaveMode>& save_modes() const override { return modes_; }
  model::Tensors forward(model::Weights,
                         const model::Tensors& input,
                         const model::Pass&,
                         model::Saved* saved) const override {
    ++*runs_;
    return saved != nullptr && saved->without_output ? model::Tensors{}
                                                     : model::Tensors{input[0].clone()};
  }
  model::Tensors backward(model::Weights,
                          model::Gradients,
                          const model::Tensors&,
                          model::Saved,
                          const model::Tensors& gradient,
                          const model::Pass&) const override {
    return {gradient[0].clone()};
  }
  model::LayerSize size_for(const model::Shapes& inputs, at::ScalarType, int32_t) const override {
    return {{{inputs[0].sizes, inputs[0].type}}, model::bytes_of(inputs)};
  }

 private:
  std::string name_, kind_;
  int* runs_;
  std::vector<model::ParameterSpec> specs_;
  std::vector<model::SaveMode> modes_{{"all"}};
};

int runs_of_second(const std::string& kind) {
  int first = 0, second = 0;
  model::Chain chain;
  chain.add(std::make_unique<CountingLayer>("first", kind, &first));
  chain.add(std::make_unique<CountingLayer>("second", kind, &second));
  chain.end_with(model::function_loss("loss", [](const at::Tensor& out, const at::Tensor& target) {
    return at::sum(out * target);
  }));
  model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
  const at::Tensor x = test::random_tensor({4, 4}, 1);
  const plan::CostTable table =
      measure(chain, parameters, {{"inputs", x}, {"targets", x}}, {.only_bytes = true});
  EXPECT_GT(first, 0);
  EXPECT_EQ(table.layers[1].name, "second");
  EXPECT_EQ(table.layers[1].output_bytes, 64);
  return second;
}

}  // namespace

TEST(Profile, FindsTheBytesThatTheLayersPromise) {
  for (const double dropout : {0.0, 0.2}) {
    const model::Chain chain = test::small_gpt2(dropout);
    const plan::CostTable table = measure_small(chain, {.only_bytes = true});
    ASSERT_EQ(table.layers.size(), static_cast<size_t>(chain.size()));
    model::Shapes shapes{{{3, 20}, at::kLong}};
    for (int64_t i = 0; i < chain.size(); ++i) {
      const plan::LayerCost& cost = table.layers[static_cast<size_t>(i)];
      SCOPED_TRACE(cost.name);
      EXPECT_EQ(cost.name, chain.layer(i).name());
      EXPECT_EQ(cost.input_bytes, model::bytes_of(shapes));
      EXPECT_EQ(cost.input_gradient(), model::bytes_of(shapes))
          << "nothing travels beside it on a CPU";
      for (size_t mode = 0; mode < cost.modes.size(); ++mode) {
        const model::LayerSize size =
            chain.layer(i).size_for(shapes, at::kFloat, static_cast<int32_t>(mode));
        EXPECT_EQ(cost.modes[mode].saved_bytes, size.kept_bytes);
        EXPECT_GE(cost.modes[mode].forward_extra_bytes, 0);
        EXPECT_GE(cost.modes[mode].recompute_extra_bytes, 0);
        EXPECT_GE(cost.modes[mode].backward_extra_bytes, -cost.input_bytes);
        EXPECT_EQ(cost.modes[mode].forward_s, 0) << "only bytes were asked for";
      }
      shapes = chain.layer(i).size_for(shapes, at::kFloat).outputs;
      EXPECT_EQ(cost.output_bytes, model::bytes_of(shapes));
      EXPECT_EQ(cost.output_gradient(), model::bytes_of(shapes));
    }
    EXPECT_EQ(table.target_bytes, 3 * 20 * 8);
  }
}

TEST(Profile, CountsATiedParameterOnce) {
  const model::Chain chain = test::small_gpt2(0);
  const plan::CostTable table = measure_small(chain, {.only_bytes = true});
  int64_t bytes = table.loss.parameter_bytes;
  for (const plan::LayerCost& layer : table.layers) {
    bytes += layer.parameter_bytes;
  }
  EXPECT_EQ(bytes, 4 * chain.parameter_count());
}

TEST(Profile, MeasuresLayersOfOneKindOnce) {
  EXPECT_EQ(runs_of_second("twin"), 0);
  EXPECT_GT(runs_of_second(""), 0) << "a layer without a kind is alone of its kind";
}

TEST(Profile, MeasuresSecondsOfEverythingAndReportsItsRounds) {
  int rounds = 0, steps = 0;
  const plan::CostTable table = measure_small(test::small_gpt2(0.1),
                                              {.least_rounds = 3,
                                               .most_rounds = 4,
                                               .stable = 0,
                                               .step = [&] { ++steps; },
                                               .on_round =
                                                   [&](int done, int most) {
                                                     EXPECT_EQ(done, ++rounds);
                                                     EXPECT_EQ(most, 4);
                                                   }});
  EXPECT_EQ(rounds, 4) << "timings never agree to the last digit";
  EXPECT_EQ(steps, 5) << "a warm-up round comes first";
  for (const plan::LayerCost& layer : table.layers) {
    EXPECT_GT(layer.forward_s, 0);
    for (const plan::SaveModeCost& mode : layer.modes) {
      EXPECT_GT(mode.forward_s, 0);
      EXPECT_GT(mode.backward_s, 0);
    }
  }
  EXPECT_GT(table.loss.seconds, 0);
  EXPECT_GT(table.clear_s, 0);
}

TEST(Profile, StopsWhenItsMediansAreStable) {
  int rounds = 0;
  measure_small(test::small_gpt2(0),
                {.least_rounds = 3, .most_rounds = 30, .stable = 1e6, .on_round = [&](int, int) {
                   ++rounds;
                 }});
  EXPECT_EQ(rounds, 3);
}

TEST(Timings, GiveTheMedianAndItsError) {
  Timings timings;
  for (const double seconds : {5.0, 1.0, 3.0}) {
    timings.add(seconds);
  }
  EXPECT_EQ(timings.median(), 3);
  EXPECT_NEAR(timings.error(), 1.4826 * 1.2533 * 2 / std::sqrt(3.0), 1e-12);
  timings.add(4);
  EXPECT_EQ(timings.median(), 3.5);
  Timings alike;
  alike.add(2);
  alike.add(2);
  EXPECT_EQ(alike.error(), 0);
  EXPECT_EQ(Timings().error(), 0) << "nothing to measure is stable";
}

}  // namespace penstock::profile
