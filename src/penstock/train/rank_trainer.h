// One rank of a run. trainer.cpp reads as the step; trainer_start.cpp is how a run begins. Users take
// train/trainer.h, which has all ranks.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/program/simulate.h"
#include "penstock/train/run_clock.h"
#include "penstock/train/subject.h"

namespace penstock::checkpoint {
class RunLock;
}
namespace penstock::comm {
class Group;
}
namespace penstock::run {
class Executor;
struct UpdateSettings;
struct Updated;
}  // namespace penstock::run

namespace penstock::train {

struct Planned;
struct PlanSource;
struct TrainerParts;

struct Summary {
  int64_t first_step = 0;      // where this run began
  std::vector<double> losses;  // of the steps that ran, in order
  std::optional<double> validation_loss;
  // Of training steps; the first, which warms up, left out. Of a user's own dataset: samples.
  double tokens_per_second = 0;
  double seconds = 0;       // from the first step to the last, with all that lies between
  double step_seconds = 0;  // the median step, the first left out
  // Most that tensors held at any moment, measuring included; of the rank that held most.
  int64_t peak_bytes = 0;
  std::vector<int64_t> rank_peak_bytes;            // of each
  std::vector<int64_t> predicted_rank_peak_bytes;  // likewise; empty: not predicted
  // What each rank gave to other ranks in the last step, and the sum of its program.
  std::vector<int64_t> rank_payload_bytes, predicted_rank_payload_bytes;
  int64_t sent_bytes = 0;  // of each step, to replicas, by the rank that sent most; the last step's
  int64_t parameters = 0;
  int64_t skipped_steps = 0;         // float16: their gradients overflowed
  std::filesystem::path checkpoint;  // the last one written; empty: none
  // What each rank has read of the data's files in training and validation, and keeps ready at most.
  std::vector<int64_t> rank_read_bytes, rank_ahead_bytes;
  std::string sample;  // what the model writes, where the recipe asks for it
  bool was_interrupted = false;
  std::string stop_reason;  // of one that was: "SIGTERM", "run.hours"
  // The most RAM that a process took, libraries and all; ranks that are threads are one process.
  int64_t peak_resident_bytes = 0;
};

// What to resume from is for the folder to say, so that one script starts a run and goes on with it.
inline constexpr const char* kResumeAuto = "auto";

struct MeasuredStep {
  const program::Program& program;  // the trainer's
  program::Timeline timeline;
};

// Everything a run consists of. Built complete: after construction the run can go.
class RankTrainer {
 public:
  // `resume` is a checkpoint or a run's folder; empty: a fresh start; kResumeAuto: the latest checkpoint in
  // run.out where there is one, else a fresh start. A fresh start in a folder
  // that holds an earlier run moves that run aside, into a folder within.
  // The plan is made now, or given; with `predicts` costs are measured even where no limit makes that
  // necessary. Throws Error (exit code 1) when the step does not fit in the recipe's limit.
  // Every rank of the group builds one, and calls the same functions of it.
  RankTrainer(const config::Recipe& recipe,
              const std::filesystem::path& resume,
              comm::Group& group,
              const PlanSource& source,
              const Subject& subject = family_subject());
  RankTrainer(const config::Recipe& recipe,
              const std::filesystem::path& resume,
              comm::Group& group,
              bool predicts = false);
  ~RankTrainer();

  // Trains until recipe.train.steps, a signal or the end of run.hours; saves. Throws Error.
  Summary run();

  const Planned& plan() const;

  // The plan in a line, at rank 0; empty where nothing was predicted.
  const std::string& plan_title() const;

  // A step of median length among the last ones, as all ranks measured it. All ranks call it; rank
  // 0 gets it. Nothing before a step has run.
  std::optional<MeasuredStep> measured_step() const;

 private:
  struct Steps;

  // Rank 0 has the lock of the run's folder.
  void begin(const config::Recipe& recipe,
             const std::filesystem::path& resume,
             comm::Group& group,
             const PlanSource& source,
             const Subject& subject,
             std::unique_ptr<checkpoint::RunLock> lock);
  void train_and_save();
  void train();
  void take_steps();
  void save_on_the_way();
  void note_checkpoint(const std::filesystem::path& checkpoint);
  std::vector<run::UpdateSettings> update_settings(const Steps& steps) const;
  void learn_outcome(const run::Executor& executor, Steps& steps);
  void adjust_loss_scale(const run::Updated& updated, int64_t step);
  void finish_summary(double seconds);
  void show(const Steps& steps, double seconds);

  struct Payload {
    int64_t sent_bytes = 0, predicted_bytes = 0;
  };

  std::unique_ptr<TrainerParts> parts_;
  RunClock clock_;
  Summary summary_;
  int64_t saved_step_ = -1;  // the newest checkpoint of this run
  Payload payload_;          // of this rank, in the last step
};

}  // namespace penstock::train
