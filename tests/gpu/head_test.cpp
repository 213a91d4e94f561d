// Final norm, head and cross-entropy on the GPU, against float64 on the CPU.
#include <memory>
#include <span>

#include "gpu/layer_bench.h"

namespace penstock::model {

namespace {

using test::gpu;

struct HeadCase {
  at::ScalarType type = at::kFloat;
  int64_t width = 64, samples = 3, tokens = 17, vocabulary = 101;
  bool is_llama = false;

  std::unique_ptr<Loss> make_head(const std::shared_ptr<device::GpuContext>& context) const {
    return is_llama ? make_llama_gpu_head({.layers = 1,
                                           .width = width,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .context = tokens,
                                           .vocabulary = vocabulary,
                                           .is_tied = true},
                                          context)
                    : make_gpu_head({.layers = 1,
                                     .width = width,
                                     .heads = 1,
                                     .context = tokens,
                                     .vocabulary = vocabulary},
                                    context);
  }
};

std::vector<HeadCase> head_cases() {
  std::vector<HeadCase> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    cases.push_back({type, 64, 3, 17, 101});
    cases.push_back({type, 128, 1, 64, 101});
    cases.push_back({type, 128, 1, 1, 257});
    cases.push_back({type, 64, 1, 17, 50257});
    cases.push_back({type, 64, 3, 64, 50257});
    cases.push_back({type, 64, 3, 17, 101, true});
    cases.push_back({type, 128, 1, 1, 257, true});
    cases.push_back({type, 64, 3, 64, 50257, true});
  }
  return cases;
}

std::string head_name(const testing::TestParamInfo<HeadCase>& row) {
  const HeadCase& one = row.param;
  return cat(one.is_llama ? "llama_" : "",
             test::type_name(one.type),
             "_width",
             one.width,
             "_batch",
             one.samples,
             "x",
             one.tokens,
             "_vocabulary",
             one.vocabulary);
}

constexpr double kScale = 0.37;

struct HeadBench {
  HeadBench(const HeadCase& one, const device::Device& the_device)
      : device(the_device),
        type(one.type),
        is_llama(one.is_llama),
        head(one.make_head(device.gpu)) {
    uint64_t seed = 40;
    for (const ParameterSpec& spec : head->parameters()) {
      at::Tensor value = test::sensible_weight(spec, ++seed);
      if (spec.shape.size() == 2) {
        value = value / std::sqrt(static_cast<double>(one.width));  // logits near 1
      }
      weights.push_back((spec.is_always_float32 ? value : value.to(type)).to(device.where));
      gradients.push_back(at::zeros(spec.shape, at::TensorOptions(device.where).dtype(at::kFloat)));
    }
    input = test::random_tensor({one.samples, one.tokens, one.width}, 8, type).to(device.where);
    targets = test::random_tokens({one.samples, one.tokens}, one.vocabulary, 9);
    if (targets.numel() > 1) {
      targets.view({-1}).slice(0, 1, c10::nullopt, 5).fill_(-1);  // these do not count
      targets.view({-1})[-1] = -100;
      targets.view({-1})[0] = one.vocabulary - 1;
    }
    targets = targets.to(device.where);
  }

  // `fresh`: gradients that hold nothing yet.
  Loss::Result backward(double scale = kScale, std::span<const uint8_t> fresh = {}) {
    return head->backward(weights, Gradients(gradients, fresh), {input}, {targets}, scale);
  }
  double sum_of(const Loss::Result& result) const {
    device.gpu->wait();
    EXPECT_NE(result.pending_sum, nullptr);
    return *result.pending_sum;
  }

  // The table comes last.
  size_t table() const { return gradients.size() - 1; }
  std::vector<uint8_t> fresh_table() const {
    std::vector<uint8_t> fresh(gradients.size(), 0);
    fresh.back() = 1;
    return fresh;
  }

