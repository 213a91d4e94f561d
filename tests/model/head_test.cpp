#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/llama/llama.h"

#include "support/random_tensor.h"

namespace penstock::model {

namespace {

using test::random_tensor;
using test::random_tokens;
using test::relative_error;

struct HeadBench {
  explicit HeadBench(int64_t rows, int64_t vocabulary, at::ScalarType type = at::kFloat)
      : head(make_gpt2_head(
            {.layers = 1, .width = 32, .heads = 2, .context = rows, .vocabulary = vocabulary})) {
    const at::Tensor scale = 1 + 0.1 * random_tensor({32}, 1);
    const at::Tensor shift = 0.1 * random_tensor({32}, 2);
    weights = {scale, shift, random_tensor({vocabulary, 32}, 3, type)};
    for (const at::Tensor& weight : weights) {
      gradients.push_back(at::zeros(weight.sizes(), at::kFloat));
    }
    input = {random_tensor({1, rows, 32}, 4, type)};
    targets = {random_tokens({1, rows}, vocabulary, 5)};
  }

  std::unique_ptr<Loss> head;
  Tensors weights, gradients, input, targets;
};

}  // namespace

// 40,000 words make several ranges of rows.
TEST(Gpt2Head, LossAndGradientsMatchAFloat64Reference) {
  for (const auto& [rows, vocabulary] : {std::pair<int64_t, int64_t>{50, 97}, {700, 40'000}}) {
    HeadBench bench(rows, vocabulary);
    bench.targets[0][0][3] = -1;  // does not count
    Tensors wide;
    for (const at::Tensor& weight : bench.weights) {
      wide.push_back(weight.to(at::kDouble).set_requires_grad(true));
    }
    const at::Tensor x = bench.input[0].to(at::kDouble).set_requires_grad(true);
    const at::Tensor logits =
        at::matmul(at::layer_norm(x, {32}, wide[0], wide[1], 1e-5), wide[2].t());
    const double scale = 0.37;
    const at::Tensor sum = at::cross_entropy_loss(
        logits[0], bench.targets[0][0], {}, at::Reduction::Sum, /*ignore_index=*/-1);
    (sum * scale).backward();

    const Loss::Result result =
        bench.head->backward(bench.weights, bench.gradients, bench.input, bench.targets, scale);
    EXPECT_NEAR(result.sum / sum.item<double>(), 1, 1e-6);
    EXPECT_NEAR(
        bench.head->evaluate(bench.weights, bench.input, bench.targets) / sum.item<double>(),
        1,
        1e-6);
    EXPECT_LT(relative_error(result.input_gradients[0], x.grad()), 3e-6);
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_LT(relative_error(bench.gradients[i], wide[i].grad()), 3e-6) << i;
    }
    EXPECT_EQ(bench.head->count(bench.targets), rows - 1);
  }
}

TEST(LlamaHead, LossAndGradientsMatchAFloat64Reference) {
  const auto head = make_llama_head({.width = 32, .vocabulary = 97, .norm_epsilon = 1e-6});
  const Tensors weights{1 + 0.1 * random_tensor({32}, 1), random_tensor({97, 32}, 3)};
  Tensors gradients{at::zeros({32}), at::zeros({97, 32})}, wide;
  for (const at::Tensor& weight : weights) {
    wide.push_back(weight.to(at::kDouble).set_requires_grad(true));
  }
  const at::Tensor input = random_tensor({2, 25, 32}, 4);
  at::Tensor targets = random_tokens({2, 25}, 97, 5);
  targets[1][3] = -1;  // does not count
  const at::Tensor x = input.to(at::kDouble).set_requires_grad(true);
  const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6) * wide[0];
  const at::Tensor logits = at::matmul(normed, wide[1].t());
  const at::Tensor sum = at::cross_entropy_loss(
      logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum, /*ignore_index=*/-1);
  (sum * 0.37).backward();
  const Loss::Result result = head->backward(weights, gradients, {input}, {targets}, 0.37);
  EXPECT_NEAR(result.sum / sum.item<double>(), 1, 1e-6);
  EXPECT_NEAR(head->evaluate(weights, {input}, {targets}) / sum.item<double>(), 1, 1e-6);
  EXPECT_LT(relative_error(head->predict(weights, {input}), logits.detach()), 3e-6);
  EXPECT_LT(relative_error(result.input_gradients[0], x.grad()), 3e-6);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_LT(relative_error(gradients[i], wide[i].grad()), 3e-6) << i;
  }
  EXPECT_EQ(head->count({targets}), 49);
}

TEST(Gpt2Head, Bfloat16StaysNearFloat32) {
  HeadBench narrow(60, 200, at::kBFloat16);
  HeadBench wide(60, 200);
  wide.input = {narrow.input[0].to(at::kFloat)};
  wide.weights[2] = narrow.weights[2].to(at::kFloat);
  const Loss::Result a =
      narrow.head->backward(narrow.weights, narrow.gradients, narrow.input, narrow.targets, 1);
  const Loss::Result b =
      wide.head->backward(wide.weights, wide.gradients, wide.input, wide.targets, 1);
  EXPECT_NEAR(a.sum / b.sum, 1, 1e-2);
  EXPECT_LT(relative_error(a.input_gradients[0], b.input_gradients[0]), 3e-2);
  EXPECT_LT(relative_error(narrow.gradients[2], wide.gradients[2]), 3e-2);
}

TEST(Gpt2Head, NeverHoldsAllLogits) {
  const int64_t rows = 8192, vocabulary = 20'000;
  HeadBench bench(rows, vocabulary);
  memory::current_account().restart_peak();
  const int64_t before = memory::usage().current_bytes;
  bench.head->backward(bench.weights, bench.gradients, bench.input, bench.targets, 1);
  const int64_t used = memory::usage().peak_bytes - before;
  EXPECT_LT(used, rows * vocabulary * 4 / 4);
}

}  // namespace penstock::model
