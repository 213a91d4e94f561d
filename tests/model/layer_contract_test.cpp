// What every layer must keep, on every kind of layer: the same bits with and without keeping, the
// bytes it says it keeps, gradients that add up, and gradients equal to a float64 reference.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/dropout.h"
#include "penstock/model/gpt2.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/parameters.h"

#include "support/random_tensor.h"

namespace penstock::model {

namespace {

using test::random_tensor;
using test::random_tokens;
using test::relative_error;

constexpr Gpt2Shape kShape{.layers = 1, .width = 48, .heads = 4, .context = 20, .vocabulary = 61};

struct Case {
  std::string name;
  at::ScalarType type;
  double dropout;
};

std::unique_ptr<Layer> make_layer(const Case& test_case) {
  Gpt2Shape shape = kShape;
  shape.dropout = test_case.dropout;
  if (test_case.name == "embedding") {
    return make_gpt2_embedding(shape);
  }
  if (test_case.name == "attention") {
    return make_gpt2_attention(shape, 0);
  }
  if (test_case.name == "mlp") {
    return make_gpt2_mlp(shape, 0);
  }
  return module_layer("linear", torch::nn::Linear(shape.width, shape.width));
}

// One layer with weights and gradients of its own.
struct Bench {
  explicit Bench(const Case& test_case) : type(test_case.type), layer(make_layer(test_case)) {
    uint64_t seed = 100;
    for (const ParameterSpec& spec : layer->parameters()) {
      // Norm scales near 1, as in training; the rest of a size that keeps activations near 1.
      at::Tensor value = random_tensor(spec.shape, ++seed) * 0.2;
      if (spec.name.ends_with("ln_1.weight") || spec.name.ends_with("ln_2.weight")) {
        value += 1;
      }
      master.push_back(value);
      weights.push_back(spec.is_always_float32 ? value : value.to(type));
      gradients.push_back(at::zeros(spec.shape, at::kFloat));
    }
    input = {test_case.name == "embedding"
                 ? random_tokens({3, kShape.context}, kShape.vocabulary, 7)
                 : random_tensor({3, kShape.context, kShape.width}, 8, type)};
    output_gradient = {random_tensor({3, kShape.context, kShape.width}, 9, type)};
  }

  Tensors backward(int32_t way = 0, bool without_output = false) {
    Saved saved{.way = way, .without_output = without_output};
    layer->forward(weights, input, pass, &saved);
    return layer->backward(weights, gradients, input, std::move(saved), output_gradient, pass);
  }

  at::ScalarType type;
  std::unique_ptr<Layer> layer;
  Tensors master, weights, gradients, input, output_gradient;
  Pass pass{.seed = 5, .step = 6, .first_sample = 12, .layer = 2};
};

std::string case_name(const testing::TestParamInfo<Case>& row) {
  return row.param.name + (row.param.type == at::kFloat ? "_float32" : "_bfloat16") +
         (row.param.dropout > 0 ? "_dropout" : "");
}

class LayerContract : public testing::TestWithParam<Case> {};

}  // namespace

TEST_P(LayerContract, KeepingDoesNotChangeABit) {
  Bench bench(GetParam());
  Saved saved;
  const Tensors kept = bench.layer->forward(bench.weights, bench.input, bench.pass, &saved);
  const Tensors dropped = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  const Tensors again = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  EXPECT_TRUE(at::equal(kept[0], dropped[0]));
  EXPECT_TRUE(at::equal(dropped[0], again[0]));
}

TEST_P(LayerContract, KeepsAsManyBytesAsItSaysInEveryWay) {
  Bench bench(GetParam());
  bench.backward();  // whatever is made once is made now
  const TensorShape shape{bench.input[0].sizes().vec(), bench.input[0].scalar_type()};
  for (int32_t way = 0; way < static_cast<int32_t>(bench.layer->ways().size()); ++way) {
    SCOPED_TRACE(bench.layer->ways()[static_cast<size_t>(way)].name);
    const LayerSize size = bench.layer->size_for(shape, bench.type, way);
    const int64_t before = memory::usage().current_bytes;
    Saved saved{.way = way};
    Tensors output = bench.layer->forward(bench.weights, bench.input, bench.pass, &saved);
    EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes);
    EXPECT_EQ(output[0].sizes().vec(), size.output.sizes);
    EXPECT_EQ(output[0].scalar_type(), size.output.type);
    if (!bench.layer->ways()[static_cast<size_t>(way)].needs_output) {
      output.clear();
      EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes - size.output.bytes());
    }
  }
}