  device::Device device;
  at::ScalarType type;
  bool is_llama;
  std::unique_ptr<Loss> head;
  Tensors weights, gradients;
  at::Tensor input, targets;
};

struct Reference {
  explicit Reference(const HeadBench& bench) {
    for (const at::Tensor& weight : bench.weights) {
      weights.push_back(weight.cpu().to(at::kDouble).set_requires_grad(true));
    }
    x = bench.input.cpu().to(at::kDouble).set_requires_grad(true);
    const at::Tensor normed = bench.is_llama
                                  ? test::reference_rms_norm(x, weights[0])
                                  : at::layer_norm(x, {x.size(-1)}, weights[0], weights[1], 1e-5);
    logits = at::matmul(normed.view({-1, x.size(-1)}), weights.back().t());
    const at::Tensor targets = bench.targets.cpu().view({-1});
    const at::Tensor losses =
        -at::log_softmax(logits, 1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor total = at::sum(losses * targets.ge(0).to(at::kDouble));
    sum = total.item<double>();
    (total * kScale).backward();
  }

  Tensors weights;
  at::Tensor x, logits;
  double sum = 0;
};

class GpuHeads : public test::OnGpu<testing::TestWithParam<HeadCase>> {};
class GpuHead : public test::OnGpu<> {};

}  // namespace

TEST_P(GpuHeads, LossAndGradientsMatchAFloat64Reference) {
  for (const bool is_deterministic : {false, true}) {
    HeadBench bench(GetParam(), gpu(is_deterministic));
    const Reference reference(bench);
    const double tolerance = test::chain_tolerance(bench.type);
    const Loss::Result result = bench.backward();
    EXPECT_NEAR(bench.sum_of(result), reference.sum, tolerance * reference.sum);
    EXPECT_EQ(result.input_gradients[0].sizes(), bench.input.sizes());
    EXPECT_EQ(result.input_gradients[0].scalar_type(), bench.type);
    EXPECT_LT(test::error_of(result.input_gradients[0], reference.x.grad()), tolerance);
    for (size_t i = 0; i < bench.gradients.size(); ++i) {
      EXPECT_LT(test::error_of(bench.gradients[i], reference.weights[i].grad()), tolerance)
          << bench.head->parameters()[i].name;
    }
    EXPECT_NEAR(bench.head->evaluate(bench.weights, {bench.input}, {bench.targets}),
                reference.sum,
                tolerance * reference.sum);
    const at::Tensor logits = bench.head->predict(bench.weights, {bench.input});
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_LT(test::error_of(logits.view(reference.logits.sizes()), reference.logits), tolerance);
    EXPECT_EQ(bench.head->count({bench.targets}), at::sum(bench.targets.ge(0)).item<int64_t>());
  }
}

TEST_P(GpuHeads, RepeatItsBitsWhereItIsDeterministic) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  HeadBench first(GetParam(), device), second(GetParam(), device);
  const Loss::Result one = first.backward(), other = second.backward();
  EXPECT_EQ(first.sum_of(one), second.sum_of(other));
  EXPECT_TRUE(at::equal(one.input_gradients[0], other.input_gradients[0]));
  for (size_t i = 0; i < first.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(first.gradients[i], second.gradients[i]))
        << first.head->parameters()[i].name;
  }
  EXPECT_EQ(first.head->evaluate(first.weights, {first.input}, {first.targets}),
            second.head->evaluate(second.weights, {second.input}, {second.targets}));
}

TEST_P(GpuHeads, ScaleTheGradientsAndNotTheSum) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  HeadBench bench(GetParam(), device), doubled(GetParam(), device);
  const Loss::Result one = bench.backward(kScale), other = doubled.backward(2 * kScale);
  EXPECT_EQ(bench.sum_of(one), doubled.sum_of(other));
  EXPECT_LT(test::error_of(other.input_gradients[0], 2 * one.input_gradients[0]), 1e-3);
  for (size_t i = 0; i < bench.gradients.size(); ++i) {
    EXPECT_LT(test::error_of(doubled.gradients[i], 2 * bench.gradients[i]), 1e-3)
        << bench.head->parameters()[i].name;
  }
}

