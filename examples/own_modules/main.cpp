// Trains modules of one's own on two ranks under a byte limit, goes on with one, and checks the bits.
// Two tensors travel along the chain: the features, and a mask of what is padding.
#include <algorithm>
#include <cstdio>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "penstock/data/memory_dataset.h"
#include "penstock/model/module_layer.h"
#include "penstock/train/trainer.h"

using namespace penstock;

struct EmbedImpl : torch::nn::Module {  // token 0 is padding
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(32, 64));
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& tokens) {
    return {table(tokens), tokens.ne(0).unsqueeze(-1)};
  }
};
TORCH_MODULE(Embed);

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(64, 64));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.1));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return x + dropout(at::gelu(linear(x))) * mask;
  }
};
TORCH_MODULE(Block);

model::Chain make_chain() {
  model::Chain chain;
  chain.add(model::module_layer("embed", Embed()), {.reads = {"tokens"}, .writes = {"x", "mask"}});
  for (const char* name : {"block 0", "block 1", "block 2", "block 3"}) {
    chain.add(model::module_layer(name, Block()), {.reads = {"x", "mask"}});  // makes "x" anew
  }
  chain.add(model::module_layer("head", torch::nn::Linear(64, 2)));
  const auto loss = [](const model::Tensors& in, const model::Tensors& label) {
    const at::Tensor mean = (in[0] * in[1]).sum(1) / in[1].sum(1);  // of what is no padding
    return at::cross_entropy_loss(mean, label[0], {}, at::Reduction::Sum);
  };
  chain.end_with(model::function_loss_of_many("loss", loss),
                 {.reads = {"x", "mask"}, .targets = {"label"}});
  return chain;
}

int main() {
  std::vector<int64_t> tokens, labels;  // does token 7 occur?
  for (int64_t i = 0; i < 512 * 16; ++i) {
    tokens.push_back(i % 16 < 8 + i / 16 % 9 ? 1 + (i * 7919 + i / 97 * 31) % 31 : 0);
    if (i % 16 == 15) {
      labels.push_back(std::count(tokens.end() - 16, tokens.end(), 7) > 0);
    }
  }
  auto dataset = std::make_shared<data::MemoryDataset>();
  dataset->add<int64_t>("tokens", {16}, tokens).add<int64_t>("label", {}, labels);
  config::Recipe recipe{.train = {.steps = 60, .batch = 64, .lr = 1e-2},
                        .plan = {.micro_batches = 4, .memory = "1400KiB", .pipeline = 2},
                        .run = {.out = "own_run"}};
  const double before = train::Trainer(make_chain, dataset, recipe).run().losses.front();
  recipe.train.steps = 120;
  recipe.plan.pipeline = 1;
  train::Trainer trainer(make_chain, dataset, recipe);
  const double after = trainer.run(/*resume=*/"own_run").losses.back();
  std::printf("loss %.4f -> %.4f\n", before, after);
  return trainer.check().is_equal() && after < before / 2 ? 0 : 1;
}
