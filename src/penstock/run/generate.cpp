#include "penstock/run/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/model/parameters.h"
#include "penstock/run/plain_step.h"

namespace penstock::run {

namespace {

int64_t draw(const float* logits,
             int64_t vocabulary,
             const GenerateOptions& options,
             int64_t position) {
  if (options.temperature == 0) {
    return std::max_element(logits, logits + vocabulary) - logits;
  }
  std::vector<int64_t> candidates(static_cast<size_t>(vocabulary));
  std::iota(candidates.begin(), candidates.end(), 0);
  if (options.top_k > 0 && options.top_k < vocabulary) {
    const auto end = candidates.begin() + options.top_k;
    std::partial_sort(candidates.begin(), end, candidates.end(), [&](int64_t a, int64_t b) {
      return logits[a] > logits[b];
    });
    candidates.erase(end, candidates.end());
  }
  const float highest = *std::max_element(logits, logits + vocabulary);
  std::vector<double> cumulative;
  double total = 0;
  for (const int64_t token : candidates) {
    total += std::exp(static_cast<double>(logits[token] - highest) / options.temperature);
    cumulative.push_back(total);
  }
  const PhiloxBlock bits = philox(philox_key(options.seed, hash_name("generate")),
                                  {static_cast<uint32_t>(position), 0, 0, 0});
  const double mark = total * static_cast<double>(bits[0]) / 4294967296.0;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), mark);
  const size_t index =
      std::min(static_cast<size_t>(chosen - cumulative.begin()), candidates.size() - 1);
  return candidates[index];
}

}  // namespace

std::vector<int64_t> generate(const model::Chain& chain,
                              const model::Parameters& parameters,
                              std::vector<int64_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int64_t)>& on_token) {
  PENSTOCK_CHECK(options.context > 0, "generation needs a context");
  std::vector<int64_t> text = std::move(prompt);
  if (text.empty()) {
    text.push_back(std::max<int64_t>(options.stop_token, 0));
  }
  std::vector<int64_t> made;
  while (static_cast<int64_t>(made.size()) < options.tokens) {
    const int64_t visible = std::min(options.context, static_cast<int64_t>(text.size()));
    const at::Tensor window = at::from_blob(
        text.data() + text.size() - static_cast<size_t>(visible), {1, visible}, at::kLong);
    const at::Tensor last =
        predict_next(chain, parameters, {{"inputs", window}}).cpu().contiguous();  // [1, V]
    const int64_t token = draw(
        last.const_data_ptr<float>(), last.numel(), options, static_cast<int64_t>(made.size()));
    if (token == options.stop_token) {
      break;
    }
    text.push_back(token);
    made.push_back(token);
    if (on_token && !on_token(token)) {
      break;
    }
  }
  return made;
}

}  // namespace penstock::run
