#include "penstock/model/causal_attention.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>

namespace penstock::model {

namespace {

// Views of [B, T, features] as query, key and value, each [B, heads, T, D].
struct Heads {
  at::Tensor query, key, value;

  Heads sample(int64_t index) const {  // each [H, T, D]
    return {query.select(0, index), key.select(0, index), value.select(0, index)};
  }
};

Heads split_heads(const at::Tensor& qkv, const HeadCounts& heads) {
  const at::Tensor all =
      qkv.view({qkv.size(0), qkv.size(1), -1, heads.width_of(qkv.size(2))}).transpose(1, 2);
  return {all.narrow(1, 0, heads.queries),
          all.narrow(1, heads.queries, heads.keys),
          all.narrow(1, heads.queries + heads.keys, heads.keys)};
}

// Keys or values of one sample, [heads, T, D], for every head of queries: a copy, unless each has
// one of its own.
at::Tensor for_all_heads(const at::Tensor& x, int64_t group) {
  return group == 1 ? x
                    : x.unsqueeze(1)
                          .expand({-1, group, -1, -1})
                          .reshape({x.size(0) * group, x.size(1), x.size(2)});
}

// A head of keys or values gets the sum over the heads that read it.
at::Tensor sum_of_group(const at::Tensor& x, int64_t group) {
  return group == 1 ? x : x.view({-1, group, x.size(1), x.size(2)}).sum(1);
}

// [B T, C] as [B, H, T, D]: how values and their gradient lie in memory.
at::Tensor as_heads(const at::Tensor& rows, const at::Tensor& qkv, int64_t heads) {
  return rows.view({qkv.size(0), qkv.size(1), heads, -1}).transpose(1, 2);
}

at::Tensor as_rows(const at::Tensor& values) {
  return values.transpose(1, 2).reshape({values.size(0) * values.size(2), -1});
}

// Without dropout on the probabilities LibTorch's fused attention serves: it never holds the [T, T]
// matrix, and its statistics are one number per row.
MixedHeads attend_fused(const at::Tensor& qkv, int64_t heads) {
  const Heads in = split_heads(qkv, {heads, heads});
  const auto [values, statistics] = at::_scaled_dot_product_flash_attention_for_cpu(
      in.query, in.key, in.value, /*dropout_p=*/0, /*is_causal=*/true);
  return {as_rows(values), statistics};
}

at::Tensor attend_fused_backward(at::Tensor qkv,
                                 MixedHeads mixed,
                                 at::Tensor gradient,
                                 int64_t heads) {
  Heads parts;
  {
    const Heads in = split_heads(qkv, {heads, heads});
    std::tie(parts.query, parts.key, parts.value) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(as_heads(gradient, qkv, heads),
                                                                 in.query,
                                                                 in.key,
                                                                 in.value,
                                                                 as_heads(mixed.values, qkv, heads),
                                                                 mixed.statistics,
                                                                 /*dropout_p=*/0,
                                                                 /*is_causal=*/true);
  }
  mixed = {};
  gradient.reset();
  // Room for the joined gradient: that of qkv, which nobody needs any more.
  at::Tensor joined = std::move(qkv);
  const Heads target = split_heads(joined, {heads, heads});
  at::Tensor(target.query).copy_(parts.query);
  at::Tensor(target.key).copy_(parts.key);
  at::Tensor(target.value).copy_(parts.value);
  return joined;
}

double attention_scale(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

// -infinity above the diagonal: what lies in the future has no weight.
at::Tensor future_mask(const at::Tensor& qkv) {
  const int64_t tokens = qkv.size(1);
  return at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), qkv.options())
      .triu_(1);
}

// Of one sample, [H, T, T], before dropout; `key` is for all heads.
at::Tensor probabilities_of(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& future) {
  at::Tensor scores = at::matmul(query, key.transpose(1, 2));
  scores.mul_(attention_scale(query)).add_(future);
  return at::softmax(scores, 2);
}

Pass pass_of_sample(const Pass& pass, int64_t index) {
  Pass own = pass;
  own.first_sample += index;
  return own;
}

void drop_sample(at::Tensor& probabilities, const Dropout& dropout, int64_t index) {
  const Pass pass = pass_of_sample(dropout.pass, index);
  at::Tensor sample = probabilities.unsqueeze(0);
  apply_dropout(sample, {dropout.share, pass, dropout.site});
}

}  // namespace

