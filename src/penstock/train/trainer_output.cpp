#include "penstock/train/trainer_output.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/comm/group.h"
#include "penstock/data/tokenizer.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/generate.h"
#include "penstock/train/diverged.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/trainer_parts.h"
#include "penstock/train/trainer_replicas.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

// What a run can go on from when its last save has failed.
std::string last_checkpoint(const std::string& out) {
  return checkpoint::list_steps(out).empty()
             ? "there is no earlier checkpoint"
             : cat("the last checkpoint is ", checkpoint::resolve_checkpoint(out).string());
}

}  // namespace

fs::path save_checkpoint(const TrainerParts& parts) {
  if (parts.recipe.run.check_replicas > 0) {
    check_replicas(parts);
  }
  if (!std::isfinite(sum_ranks(optim::weight_norm(parts.parameters), parts.group))) {
    fail_diverged("weights' norm", parts.state.step, parts.recipe.train);
  }
  fs::path saved;
  try {
    saved = checkpoint::save(parts.recipe,
                             parts.chain,
                             parts.model.parts,
                             parts.mesh,
                             parts.parameters,
                             parts.optimizer,
                             parts.state,
                             parts.group);
  } catch (const FileError& error) {
    throw FileError(cat("cannot save step ",
                        parts.state.step,
                        ": ",
                        error.what(),
                        "; ",
                        last_checkpoint(parts.recipe.run.out),
                        "; make room or choose another run.out, then --resume"));
  }
  log_info("saved ", saved.string());
  return saved;
}

std::string write_sample(TrainerParts& parts) {
  const config::Recipe& recipe = parts.recipe;
  parts.executor.release_graph();
  if (parts.group.size() > 1) {
    log_warning("run.sample_tokens is set, but the model is with several ranks; penstock sample ",
                recipe.run.out,
                " writes one from the checkpoint");
    return "";
  }
  if (recipe.data.tokenizer != "bytes") {
    log_warning(
        "run.sample_tokens is set, but only data.tokenizer = \"bytes\" gives text; no sample");
    return "";
  }
  const std::vector<int64_t> made = run::generate(parts.chain,
                                                  parts.parameters,
                                                  data::encode(recipe.run.sample_prompt),
                                                  {.tokens = recipe.run.sample_tokens,
                                                   .context = recipe.model.context,
                                                   .seed = parts.seed,
                                                   .stop_token = data::kEndOfDocument},
                                                  [](int64_t) { return !was_interrupted(); });
  return recipe.run.sample_prompt + data::decode(made);
}

}  // namespace penstock::train
