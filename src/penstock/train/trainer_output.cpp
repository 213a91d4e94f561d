#include "penstock/train/trainer_output.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/process.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/checkpoint/together.h"
#include "penstock/comm/group.h"
#include "penstock/data/loader.h"
#include "penstock/data/tokenizer.h"
#include "penstock/memory/account.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/generate.h"
#include "penstock/train/diverged.h"
#include "penstock/train/rank_records.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/reporter.h"
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

void require_folder(const TrainerParts& parts) {
  checkpoint::run_together(
      parts.group,
      [] { return std::string("the lock of the run's folder"); },
      [&] {
        if (parts.lock) {
          parts.lock->require_held();
        }
      });
}

fs::path save_checkpoint(const TrainerParts& parts) {
  if (parts.recipe.run.check_replicas > 0) {
    check_replicas(parts);
  }
  if (!std::isfinite(sum_ranks(optim::weight_norm(parts.parameters), parts.group))) {
    fail_diverged("weights' norm", parts.state.step, parts.recipe.train);
  }
  require_folder(parts);
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
    throw FileError(cat("cannot save step ", parts.state.step, ": ", error.what()));
  }
  log_info("saved ", saved.string());
  return saved;
}

fs::path save_at_the_end(const TrainerParts& parts) {
  constexpr int64_t kPauseSeconds = 2;
  int64_t left = parts.recipe.run.save_wait;
  for (bool is_first = true;; is_first = false) {
    try {
      return save_checkpoint(parts);
    } catch (const FileError& error) {
      // Where one rank is told to stop, its launcher will not wait either.
      const bool is_stopping = sum_ranks(was_interrupted() ? 1.0 : 0.0, parts.group) > 0;
      if (left <= 0 || is_stopping) {
        throw FileError(cat(error.what(),
                            "; ",
                            last_checkpoint(parts.recipe.run.out),
                            "; make room or choose another run.out, then --resume"));
      }
      if (is_first) {
        log_warning(error.what(), "; tries again for ", left, " s (run.save_wait)");
      }
      std::this_thread::sleep_for(std::chrono::seconds(std::min(left, kPauseSeconds)));
      left -= kPauseSeconds;
    }
  }
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
  if (parts.is_own) {
    log_warning("run.sample_tokens is set, but a chain of one's own writes no text; no sample");
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

namespace {

// One number of each rank.
std::vector<int64_t> of_ranks(int64_t own, comm::Group& group) {
  std::vector<int64_t> all;
  for (const double one : gather_ranks(static_cast<double>(own), group)) {
    all.push_back(static_cast<int64_t>(one));
  }
  return all;
}

}  // namespace

void RankTrainer::finish_summary(double seconds) {
  TrainerParts& parts = *parts_;
  const int64_t loaded = parts.loader ? parts.loader->read_bytes() : 0;
  summary_.rank_read_bytes = of_ranks(parts.read_bytes + loaded, parts.group);
  summary_.rank_ahead_bytes = of_ranks(parts.loader ? parts.loader->bytes() : 0, parts.group);
  summary_.seconds = seconds;
  summary_.tokens_per_second = parts.reporter ? parts.reporter->tokens_per_second() : 0;
  const TrainerParts::Variant* const steady = parts.steady_variant();
  summary_.step_seconds = steady == nullptr ? 0 : steady->records.median_seconds();
  for (const int64_t peak : of_ranks(peak_resident_bytes(), parts.group)) {
    summary_.peak_resident_bytes = std::max(summary_.peak_resident_bytes, peak);
  }
  for (const double peak :
       gather_ranks(static_cast<double>(memory::usage().peak_bytes), parts.group)) {
    summary_.rank_peak_bytes.push_back(static_cast<int64_t>(peak));
    summary_.peak_bytes = std::max(summary_.peak_bytes, summary_.rank_peak_bytes.back());
  }
  for (const auto& [own, all] :
       {std::pair{payload_.sent_bytes, &summary_.rank_payload_bytes},
        std::pair{payload_.predicted_bytes, &summary_.predicted_rank_payload_bytes}}) {
    for (const double bytes : gather_ranks(static_cast<double>(own), parts.group)) {
      all->push_back(static_cast<int64_t>(bytes));
    }
  }
}

RankTrainer::~RankTrainer() = default;

const Planned& RankTrainer::plan() const {
  return parts_->model.planned;
}

const std::string& RankTrainer::plan_title() const {
  return parts_->model.title;
}

std::optional<MeasuredStep> RankTrainer::measured_step() const {
  const TrainerParts::Variant* const steady = parts_->steady_variant();
  if (steady == nullptr) {
    return std::nullopt;
  }
  const program::Program& program = *steady->program;
  std::optional<program::Timeline> timeline = gather_step(steady->records, program, parts_->group);
  if (!timeline) {
    return std::nullopt;
  }
  return MeasuredStep{program, std::move(*timeline)};
}

}  // namespace penstock::train
