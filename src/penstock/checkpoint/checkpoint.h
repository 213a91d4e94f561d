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
struct Mesh;
}  // namespace penstock::comm
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

// Of a model that is with the ranks of a mesh, `parts` the layers of each stage. Atomic: a kill at
// any moment leaves the previous checkpoint loadable. Keeps the newest recipe.run.keep. All ranks
// call it, and each writes what it has, at the same time; rank 0 has the answer, the checkpoint's
// folder. The files do not depend on who has what. Where the disk fails one rank, all throw its
// FileError.
std::filesystem::path save(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const std::vector<model::Part>& parts,
                           const comm::Mesh& mesh,
                           const model::Parameters& parameters,
                           const optim::Optimizer& optimizer,
                           const TrainState& state,
                           comm::Group& group);

// The same for the only rank, which has the whole chain.
std::filesystem::path save(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const model::Parameters& parameters,
                           const optim::Optimizer& optimizer,
                           const TrainState& state);

// The recipe that the checkpoint `folder` (as from resolve_checkpoint) was written by. Reads the
// manifest and verifies every file first; with a group, all ranks call it and share the work.
config::Recipe verified_recipe(const std::filesystem::path& folder);
config::Recipe verified_recipe(const std::filesystem::path& folder, comm::Group& group);

// The weights alone, of a checkpoint that is already verified.
void load_weights(const std::filesystem::path& folder, model::Parameters& parameters);

// Continues from `folder`. Throws CheckpointError when it is damaged or of another model, and warns
// where the recipe's numbers differ from the checkpoint's. The loss scale comes back where both are
// float16.
TrainState load(const std::filesystem::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer);

// The same for a model that is with several ranks, in any way, whoever saved it: each reads what it
// has of the weights and of the optimizer's state. What layers see of its replicas' shards is still
// to be gathered. All ranks call it; what one throws, all throw.
TrainState load(const std::filesystem::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer,
                comm::Group& group);

}  // namespace penstock::checkpoint
