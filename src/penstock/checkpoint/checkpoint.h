// A checkpoint of a run: weights, optimizer, where training stands, and the recipe. See
// docs/checkpoint.md for the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/optim/loss_scale.h"

namespace penstock::comm {
class Group;
}
namespace penstock::model {
class Chain;
class Parameters;
struct Part;
}  // namespace penstock::model
namespace penstock::optim {
class Optimizer;
}

namespace penstock::checkpoint {

// Where training stands. Random numbers and the order of samples are functions of these counts and
// of the seed, so nothing else needs to be kept.
struct TrainState {
  int64_t step = 0;          // steps done
  int64_t samples_seen = 0;  // the next batch starts with this sample
  std::string data;          // fingerprint of what is trained on
  // Of a run in float16; empty in other precisions, and where one begins as its recipe says.
  std::optional<optim::LossScaleState> loss_scale;
};

// Atomic: a kill at any moment leaves the previous checkpoint loadable. Keeps the newest
// recipe.run.keep. Returns the checkpoint's folder; throws FileError when the disk fails.
std::filesystem::path save(const config::Recipe& recipe,
                           const model::Parameters& parameters,
                           const optim::Optimizer& optimizer,
                           const TrainState& state);

// The same for a model whose layers are with several ranks, `parts` those of each: all ranks call it,
// rank 0 writes, one tensor after the other, and has the answer. The files are the same.
std::filesystem::path save_parts(const config::Recipe& recipe,
                                 const model::Chain& chain,
                                 const std::vector<model::Part>& parts,
                                 const model::Parameters& parameters,
                                 const optim::Optimizer& optimizer,
                                 const TrainState& state,
                                 comm::Group& group);

// The recipe that the checkpoint `folder` (as from resolve_checkpoint) was written by. Reads the
// manifest and verifies every file first.
config::Recipe verified_recipe(const std::filesystem::path& folder);

// The weights alone, of a checkpoint that is already verified.
void load_weights(const std::filesystem::path& folder, model::Parameters& parameters);

// Continues from `folder`. Throws CheckpointError when it is damaged or of another model, and warns
// where the recipe's numbers differ from the checkpoint's. The loss scale comes back where both are
// float16.
TrainState load(const std::filesystem::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer);

}  // namespace penstock::checkpoint
