// The GPU's layers against the same arithmetic in float64 on the CPU, with LibTorch's autograd and
// the same dropout masks.
#include <cmath>

#include "penstock/model/dropout.h"

#include "gpu/layer_bench.h"
#include "model/llama_reference.h"

namespace penstock::model {

namespace {

using test::gpu;
using test::LayerBench;
using test::LayerCase;

// Read off by dropping ones.
at::Tensor mask_like(at::IntArrayRef sizes, double share, const Pass& pass, uint32_t site) {
  at::Tensor mask = at::ones(sizes, at::kFloat);
  apply_dropout(mask, {share, pass, site});
  return mask.to(at::kDouble);
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  return at::layer_norm(x, {x.size(-1)}, scale, shift, 1e-5);
}

at::Tensor attention(const Tensors& w,
                     const at::Tensor& x,
                     const LayerCase& one,
                     const Pass& pass) {
  const int64_t b = x.size(0), t = x.size(1), c = x.size(2), h = one.heads;
  const at::Tensor qkv = at::matmul(norm(x, w[0], w[1]), w[2]) + w[3];
  const auto head = [&](int64_t part) {
    return qkv.narrow(2, part * c, c).reshape({b, t, h, c / h}).transpose(1, 2);
  };
  at::Tensor scores =
      at::matmul(head(0), head(1).transpose(2, 3)) / std::sqrt(static_cast<double>(c / h));
  scores = scores.masked_fill(at::ones({t, t}, at::kBool).triu(1), -INFINITY);
  const at::Tensor weights =
      at::softmax(scores, 3) * mask_like({b, h, t, t}, one.dropout, pass, /*site=*/1);
  const at::Tensor mixed = at::matmul(weights, head(2)).transpose(1, 2).reshape({b, t, c});
  const at::Tensor out = at::matmul(mixed, w[4]) + w[5];
  return x + out * mask_like({b, t, c}, one.dropout, pass, /*site=*/0);
}

at::Tensor mlp(const Tensors& w, const at::Tensor& x, const LayerCase& one, const Pass& pass) {
  const at::Tensor hidden = at::matmul(norm(x, w[0], w[1]), w[2]) + w[3];
  const at::Tensor out = at::matmul(at::gelu(hidden, "tanh"), w[4]) + w[5];
  return x + out * mask_like(x.sizes(), one.dropout, pass, /*site=*/0);
}

at::Tensor embedding(const Tensors& w,
                     const at::Tensor& tokens,
                     const LayerCase& one,
                     const Pass& pass) {
  const at::Tensor x = at::embedding(w[0], tokens) + w[1].narrow(0, 0, tokens.size(1));
  return x * mask_like(x.sizes(), one.dropout, pass, /*site=*/0);
}

at::Tensor output_of(const Tensors& w,
                     const at::Tensor& x,
                     const LayerCase& one,
                     const Pass& pass) {
  if (one.is_llama()) {
    return one.takes_tokens()              ? at::embedding(w[0], x)
           : one.part == "llama_attention" ? test::reference_llama_attention(w, x, one.heads)
                                           : test::reference_llama_mlp(w, x);
  }
  return one.takes_tokens()        ? embedding(w, x, one, pass)
         : one.part == "attention" ? attention(w, x, one, pass)
                                   : mlp(w, x, one, pass);
}

// What must come out of a bench, from the numbers that it really holds.
struct Reference {
  Reference(const LayerBench& bench, const LayerCase& one) {
    for (const at::Tensor& weight : bench.weights) {
      weights.push_back(weight.cpu().to(at::kDouble).set_requires_grad(true));
    }
    x = bench.input[0].cpu();
    if (!one.takes_tokens()) {
      x = x.to(at::kDouble).set_requires_grad(true);
    }
    output = output_of(weights, x, one, bench.pass);
    output.backward(bench.output_gradient[0].cpu().to(at::kDouble));
  }

  Tensors weights;  // with their gradients
  at::Tensor x, output;
};

void expect_gradients(const LayerBench& bench, const Tensors& dx, const Reference& reference) {
  const double tolerance = test::chain_tolerance(bench.type);
  if (reference.x.is_floating_point()) {
    EXPECT_EQ(dx[0].scalar_type(), bench.type);
    EXPECT_EQ(dx[0].sizes(), bench.input[0].sizes());
    EXPECT_LT(test::error_of(dx[0], reference.x.grad()), tolerance) << "gradient of the input";
  } else {
    EXPECT_FALSE(dx[0].defined());
  }
  for (size_t i = 0; i < bench.gradients.size(); ++i) {
    EXPECT_LT(test::error_of(bench.gradients[i], reference.weights[i].grad()), tolerance)
        << bench.layer->parameters()[i].name;
  }
}

class GpuLayerGradients : public test::OnGpu<testing::TestWithParam<LayerCase>> {};

}  // namespace

TEST_P(GpuLayerGradients, MatchAFloat64ReferenceInEverySaveMode) {
  for (const bool is_deterministic : {false, true}) {
    SCOPED_TRACE(is_deterministic ? "deterministic" : "fast");
    const device::Device& device = gpu(is_deterministic);
    const LayerBench plain(GetParam(), device);
    const Reference reference(plain, GetParam());
    EXPECT_LT(test::error_of(plain.forward(nullptr)[0], reference.output),
              test::chain_tolerance(plain.type));
    for (int32_t mode = 0; mode < plain.save_modes(); ++mode) {
      SCOPED_TRACE(plain.layer->save_modes()[static_cast<size_t>(mode)].name);
      LayerBench bench(GetParam(), device);
      Saved saved{.mode = mode};
      EXPECT_LT(test::error_of(bench.forward(&saved)[0], reference.output),
                test::chain_tolerance(bench.type));
      const Tensors dx = bench.layer->backward(bench.weights,
                                               bench.gradients,
                                               bench.input,
                                               std::move(saved),
                                               bench.output_gradient,
                                               bench.pass);
      expect_gradients(bench, dx, reference);
      LayerBench again(GetParam(), device);
      expect_gradients(again, again.backward(mode, /*without_output=*/true), reference);
    }
  }
}

// Timing runs every GEMM several times over the gradients; afterwards all is as it should be.
TEST_P(GpuLayerGradients, MatchOnceAlgorithmsHaveBeenTimed) {
  LayerCase one = GetParam();
  one.samples += 2;  // a shape that no other test has chosen for
  const device::Device& device = gpu(/*is_deterministic=*/false);
  LayerBench bench(one, device);
  device::set_timing(device, true);
  for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
    bench.backward(mode);
    bench.backward(mode, /*without_output=*/true);
    bench.forward(nullptr);
  }
  device::set_timing(device, false);
  const Reference reference(bench, one);
  EXPECT_LT(test::error_of(bench.forward(nullptr)[0], reference.output),
            test::chain_tolerance(bench.type));
  for (int32_t mode = 0; mode < bench.save_modes(); ++mode) {
    SCOPED_TRACE(bench.layer->save_modes()[static_cast<size_t>(mode)].name);
    LayerBench fresh(one, device);
    expect_gradients(fresh, fresh.backward(mode), reference);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GpuLayerGradients,
                         testing::ValuesIn(test::layer_cases()),
                         test::case_name);

}  // namespace penstock::model
