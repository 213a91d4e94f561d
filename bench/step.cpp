// One side of the benchmark of the training step: trains a GPT-2 on random tokens and answers "N" on standard input with
// the seconds of N steps, as a JSON list. bench/step.py holds the other side and lets the two take turns.
//   penstock_bench_step layers width heads context vocabulary batch threads precision
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/config/recipe.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/setup.h"

int main(int argc, char** argv) {
  using namespace penstock;
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: penstock_bench_step layers width heads context vocabulary batch threads "
                 "precision\n");
    return 2;
  }
  config::Recipe recipe;
  recipe.model = {.layers = std::atoll(argv[1]),
                  .width = std::atoll(argv[2]),
                  .heads = std::atoll(argv[3]),
                  .context = std::atoll(argv[4]),
                  .vocabulary = std::atoll(argv[5])};
  recipe.train.batch = std::atoll(argv[6]);
  recipe.run.threads = std::atoll(argv[7]);
  recipe.train.precision = argv[8];
  train::prepare_process(recipe);
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  model::Parameters parameters(chain, train::compute_type(recipe.train), /*seed=*/1);
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  const at::Tensor tokens = at::randint(
      recipe.model.vocabulary, {recipe.train.batch, recipe.model.context + 1}, at::kLong);
  const at::Tensor inputs = tokens.narrow(1, 0, recipe.model.context).contiguous();
  const at::Tensor targets = tokens.narrow(1, 1, recipe.model.context).contiguous();

  int64_t step = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer = "[";
    for (int i = std::atoi(line.c_str()); i > 0; --i, ++step) {
      const auto began = std::chrono::steady_clock::now();
      parameters.zero_gradients();
      run::accumulate_gradients(
          chain, parameters, {.batch = {{"inputs", inputs}, {"targets", targets}}, .step = step});
      optimizer->update(parameters, {.rate = {.lr = 1e-3}, .clip = 1});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
      answer += cat(answer.size() > 1 ? ", " : "", seconds.count());
    }
    std::printf("%s]\n", answer.c_str());
    std::fflush(stdout);
  }
}
