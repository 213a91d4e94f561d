// Text from a trained model: one token after the other, each drawn from the model's prediction.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace penstock::model {
class Chain;
class Parameters;
}  // namespace penstock::model

namespace penstock::run {

struct GenerateOptions {
  int64_t tokens = 200;
  int64_t context = 0;       // the model's; older tokens fall out of sight
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // draw among the k likeliest only; 0: among all
  uint64_t seed = 1;
  int64_t stop_token = -1;  // ends the text; -1: none
};

// Goes on from `prompt`; an empty one begins a document, as after the stop token. Returns the new
// tokens. `on_token` sees each as it is drawn, and ends the text by returning false.
std::vector<int64_t> generate(const model::Chain& chain,
                              const model::Parameters& parameters,
                              std::vector<int64_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int64_t)>& on_token = nullptr);

}  // namespace penstock::run
