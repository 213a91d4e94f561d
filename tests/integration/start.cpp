// Writes what a recipe's run starts from, for other programs to start from the same:
//   penstock_start RECIPE STEPS FOLDER [KEY=VALUE ...]
// FOLDER/start.safetensors: the fresh weights; FOLDER/batches.bin: int64, for each step
// batch x (context + 1) tokens.
#include <cstdlib>
#include <fstream>

#include <ATen/ATen.h>

#include "penstock/checkpoint/rank_shards.h"
#include "penstock/checkpoint/safetensors_writer.h"
#include "penstock/config/recipe.h"
#include "penstock/data/loader.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/setup.h"
#include "penstock/train/subject.h"

int main(int argc, char** argv) {
  using namespace penstock;
  config::Recipe recipe =
      config::load_recipe(argv[1], std::vector<std::string>(argv + 4, argv + argc));
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  train::prepare_process(recipe);
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
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

  const data::Split split = train::family_subject().open_data(recipe);
  data::Loader loader(split.train, {.seed = seed, .batch = recipe.train.batch});
  std::ofstream out(std::string(argv[3]) + "/batches.bin", std::ios::binary);
  for (int step = std::atoi(argv[2]); step > 0; --step) {
    const data::Batch batch = loader.next();
    const model::Fields fields = train::as_tensors(batch);
    const at::Tensor last = fields.at("targets").narrow(1, recipe.model.context - 1, 1);
    const at::Tensor tokens = at::cat({fields.at("inputs"), last}, 1).contiguous();
    out.write(static_cast<const char*>(tokens.const_data_ptr()),
              static_cast<std::streamsize>(tokens.nbytes()));
  }
  return out ? 0 : 1;
}
