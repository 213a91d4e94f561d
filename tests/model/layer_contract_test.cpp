// What every layer must keep, on every kind of layer: the same bits with and without keeping, the
// bytes it says it keeps, gradients that add up, and gradients equal to a float64 reference.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/dropout.h"

#include "model/layer_bench.h"
#include "model/llama_reference.h"

namespace penstock::model {

namespace {

using test::relative_error;

class LayerContract : public testing::TestWithParam<LayerCase> {};

}  // namespace

TEST_P(LayerContract, KeepingDoesNotChangeABit) {
  LayerBench bench(GetParam());
  Saved saved;
  const Tensors kept = bench.layer->forward(bench.weights, bench.input, bench.pass, &saved);
  const Tensors dropped = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  const Tensors again = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  EXPECT_TRUE(at::equal(kept[0], dropped[0]));
  EXPECT_TRUE(at::equal(dropped[0], again[0]));
}

TEST_P(LayerContract, KeepsAsManyBytesAsItSaysInEverySaveMode) {
  LayerBench bench(GetParam());
  bench.backward();  // whatever is made once is made now
  const Shapes shapes = bench.input_shapes();
  for (int32_t mode = 0; mode < static_cast<int32_t>(bench.layer->save_modes().size()); ++mode) {
    SCOPED_TRACE(bench.layer->save_modes()[static_cast<size_t>(mode)].name);
    const LayerSize size = bench.layer->size_for(shapes, bench.type, mode);
    const int64_t before = memory::usage().current_bytes;
    Saved saved{.mode = mode};
    Tensors output = bench.layer->forward(bench.weights, bench.input, bench.pass, &saved);
    EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes);
    ASSERT_EQ(size.outputs.size(), output.size());
    EXPECT_EQ(output[0].sizes().vec(), size.outputs[0].sizes);
    EXPECT_EQ(output[0].scalar_type(), size.outputs[0].type);
    if (!bench.layer->save_modes()[static_cast<size_t>(mode)].needs_output) {
      output.clear();
      EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes - bytes_of(size.outputs));
    }
  }
}