TEST_P(GpuHeads, OverwriteATableGradientThatIsFreshAndAddOtherwise) {
  for (const bool is_deterministic : {false, true}) {
    const device::Device& device = gpu(is_deterministic);
    HeadBench clean(GetParam(), device), begun(GetParam(), device);
    clean.backward();
    ASSERT_TRUE(clean.head->parameters()[clean.table()].is_gradient_overwritten);
    begun.gradients[begun.table()].fill_(NAN);  // an addition would show
    begun.backward(kScale, begun.fresh_table());
    for (size_t i = 0; i < clean.gradients.size(); ++i) {
      EXPECT_LT(test::error_of(begun.gradients[i], clean.gradients[i]), 1e-5)
          << clean.head->parameters()[i].name;
    }
    begun.backward();
    for (size_t i = 0; i < clean.gradients.size(); ++i) {
      EXPECT_LT(test::error_of(begun.gradients[i], 2 * clean.gradients[i]), 1e-5)
          << clean.head->parameters()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuHeads, testing::ValuesIn(head_cases()), head_name);

TEST_F(GpuHead, AddsUpOverMicroBatchesWithOneWait) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const device::Device& device = gpu(/*is_deterministic=*/true);
    const HeadCase one{type, 64, 4, 32, 257};
    HeadBench whole(one, device), parts(one, device);
    const Loss::Result expected = whole.backward();
    std::vector<Loss::Result> results;
    Tensors input_gradients;
    for (int64_t i = 0; i < 4; ++i) {
      results.push_back(parts.head->backward(parts.weights,
                                             parts.gradients,
                                             {parts.input.narrow(0, i, 1)},
                                             {parts.targets.narrow(0, i, 1)},
                                             kScale));
      input_gradients.push_back(results.back().input_gradients[0]);
    }
    double sum = 0;
    for (const Loss::Result& result : results) {
      sum += parts.sum_of(result);
    }
    const double tolerance = test::chain_tolerance(type);
    EXPECT_NEAR(sum, whole.sum_of(expected), tolerance * sum);
    EXPECT_LT(test::error_of(at::cat(input_gradients), expected.input_gradients[0]), tolerance);
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      EXPECT_LT(test::error_of(parts.gradients[i], whole.gradients[i]), tolerance);
    }
  }
}

TEST_F(GpuHead, GivesZeroWhereNoTargetCounts) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    HeadBench bench({type, 64, 3, 17, 101}, gpu(/*is_deterministic=*/false));
    bench.targets.fill_(-1);
    const Loss::Result result = bench.backward();
    EXPECT_EQ(bench.sum_of(result), 0);
    EXPECT_EQ(bench.head->count({bench.targets}), 0);
    EXPECT_EQ(at::count_nonzero(result.input_gradients[0]).item<int64_t>(), 0);
    for (const at::Tensor& gradient : bench.gradients) {
      EXPECT_EQ(at::count_nonzero(gradient).item<int64_t>(), 0);
    }
    EXPECT_EQ(bench.head->evaluate(bench.weights, {bench.input}, {bench.targets}), 0);
  }
}

// A GiB of logits at most: 5,504 rows of 50,257 floats are two ranges, 2,752 are one. The first
// range overwrites a fresh gradient, the second adds.
TEST_F(GpuHead, AddsUpOverRangesOfRows) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const HeadCase one{at::kFloat, 64, 2, 2752, 50257};
  HeadBench whole(one, device), halves(one, device);
  whole.gradients[whole.table()].fill_(NAN);
  const Loss::Result expected = whole.backward(kScale, whole.fresh_table());
  double sum = 0;
  double evaluated = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const Tensors input{halves.input.narrow(0, i, 1)};
    const Tensors targets{halves.targets.narrow(0, i, 1)};
    const Loss::Result result =
        halves.head->backward(halves.weights, halves.gradients, input, targets, kScale);
    sum += halves.sum_of(result);
    evaluated += halves.head->evaluate(halves.weights, input, targets);
    EXPECT_LT(
        test::error_of(result.input_gradients[0], expected.input_gradients[0].narrow(0, i, 1)),
        1e-5);
  }
  EXPECT_NEAR(whole.sum_of(expected), sum, 1e-6 * sum);
  EXPECT_NEAR(whole.head->evaluate(whole.weights, {whole.input}, {whole.targets}),
              evaluated,
              1e-6 * evaluated);
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    EXPECT_LT(test::error_of(whole.gradients[i], halves.gradients[i]), 1e-5)
        << whole.head->parameters()[i].name;
  }
}

}  // namespace penstock::model
