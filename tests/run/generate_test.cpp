#include "penstock/run/generate.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/run/plain_step.h"

namespace penstock::run {

namespace {

struct Model {
  model::Chain chain =
      model::make_gpt2({.layers = 1, .width = 32, .heads = 2, .context = 8, .vocabulary = 50});
  model::Parameters parameters{chain, at::kFloat, 3};

  std::vector<int64_t> generate(const GenerateOptions& options,
                                const std::vector<int64_t>& prompt = {7, 9}) const {
    return run::generate(chain, parameters, prompt, options);
  }
  int64_t likeliest_after(std::vector<int64_t> prompt) const {
    const at::Tensor tokens = at::tensor(prompt).view({1, -1});
    const at::Tensor logits = predict(chain, parameters, {{"inputs", tokens}})[0];
    return logits[tokens.size(1) - 1].argmax().item<int64_t>();
  }
};

}  // namespace

TEST(Generate, TemperatureZeroTakesTheLikeliest) {
  const Model model;
  const auto made = model.generate({.tokens = 3, .context = 8, .temperature = 0});
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0], model.likeliest_after({7, 9}));
  EXPECT_EQ(made[1], model.likeliest_after({7, 9, made[0]}));
  EXPECT_EQ(made, model.generate({.tokens = 3, .context = 8, .temperature = 2, .top_k = 1}));
}

TEST(Generate, IsDecidedByTheSeed) {
  const Model model;
  const GenerateOptions options{.tokens = 20, .context = 8, .temperature = 1, .seed = 1};
  GenerateOptions other = options;
  other.seed = 2;
  EXPECT_EQ(model.generate(options), model.generate(options));
  EXPECT_NE(model.generate(options), model.generate(other));
}

// Only the last `context` tokens are seen.
TEST(Generate, GoesOnPastTheContext) {
  const Model model;
  const std::vector<int64_t> longer{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<int64_t> visible(longer.begin() + 2, longer.end());
  const GenerateOptions options{.tokens = 12, .context = 8, .temperature = 0};
  EXPECT_EQ(model.generate(options, longer), model.generate(options, visible));
}

TEST(Generate, StopsAtTheStopTokenAndWhenTold) {
  const Model model;
  const int64_t first = model.likeliest_after({7, 9});
  EXPECT_TRUE(
      model.generate({.tokens = 5, .context = 8, .temperature = 0, .stop_token = first}).empty());
  const auto made = run::generate(model.chain,
                                  model.parameters,
                                  {7, 9},
                                  {.tokens = 5, .context = 8, .temperature = 0},
                                  [](int64_t) { return false; });
  EXPECT_EQ(made.size(), 1u);
}

TEST(Generate, AnEmptyPromptBeginsADocument) {
  const Model model;
  const GenerateOptions options{.tokens = 4, .context = 8, .temperature = 0, .stop_token = 0};
  EXPECT_EQ(model.generate(options, {}), model.generate(options, {0}));
}

// Frequencies of the first token follow softmax(logits / temperature).
TEST(Generate, DrawsByTheModelsProbabilities) {
  const Model model;
  const at::Tensor tokens = at::tensor(std::vector<int64_t>{7, 9}).view({1, -1});
  const at::Tensor logits = predict(model.chain, model.parameters, {{"inputs", tokens}})[0][1];
  const at::Tensor expected = at::softmax(logits / 0.02, 0);  // sharp, so that few draws suffice
  const int draws = 2000;
  at::Tensor seen = at::zeros({50});
  for (int i = 0; i < draws; ++i) {
    const auto made = model.generate(
        {.tokens = 1, .context = 8, .temperature = 0.02, .seed = static_cast<uint64_t>(i)});
    seen[made[0]] += 1.0 / draws;
  }
  EXPECT_LT((seen - expected).abs().max().item<double>(), 0.045);
}

}  // namespace penstock::run