MixedHeads attend_by_sample(const at::Tensor& qkv,
                            const HeadCounts& heads,
                            const Dropout& dropout,
                            bool keeps_all) {
  const Heads in = split_heads(qkv, heads);
  const int64_t samples = qkv.size(0);
  const int64_t tokens = qkv.size(1);
  const at::Tensor future = future_mask(qkv);
  MixedHeads mixed{at::empty({samples * tokens, heads.queries * in.query.size(3)}, qkv.options()),
                   at::Tensor()};
  if (keeps_all) {
    mixed.statistics = at::empty({samples, heads.queries, tokens, tokens}, qkv.options());
  }
  const at::Tensor values = as_heads(mixed.values, qkv, heads.queries);
  for (int64_t i = 0; i < samples; ++i) {
    at::Tensor probabilities = probabilities_of(
        in.query.select(0, i), for_all_heads(in.key.select(0, i), heads.group()), future);
    if (keeps_all) {
      mixed.statistics.select(0, i).copy_(probabilities);
    }
    drop_sample(probabilities, dropout, i);
    values.select(0, i).copy_(
        at::matmul(probabilities, for_all_heads(in.value.select(0, i), heads.group())));
  }
  return mixed;
}

at::Tensor attend_by_sample_backward(at::Tensor qkv,
                                     const at::Tensor& kept_probabilities,
                                     const at::Tensor& gradient,
                                     const HeadCounts& heads,
                                     const Dropout& dropout) {
  const Heads all = split_heads(qkv, heads);
  const at::Tensor all_dy = as_heads(gradient, qkv, heads.queries);
  const bool is_kept = kept_probabilities.defined();
  const at::Tensor future = is_kept ? at::Tensor() : future_mask(qkv);
  for (int64_t i = 0; i < qkv.size(0); ++i) {
    Heads in = all.sample(i);
    const at::Tensor dy = all_dy.select(0, i);
    const at::Tensor all_keys = for_all_heads(in.key, heads.group());
    const at::Tensor probabilities =
        is_kept ? kept_probabilities.select(0, i) : probabilities_of(in.query, all_keys, future);
    at::Tensor dropped = probabilities.clone();
    drop_sample(dropped, dropout, i);
    const at::Tensor value = sum_of_group(at::matmul(dropped.transpose(1, 2), dy), heads.group());
    dropped.reset();
    at::Tensor score = at::matmul(dy, for_all_heads(in.value, heads.group()).transpose(1, 2));
    drop_sample(score, dropout, i);
    score = at::_softmax_backward_data(score, probabilities, 2, score.scalar_type())
                .mul_(attention_scale(in.query));
    const at::Tensor query = at::matmul(score, all_keys);
    in.key.copy_(sum_of_group(at::matmul(score.transpose(1, 2), in.query), heads.group()));
    in.query.copy_(query);
    in.value.copy_(value);
  }
  return qkv;
}

MixedHeads attend(const at::Tensor& qkv, int64_t heads, const Dropout& dropout, bool keeps_all) {
  return dropout.is_active() ? attend_by_sample(qkv, {heads, heads}, dropout, keeps_all)
                             : attend_fused(qkv, heads);
}

at::Tensor attend_backward(at::Tensor qkv,
                           MixedHeads mixed,
                           at::Tensor values_gradient,
                           int64_t heads,
                           const Dropout& dropout) {
  const int64_t rows = qkv.size(0) * qkv.size(1);
  if (dropout.is_active()) {
    mixed.values.reset();
    return attend_by_sample_backward(
               std::move(qkv), mixed.statistics, values_gradient, {heads, heads}, dropout)
        .view({rows, -1});
  }
  return attend_fused_backward(std::move(qkv), std::move(mixed), std::move(values_gradient), heads)
      .view({rows, -1});
}

}  // namespace penstock::model