TEST_P(LayerContract, EveryWayGivesTheSameBits) {
  Bench first(GetParam());
  const Tensors expected = first.backward();
  for (int32_t way = 0; way < static_cast<int32_t>(first.layer->ways().size()); ++way) {
    SCOPED_TRACE(first.layer->ways()[static_cast<size_t>(way)].name);
    for (const bool without_output : {false, true}) {
      if (without_output && first.layer->ways()[static_cast<size_t>(way)].needs_output) {
        continue;
      }
      Bench bench(GetParam());
      const Tensors gradient = bench.backward(way, without_output);
      EXPECT_EQ(gradient[0].defined(), expected[0].defined());
      EXPECT_TRUE(!gradient[0].defined() || at::equal(gradient[0], expected[0]));
      for (size_t i = 0; i < bench.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(bench.gradients[i], first.gradients[i]))
            << bench.layer->parameters()[i].name;
      }
    }
  }
}

TEST_P(LayerContract, LeavesItsOutputOutWhenAsked) {
  Bench bench(GetParam());
  if (bench.layer->ways()[0].needs_output) {
    GTEST_SKIP() << "this kind of layer needs its output";
  }
  bench.backward();
  const TensorShape shape{bench.input[0].sizes().vec(), bench.input[0].scalar_type()};
  const LayerSize size = bench.layer->size_for(shape, bench.type);
  const int64_t before = memory::usage().current_bytes;
  Saved saved{.without_output = true};
  EXPECT_TRUE(bench.layer->forward(bench.weights, bench.input, bench.pass, &saved).empty());
  EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes - size.output.bytes());
}

TEST_P(LayerContract, KeepsNothingWithoutSaved) {
  Bench bench(GetParam());
  bench.backward();
  const int64_t before = memory::usage().current_bytes;
  const Tensors output = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  EXPECT_EQ(memory::usage().current_bytes - before, static_cast<int64_t>(output[0].nbytes()));
}

