// Prints the logits that a checkpoint gives for some tokens, for comparison with other programs:
//   penstock_logits CHECKPOINT 12 7 99 ...
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/setup.h"

int main(int argc, char** argv) {
  using namespace penstock;
  const auto folder = checkpoint::resolve_checkpoint(argv[1]);
  config::Recipe recipe = checkpoint::verified_recipe(folder);
  train::prepare_process(recipe);
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  model::Parameters parameters(chain, at::kFloat, /*seed=*/0);
  checkpoint::load_weights(folder, parameters);
  std::vector<int64_t> tokens;
  for (int i = 2; i < argc; ++i) {
    tokens.push_back(std::atoll(argv[i]));
  }
  const at::Tensor logits =
      run::predict(chain, parameters, {{"inputs", at::tensor(tokens).view({1, -1})}})[0];
  nlohmann::json rows;
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const float* values = logits[row].const_data_ptr<float>();
    rows.push_back(std::vector<float>(values, values + logits.size(1)));
  }
  std::printf("%s\n", rows.dump().c_str());
}
