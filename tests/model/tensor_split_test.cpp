// The tensor split that families declare: what the ranks' shards of a half-block make adds up to what the
// whole makes.
#include <functional>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/model/chain.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/llama/llama.h"

#include "support/random_tensor.h"

namespace penstock::model {

namespace {

// With zeros where other ranks' shards are. They take no part: no head and no feature is made of them.
at::Tensor shard_of(const at::Tensor& whole, const TensorCut& cut, int32_t rank, int32_t ranks) {
  if (cut.dim < 0) {
    return whole;
  }
  at::Tensor shard = at::zeros_like(whole);
  for (const TensorRange& range : tensor_ranges(cut, whole.size(cut.dim), rank, ranks)) {
    shard.narrow(cut.dim, range.first, range.count())
        .copy_(whole.narrow(cut.dim, range.first, range.count()));
  }
  return shard;
}

// How far the sum over all ranks is from the whole, as a part of its largest element.
double error_of_sum(const Layer& layer,
                    const at::Tensor& x,
                    int32_t ranks,
                    const std::function<TensorCut(const ParameterSpec&)>& cut_of) {
  Tensors weights, zeros;
  for (const ParameterSpec& spec : layer.parameters()) {
    weights.push_back(at::randn(spec.shape) * 0.3);
    zeros.push_back(spec.cut.dim < 0 ? weights.back() : at::zeros(spec.shape));
  }
  // What is not cut and is added once: the residual, a bias after the sum.
  const at::Tensor common = layer.forward(zeros, {x}, {}, nullptr)[0];
  at::Tensor sum = common.clone();
  for (int32_t rank = 0; rank < ranks; ++rank) {
    Tensors shards;
    for (size_t i = 0; i < weights.size(); ++i) {
      shards.push_back(shard_of(weights[i], cut_of(layer.parameters()[i]), rank, ranks));
    }
    sum += layer.forward(shards, {x}, {}, nullptr)[0] - common;
  }
  const at::Tensor whole = layer.forward(weights, {x}, {}, nullptr)[0];
  return ((sum - whole).abs().max() / whole.abs().max()).item<double>();
}

TensorCut declared(const ParameterSpec& spec) {
  return spec.cut;
}

void expect_split(const Chain& chain, int64_t width) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 7, width});
  for (const int32_t ranks : {2, 3, 4}) {
    for (int64_t i = 1; i < chain.size(); ++i) {  // layer 0 embeds
      EXPECT_LT(error_of_sum(chain.layer(i), x, ranks, declared), 1e-5)
          << chain.layer(i).name() << " on " << ranks;
    }
  }
}

}  // namespace

TEST(TensorSplit, OfGpt2AddsUpToTheWhole) {
  expect_split(make_gpt2({.layers = 1, .width = 60, .heads = 5, .context = 16, .vocabulary = 31}),
               60);
}

TEST(TensorSplit, OfLlamaAddsUpToTheWhole) {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    expect_split(make_llama({.layers = 1,
                             .width = 48,
                             .heads = 6,
                             .kv_heads = kv_heads,
                             .hidden = 20,
                             .context = 16,
                             .vocabulary = 31}),
                 48);
  }
}

// A split that gives a rank other heads of keys than its queries read does not add up.
TEST(TensorSplit, IsNoticedWhereItIsWrong) {
  const Chain chain = make_llama({.layers = 1,
                                  .width = 48,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .hidden = 20,
                                  .context = 16,
                                  .vocabulary = 31});
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 7, 48});
  EXPECT_LT(error_of_sum(chain.layer(1), x, 3, declared), 1e-5);
  EXPECT_GT(error_of_sum(chain.layer(1),
                         x,
                         3,
                         [](const ParameterSpec& spec) {
                           TensorCut cut = spec.cut;
                           cut.readers = 1;
                           return cut;
                         }),
            1e-2);
}

}  // namespace penstock::model
