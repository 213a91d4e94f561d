// A user's own program: a small conv net with batch norm and dropout, as torch::nn modules. Prints its
// losses as JSON. For test_own_chain.py.
//   penstock_own_chain OUT STEPS KEY=VALUE ...     keys of [run], [train] and [plan]; --resume goes on;
//                                                  --least adds the least bytes that would do
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>

#include "penstock/base/error.h"
#include "penstock/config/options.h"
#include "penstock/config/recipe.h"
#include "penstock/data/memory_dataset.h"
#include "penstock/model/module_layer.h"
#include "penstock/train/trainer.h"

using namespace penstock;

namespace {

std::unique_ptr<model::Layer> conv_block(const std::string& name, int64_t from, int64_t to) {
  return model::module_layer(
      name,
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1)),
                            torch::nn::BatchNorm2d(to),
                            torch::nn::Dropout(0.2)));
}

model::Chain make_chain() {
  model::Chain chain;
  chain.add(conv_block("block 0", 3, 8));
  chain.add(conv_block("block 1", 8, 8));
  chain.add(conv_block("block 2", 8, 4));
  chain.end_with(model::function_loss("loss", [](const at::Tensor& x, const at::Tensor& label) {
    return at::cross_entropy_loss(x.mean({2, 3}), label, {}, at::Reduction::Sum);
  }));
  return chain;
}

std::shared_ptr<data::MemoryDataset> images() {
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 48; ++i) {
    labels.push_back(i * 5 % 4);
    for (int64_t k = 0; k < 3 * 8 * 8; ++k) {
      pixels.push_back(std::cos(0.11F * static_cast<float>((i * 192 + k) * 31 % 2003)));
    }
  }
  auto dataset = std::make_shared<data::MemoryDataset>();
  dataset->add<float>("inputs", {3, 8, 8}, pixels).add<int64_t>("targets", {}, labels);
  return dataset;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> settings;
  bool resumes = false, wants_least = false;
  for (int i = 3; i < argc; ++i) {
    if (std::strcmp(argv[i], "--resume") == 0) {
      resumes = true;
    } else if (std::strcmp(argv[i], "--least") == 0) {
      wants_least = true;
    } else {
      settings.emplace_back(argv[i]);
    }
  }
  try {
    config::Recipe recipe;
    recipe.train = {.steps = std::stoll(argv[2]), .batch = 16, .lr = 1e-2};
    recipe.train.schedule = "constant";
    recipe.data.split = 0;
    recipe.run.out = argv[1];
    recipe.run.threads = 1;
    recipe.plan.micro_batches = 2;
    for (const std::string& setting : settings) {
      config::apply_setting(recipe, setting);
    }
    train::Trainer trainer(make_chain, images(), recipe);
    const train::Summary summary = trainer.run(resumes ? argv[1] : "");
    std::printf("{\"first\": %lld, \"losses\": [", static_cast<long long>(summary.first_step));
    for (size_t i = 0; i < summary.losses.size(); ++i) {
      std::printf("%s%.17g", i == 0 ? "" : ", ", summary.losses[i]);
    }
    std::printf("], \"peak\": %lld", static_cast<long long>(summary.peak_bytes));
    if (wants_least) {
      recipe.plan.memory = "1KiB";
      const plan::Outcome outcome = train::Trainer(make_chain, images(), recipe).plan();
      std::printf(", \"least\": %lld", static_cast<long long>(outcome.most_least_bytes()));
    }
    std::printf("}\n");
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