TEST_P(LayerContract, BackwardAddsToGradients) {
  Bench once(GetParam()), twice(GetParam());
  once.backward();
  twice.backward();
  twice.backward();
  for (size_t i = 0; i < once.gradients.size(); ++i) {
    EXPECT_LT(relative_error(twice.gradients[i], 2 * once.gradients[i]), 1e-6)
        << once.layer->parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerContract,
                         testing::Values(Case{"embedding", at::kFloat, 0},
                                         Case{"embedding", at::kFloat, 0.2},
                                         Case{"embedding", at::kBFloat16, 0.2},
                                         Case{"attention", at::kFloat, 0},
                                         Case{"attention", at::kFloat, 0.2},
                                         Case{"attention", at::kBFloat16, 0},
                                         Case{"attention", at::kBFloat16, 0.2},
                                         Case{"mlp", at::kFloat, 0},
                                         Case{"mlp", at::kFloat, 0.2},
                                         Case{"mlp", at::kBFloat16, 0},
                                         Case{"mlp", at::kBFloat16, 0.2},
                                         Case{"module", at::kFloat, 0}),
                         case_name);

namespace {

// The layers again, written with differentiable LibTorch operations in float64. Dropout masks are
// read off by dropping ones.
at::Tensor mask_like(at::IntArrayRef shape, double share, const Pass& pass, uint32_t site) {
  at::Tensor mask = at::ones(shape, at::kFloat);
  apply_dropout(mask, {share, pass, site});
  return mask.to(at::kDouble);
}

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  return at::layer_norm(x, {x.size(-1)}, scale, shift, 1e-5);
}

at::Tensor reference_attention(const Tensors& w,
                               const at::Tensor& x,
                               double dropout,
                               const Pass& pass) {
  const int64_t b = x.size(0), t = x.size(1), c = x.size(2), h = kShape.heads;
  const at::Tensor qkv = at::matmul(reference_norm(x, w[0], w[1]), w[2]) + w[3];
  const auto head = [&](int64_t part) {
    return qkv.narrow(2, part * c, c).reshape({b, t, h, c / h}).transpose(1, 2);
  };
  at::Tensor scores = at::matmul(head(0), head(1).transpose(2, 3)) / std::sqrt(double(c / h));
  scores = scores.masked_fill(at::ones({t, t}, at::kBool).triu(1), -INFINITY);
  at::Tensor probabilities = at::softmax(scores, 3);
  probabilities = probabilities * mask_like({b, h, t, t}, dropout, pass, /*site=*/1);
  const at::Tensor mixed = at::matmul(probabilities, head(2)).transpose(1, 2).reshape({b, t, c});
  const at::Tensor out = at::matmul(mixed, w[4]) + w[5];
  return x + out * mask_like({b, t, c}, dropout, pass, /*site=*/0);
}

at::Tensor reference_mlp(const Tensors& w, const at::Tensor& x, double dropout, const Pass& pass) {
  const at::Tensor hidden = at::matmul(reference_norm(x, w[0], w[1]), w[2]) + w[3];
  const at::Tensor out = at::matmul(at::gelu(hidden, "tanh"), w[4]) + w[5];
  return x + out * mask_like(x.sizes(), dropout, pass, /*site=*/0);
}

at::Tensor reference_embedding(const Tensors& w,
                               const at::Tensor& tokens,
                               double dropout,
                               const Pass& pass) {
  const at::Tensor x = at::embedding(w[0], tokens) + w[1].narrow(0, 0, tokens.size(1));
  return x * mask_like(x.sizes(), dropout, pass, /*site=*/0);
}

class LayerGradients : public testing::TestWithParam<Case> {};

}  // namespace

TEST_P(LayerGradients, MatchAFloat64Reference) {
  const Case& test_case = GetParam();
  Bench bench(test_case);
  const bool has_input_gradient = test_case.name != "embedding";
  Tensors wide;
  for (const at::Tensor& weight : bench.weights) {
    wide.push_back(weight.to(at::kDouble).set_requires_grad(true));
  }
  const at::Tensor x =
      has_input_gradient ? bench.input[0].to(at::kDouble).set_requires_grad(true) : bench.input[0];
  const auto reference = test_case.name == "attention" ? reference_attention
                         : test_case.name == "mlp"     ? reference_mlp
                                                       : reference_embedding;
  const at::Tensor expected = reference(wide, x, test_case.dropout, bench.pass);
  expected.backward(bench.output_gradient[0].to(at::kDouble));

  const double tolerance = test_case.type == at::kFloat ? 2e-6 : 1.5e-2;
  const Tensors output = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  EXPECT_LT(relative_error(output[0], expected.detach()), tolerance);
  const Tensors input_gradient = bench.backward();
  if (has_input_gradient) {
    EXPECT_LT(relative_error(input_gradient[0], x.grad()), tolerance);
  } else {
    EXPECT_FALSE(input_gradient[0].defined());
  }
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_LT(relative_error(bench.gradients[i], wide[i].grad()), tolerance)
        << bench.layer->parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerGradients,
                         testing::Values(Case{"embedding", at::kFloat, 0.2},
                                         Case{"embedding", at::kBFloat16, 0},
                                         Case{"attention", at::kFloat, 0},
                                         Case{"attention", at::kFloat, 0.2},
                                         Case{"attention", at::kBFloat16, 0},
                                         Case{"mlp", at::kFloat, 0},
                                         Case{"mlp", at::kFloat, 0.2},
                                         Case{"mlp", at::kBFloat16, 0}),
                         case_name);

}  // namespace penstock::model
