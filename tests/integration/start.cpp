// Writes what a recipe's run starts from, for other programs to start from the same:
//   penstock_start RECIPE STEPS FOLDER [KEY=VALUE ...]
// FOLDER/start.safetensors: the fresh weights; FOLDER/batches.bin: int64, for each step
// batch x (context + 1) tokens.
#include <cstdlib>
#include <fstream>

#include <ATen/ATen.h>

#include "penstock/checkpoint/rank_pieces.h"
#include "penstock/checkpoint/safetensors_writer.h"
#include "penstock/config/recipe.h"
#include "penstock/data/loader.h"
#include "penstock/model/parameters.h"
#include "penstock/train/setup.h"

int main(int argc, char** argv) {
  using namespace penstock;
  const config::Recipe recipe =
      config::load_recipe(argv[1], std::vector<std::string>(argv + 4, argv + argc));
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  train::prepare_process(recipe);
  const model::Chain chain = train::make_chain(recipe.model);
  const model::Parameters parameters(chain, at::kFloat, seed);
  const std::string file = std::string(argv[3]) + "/start.safetensors";
  const checkpoint::SafetensorsLayout layout(checkpoint::weight_specs(chain.parameters()),
                                             {{"format", "pt"}});
  checkpoint::create_safetensors(file, layout);
  checkpoint::SafetensorsWriter writer(file, layout);
  for (const model::Parameter& parameter : parameters.all()) {
    writer.write(layout.find(parameter.spec.name),
                 0,
                 parameter.weight.const_data_ptr(),
                 parameter.weight.nbytes());
  }
  writer.finish();

  const data::Split split = train::open_data(recipe);
  data::Loader loader(split.train, {.seed = seed, .batch = recipe.train.batch});
  std::ofstream out(std::string(argv[3]) + "/batches.bin", std::ios::binary);
  for (int step = std::atoi(argv[2]); step > 0; --step) {
    const data::Batch batch = loader.next();
    for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
      const size_t first = static_cast<size_t>(sequence * batch.context);
      const size_t count = static_cast<size_t>(batch.context);
      out.write(reinterpret_cast<const char*>(&batch.inputs[first]),
                static_cast<std::streamsize>(8 * count));
      out.write(reinterpret_cast<const char*>(&batch.targets[first + count - 1]), 8);
    }
  }
  return out ? 0 : 1;
}