TEST_P(LayerContract, EverySaveModeGivesTheSameBits) {
  LayerBench first(GetParam());
  const Tensors expected = first.backward();
  for (int32_t mode = 0; mode < static_cast<int32_t>(first.layer->save_modes().size()); ++mode) {
    SCOPED_TRACE(first.layer->save_modes()[static_cast<size_t>(mode)].name);
    for (const bool without_output : {false, true}) {
      if (without_output && first.layer->save_modes()[static_cast<size_t>(mode)].needs_output) {
        continue;
      }
      LayerBench bench(GetParam());
      const Tensors gradient = bench.backward(mode, without_output);
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
  LayerBench bench(GetParam());
  if (bench.layer->save_modes()[0].needs_output) {
    GTEST_SKIP() << "this kind of layer needs its output";
  }
  bench.backward();
  const Shapes shapes = bench.input_shapes();
  const LayerSize size = bench.layer->size_for(shapes, bench.type);
  const int64_t before = memory::usage().current_bytes;
  Saved saved{.without_output = true};
  EXPECT_TRUE(bench.layer->forward(bench.weights, bench.input, bench.pass, &saved).empty());
  EXPECT_EQ(memory::usage().current_bytes - before, size.kept_bytes - bytes_of(size.outputs));
}

TEST_P(LayerContract, KeepsNothingWithoutSaved) {
  LayerBench bench(GetParam());
  bench.backward();
  const int64_t before = memory::usage().current_bytes;
  const Tensors output = bench.layer->forward(bench.weights, bench.input, bench.pass, nullptr);
  EXPECT_EQ(memory::usage().current_bytes - before, static_cast<int64_t>(output[0].nbytes()));
}

TEST_P(LayerContract, BackwardAddsToGradients) {
  LayerBench once(GetParam()), twice(GetParam());
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
                         testing::Values(LayerCase{"embedding", at::kFloat, 0},
                                         LayerCase{"embedding", at::kFloat, 0.2},
                                         LayerCase{"embedding", at::kBFloat16, 0.2},
                                         LayerCase{"attention", at::kFloat, 0},
                                         LayerCase{"attention", at::kFloat, 0.2},
                                         LayerCase{"attention", at::kBFloat16, 0},
                                         LayerCase{"attention", at::kBFloat16, 0.2},
                                         LayerCase{"mlp", at::kFloat, 0},
                                         LayerCase{"mlp", at::kFloat, 0.2},
                                         LayerCase{"mlp", at::kBFloat16, 0},
                                         LayerCase{"mlp", at::kBFloat16, 0.2},
                                         LayerCase{"llama_embedding", at::kFloat, 0},
                                         LayerCase{"llama_embedding", at::kBFloat16, 0},
                                         LayerCase{"llama_attention", at::kFloat, 0},
                                         LayerCase{"llama_attention", at::kBFloat16, 0},
                                         LayerCase{"llama_attention_mha", at::kFloat, 0},
                                         LayerCase{"llama_attention_mqa", at::kFloat, 0},
                                         LayerCase{"llama_attention_mqa", at::kBFloat16, 0},
                                         LayerCase{"llama_mlp", at::kFloat, 0},
                                         LayerCase{"llama_mlp", at::kBFloat16, 0},
                                         LayerCase{"module", at::kFloat, 0},
                                         LayerCase{"module_chain", at::kFloat, 0},
                                         LayerCase{"module_dropout", at::kFloat, 0.2},
                                         LayerCase{"module_embedding", at::kFloat, 0},
                                         LayerCase{"module_tanh", at::kFloat, 0}),
                         layer_case_name);

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
  const int64_t b = x.size(0), t = x.size(1), c = x.size(2), h = kBenchShape.heads;
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

at::Tensor reference_llama_attention(const Tensors& w, const at::Tensor& x, double, const Pass&) {
  return test::reference_llama_attention(w, x, kBenchShape.heads);
}

at::Tensor reference_llama_mlp(const Tensors& w, const at::Tensor& x, double, const Pass&) {
  return test::reference_llama_mlp(w, x);
}

at::Tensor reference_llama_embedding(const Tensors& w,
                                     const at::Tensor& tokens,
                                     double,
                                     const Pass&) {
  return at::embedding(w[0], tokens);
}

class LayerGradients : public testing::TestWithParam<LayerCase> {};

}  // namespace

TEST_P(LayerGradients, MatchAFloat64Reference) {
  const LayerCase& test_case = GetParam();
  LayerBench bench(test_case);
  const bool has_input_gradient = !test_case.takes_tokens();
  Tensors wide;
  for (const at::Tensor& weight : bench.weights) {
    wide.push_back(weight.to(at::kDouble).set_requires_grad(true));
  }
  const at::Tensor x =
      has_input_gradient ? bench.input[0].to(at::kDouble).set_requires_grad(true) : bench.input[0];
  const std::map<std::string, decltype(&reference_mlp)> references{
      {"embedding", reference_embedding},
      {"attention", reference_attention},
      {"mlp", reference_mlp},
      {"llama_embedding", reference_llama_embedding},
      {"llama_attention", reference_llama_attention},
      {"llama_attention_mha", reference_llama_attention},
      {"llama_attention_mqa", reference_llama_attention},
      {"llama_mlp", reference_llama_mlp}};
  const auto reference = references.at(test_case.name);
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
                         testing::Values(LayerCase{"embedding", at::kFloat, 0.2},
                                         LayerCase{"embedding", at::kBFloat16, 0},
                                         LayerCase{"attention", at::kFloat, 0},
                                         LayerCase{"attention", at::kFloat, 0.2},
                                         LayerCase{"attention", at::kBFloat16, 0},
                                         LayerCase{"mlp", at::kFloat, 0},
                                         LayerCase{"mlp", at::kFloat, 0.2},
                                         LayerCase{"mlp", at::kBFloat16, 0},
                                         LayerCase{"llama_embedding", at::kFloat, 0},
                                         LayerCase{"llama_embedding", at::kBFloat16, 0},
                                         LayerCase{"llama_attention", at::kFloat, 0},
                                         LayerCase{"llama_attention", at::kBFloat16, 0},
                                         LayerCase{"llama_attention_mha", at::kFloat, 0},
                                         LayerCase{"llama_attention_mqa", at::kFloat, 0},
                                         LayerCase{"llama_attention_mqa", at::kBFloat16, 0},
                                         LayerCase{"llama_mlp", at::kFloat, 0},
                                         LayerCase{"llama_mlp", at::kBFloat16, 0}),
                         layer_case_name);

}  // namespace penstock::model
