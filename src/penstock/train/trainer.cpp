#include "penstock/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/comm/group.h"
#include "penstock/comm/sub_group.h"
#include "penstock/data/loader.h"
#include "penstock/data/tokenizer.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/loss_scale.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/shard.h"
#include "penstock/run/executor.h"
#include "penstock/run/generate.h"
#include "penstock/run/plain_step.h"
#include "penstock/run/rank_forward.h"
#include "penstock/run/rank_update.h"
#include "penstock/run/replica_check.h"
#include "penstock/train/asynchronous.h"
#include "penstock/train/earlier_run.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/rank_records.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/step_records.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_diverged(const char* what, int64_t step, const config::TrainOptions& train) {
  throw Error(ExitCode::Negative,
              cat("training diverged at step ",
                  step,
                  ": the ",
                  what,
                  " is not finite; nothing is saved from here; try a lower train.lr than ",
                  train.lr,
                  " or a longer train.warmup"));
}

void require_same_data(const std::string& before, const std::string& now) {
  if (before != now) {
    log_warning("the data has changed since the checkpoint (",
                before,
                " then, ",
                now,
                " now): the samples to come are not those it would have seen");
  }
}

// The first rank before the others: it may write what they then find, and that may take its time.
data::Split open_in_turn(const config::Recipe& recipe, comm::Group& group) {
  const comm::What what = [] { return std::string("the data"); };
  const PatientScope patience(group);
  if (group.rank() > 0) {
    group.barrier(what);
    return open_data(recipe);
  }
  data::Split split = open_data(recipe);
  group.barrier(what);
  return split;
}

// Whether it is time for what comes every so many steps, when some have just been done.
bool is_due(int64_t every, int64_t before, int64_t now) {
  return every > 0 && now / every > before / every;
}

// The same run has the same cuts, whatever is measured today.
void keep_cuts(const config::PlanOptions& stored, config::PlanOptions& ours) {
  const bool is_same = stored.schedule == ours.schedule && stored.pipeline == ours.pipeline;
  if (is_same && ours.cuts.empty()) {
    ours.cuts = stored.cuts;
  }
}

// As plan.cuts has them.
std::string cuts_text(const std::vector<int32_t>& cuts) {
  std::vector<std::string> firsts;
  for (size_t i = 1; i + 1 < cuts.size(); ++i) {
    firsts.push_back(cat(cuts[i]));
  }
  return join(firsts, ",");
}

// The batches of the next steps, one after the other.
data::Batch next_batches(data::Loader& loader, int64_t count) {
  data::Batch all = loader.next();
  for (int64_t i = 1; i < count; ++i) {
    const data::Batch batch = loader.next();
    all.sequences += batch.sequences;
    all.inputs.insert(all.inputs.end(), batch.inputs.begin(), batch.inputs.end());
    all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
  }
  return all;
}

}  // namespace

struct Trainer::Parts {
  // The limit comes first and covers everything, measuring included; the plan comes before any
  // weights are loaded, for measuring needs an optimizer that has done nothing yet.
  Parts(const config::Recipe& recipe, comm::Group& group, bool predicts)
      : device(open_device(recipe, group)),
        account(device.is_gpu() ? device.account() : memory::current_account()),
        limit(memory::current_account(), recipe.plan.memory_bytes()),
        seed(static_cast<uint64_t>(recipe.train.seed)),
        split(open_in_turn(recipe, group)),
        chain(make_chain(recipe.model, device)),
        model(build_rank_model(recipe, chain, device, group, predicts)),
        parameters(*model.parameters),
        optimizer(*model.optimizer),
        others(
            chain, model.parts, group, static_cast<int32_t>(recipe.plan.data), parameters.shard()),
        executor(model.planned.result.program, chain, parameters, group, model.replicas.get()) {
    if (model.replicas) {
      pipeline = comm::split(group, parameters.replica(), [] {
        return std::string("groups of one replica of each stage");
      });
    }
    if (recipe.train.precision == "float16") {
      scaler.emplace(optim::loss_scale_options(recipe.train));
    }
    if (uses_graph(recipe)) {
      executor.use_graph();
    }
  }

  // Of an asynchronous pipeline's shorter runs, made when they are needed first.
  struct Shorter {
    program::Program program;
    std::unique_ptr<run::Executor> executor;
  };
  run::Executor& executor_of(const config::Recipe& recipe, comm::Group& group, int64_t updates) {
    if (model.replicas && !optimizer.wants_reduced_gradients()) {
      if (!unreduced.executor) {
        unreduced.program = plan::without_reduces(model.planned.result.program);
        unreduced.executor = std::make_unique<run::Executor>(
            unreduced.program, chain, parameters, group, model.replicas.get());
      }
      return *unreduced.executor;
    }
    if (updates == model.planned.result.program.updates) {
      return executor;
    }
    Shorter& made = shorter[updates];
    if (!made.executor) {
      made.program = plan_updates(recipe, chain, model, group, updates);
      made.executor = std::make_unique<run::Executor>(made.program, chain, parameters, group);
    }
    return *made.executor;
  }

  device::Device device;
  memory::AccountScope account;
  memory::LimitScope limit;
  uint64_t seed;
  std::unique_ptr<checkpoint::RunLock> lock;  // rank 0 has it
  data::Split split;
  model::Chain chain;
  RankModel model;
  model::Parameters& parameters;
  optim::Optimizer& optimizer;
  run::RankUpdate others;
  std::unique_ptr<comm::Group> pipeline;    // of this replica, where there are several
  std::optional<optim::LossScaler> scaler;  // float16 alone has one
  run::Executor executor;
  std::map<int64_t, Shorter> shorter;  // by updates
  Shorter unreduced;                   // of an optimizer that reduces gradients in its own way
  StepRecords records, unreduced_records;
  // Of the steps that a run of many ends up with.
  const StepRecords& steady_records() const {
    return unreduced_records.last().empty() ? records : unreduced_records;
  }
  int64_t sent_before = 0;  // to replicas, until the step that runs
  checkpoint::TrainState state;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Reporter> reporter;
};

std::unique_ptr<Trainer::Parts> Trainer::make_parts(const config::Recipe& recipe,
                                                    comm::Group& group,
                                                    bool predicts) {
  try {
    std::unique_ptr<checkpoint::RunLock> lock;
    if (group.rank() == 0) {
      lock = std::make_unique<checkpoint::RunLock>(recipe.run.out);
    }
    auto parts =
        memory::refuse_over_limit([&] { return std::make_unique<Parts>(recipe, group, predicts); });
    parts->lock = std::move(lock);
    return parts;
  } catch (const memory::LimitError& error) {
    throw Error(ExitCode::Negative,
                cat("does not fit: ",
                    error.what(),
                    " before the first step; penstock plan says what would fit"));
  }
}

Trainer::Trainer(const config::Recipe& recipe,
                 const fs::path& resume,
                 comm::Group& group,
                 bool predicts)
    : recipe_(recipe), group_(group) {
  const fs::path from =
      resume.empty() ? fs::path() : fs::canonical(checkpoint::resolve_checkpoint(resume));
  require_writable_folder(recipe.run.out, "run.out");
  if (recipe_.plan.is_asynchronous() && !from.empty()) {
    keep_cuts(checkpoint::verified_recipe(from, group).plan, recipe_.plan);
  }
  parts_ = make_parts(recipe_, group, predicts);
  Parts& parts = *parts_;
  if (recipe_.plan.is_asynchronous()) {  // part of the numbers, and so of the checkpoint
    recipe_.plan.cuts = cuts_text(parts.model.stages.cuts);
  }
  load_or_start(from);
  // Nobody moves a checkpoint while another rank reads it.
  group.barrier([] { return std::string("the start of training"); });
  if (group.rank() == 0) {
    arrange_folder(from);
    parts.reporter = std::make_unique<Reporter>(recipe, parts.state.step);
  }
  parts.loader =
      std::make_unique<data::Loader>(parts.split.train,
                                     data::LoaderOptions{.seed = parts.seed,
                                                         .batch = recipe.train.batch,
                                                         .first_sample = parts.state.samples_seen});
  summary_.first_step = parts.state.step;
  summary_.parameters = parts.chain.parameter_count();
  summary_.predicted_rank_peak_bytes = parts.model.predicted_peaks;
}

void Trainer::load_or_start(const fs::path& from) {
  Parts& parts = *parts_;
  if (from.empty()) {
    load_start_weights(recipe_.model, parts.chain, parts.parameters, &group_);
  } else {
    parts.state = checkpoint::load(from, recipe_, parts.parameters, parts.optimizer, group_);
    require_same_data(parts.state.data, parts.split.train.fingerprint());
    log_info("resuming from ", from.string(), " at step ", parts.state.step);
  }
  const program::Shard shard = parts.parameters.shard();
  if (shard == program::Shard::Optimizer || shard == program::Shard::Gradients) {
    parts.model.replicas->gather_all(parts.parameters);
  }
  parts.state.data = parts.split.train.fingerprint();
  if (parts.scaler) {
    if (parts.state.loss_scale) {
      parts.scaler->set_state(*parts.state.loss_scale);
    }
    parts.state.loss_scale = parts.scaler->state();
  }
}

void Trainer::arrange_folder(const fs::path& from) {
  const std::string& out = recipe_.run.out;
  if (!from.empty() && fs::equivalent(from.parent_path(), out)) {
    // What came after it is given up; from now on the run stands here.
    checkpoint::point_latest(from);
    move_later_steps_aside(out, parts_->state.step);
  } else {
    move_earlier_run_aside(out);
  }
  checkpoint::remove_leftovers(out);
}

Trainer::~Trainer() = default;

const Planned& Trainer::plan() const {
  return parts_->model.planned;
}

const std::string& Trainer::plan_title() const {
  return parts_->model.title;
}

std::optional<MeasuredStep> Trainer::measured_step() const {
  const StepRecords& records = parts_->steady_records();
  if (records.last().empty()) {
    return std::nullopt;
  }
  const program::Program& whole = parts_->model.planned.result.program;
  const int64_t updates = records.updates_of_last();
  const program::Program& program = updates != whole.updates ? parts_->shorter.at(updates).program
                                    : &records == &parts_->records ? whole
                                                                   : parts_->unreduced.program;
  std::optional<program::Timeline> timeline = gather_step(records, program, group_);
  if (!timeline) {
    return std::nullopt;
  }
  return MeasuredStep{program, std::move(*timeline)};
}

Summary Trainer::run() {
  Parts& parts = *parts_;
  const int64_t steps = recipe_.train.steps;
  const auto& held_out = parts.split.validation;
  log_info(format_count(summary_.parameters),
           " parameters; ",
           format_count(parts.split.train.tokens()),
           " tokens to train on, ",
           held_out ? format_count(held_out->tokens()) : "none",
           " held out; ",
           at::get_num_threads(),
           " threads; writing to ",
           recipe_.run.out);

  const double began = now_seconds();
  bool is_to_check = false, is_to_validate = false, is_to_save = false;
  while (parts.state.step < steps && !is_to_stop()) {
    const int64_t before = parts.state.step;
    train_steps();
    const int64_t done = parts.state.step;
    is_to_check = is_to_check || is_due(recipe_.run.check_replicas, before, done);
    is_to_validate = is_to_validate || is_due(recipe_.run.validate_every, before, done);
    is_to_save = is_to_save || is_due(recipe_.run.save_every, before, done);
    // Replicas that move by themselves for some steps have no weights in common until they meet.
    if (done == steps || !parts.optimizer.replicas_agree()) {
      continue;
    }
    if (is_to_check) {
      check_replicas();
      is_to_check = false;
    }
    if (is_to_validate) {
      validate();
      is_to_validate = false;
    }
    if (is_to_save) {
      save();
      is_to_save = false;
    }
  }
  if (parts.reporter) {
    parts.reporter->finish();
  }

  summary_.was_interrupted = parts.state.step < steps;
  if (!summary_.was_interrupted) {
    validate();
  }
  if (!summary_.losses.empty()) {
    save();
  }
  summary_.seconds = now_seconds() - began;
  summary_.tokens_per_second = parts.reporter ? parts.reporter->tokens_per_second() : 0;
  summary_.step_seconds = parts.steady_records().median_seconds();
  for (const double peak : gather(static_cast<double>(memory::usage().peak_bytes))) {
    summary_.rank_peak_bytes.push_back(static_cast<int64_t>(peak));
    summary_.peak_bytes = std::max(summary_.peak_bytes, summary_.rank_peak_bytes.back());
  }
  if (recipe_.run.sample_tokens > 0 && !summary_.was_interrupted) {
    parts.executor.release_graph();
    summary_.sample = write_sample();
  }
  return summary_;
}

// One training step: a batch through the program, whose last instruction is the update. An asynchronous
// pipeline takes several at once: it has updates between its micro-batches.
void Trainer::train_steps() {
  Parts& parts = *parts_;
  const double began = now_seconds();
  const int64_t first_step = parts.state.step;
  const int64_t count = steps_at_once(recipe_, first_step);
  const bool is_reduced = !parts.model.replicas || parts.optimizer.wants_reduced_gradients();
  if (parts.model.replicas) {
    parts.sent_before = parts.model.replicas->sent_bytes();
  }
  run::Executor& executor = parts.executor_of(recipe_, group_, count);
  const data::Batch batch = next_batches(*parts.loader, count);
  const BatchTensors tensors = as_tensors(batch);
  const run::StepInput input{.inputs = tensors.inputs,
                             .targets = tensors.targets,
                             .first_sample = batch.first_sample,
                             .micro_batches = count * recipe_.plan.micro_batches,
                             .seed = parts.seed,
                             .step = first_step,
                             .loss_scale = parts.scaler ? parts.scaler->scale() : 1};
  optim::UpdateSettings settings{.clip = recipe_.train.clip, .loss_scale = input.loss_scale};
  const bool updates_by_itself = recipe_.plan.is_asynchronous();
  if (group_.size() > 1 && !updates_by_itself) {
    settings.gather = [&](const optim::Squares& own) { return parts.others.gather_squares(own); };
  }
  int64_t step = first_step;
  std::vector<double> squares;  // of this rank's gradients' norms, step by step
  executor.run(input, [&] {
    settings.rate = optim::rate_at(recipe_.train, step);
    settings.rate.lr *= rate_factor(recipe_.plan, group_.rank(), step);
    parts.others.add_shared_gradients(parts.parameters, /*is_whole=*/!is_reduced);
    parts.optimizer.update(parts.parameters, settings);
    ++step;
    if (updates_by_itself) {
      const optim::Updated updated = parts.optimizer.updated();
      note_update(updated, step);
      squares.push_back(updated.norm * updated.norm);
    }
  });
  // The record ends when the run does.
  const double record_began = now_seconds() - executor.measured().seconds;
  std::vector<double> sums = executor.losses();  // they are with one of the ranks
  sums.insert(sums.end(), squares.begin(), squares.end());
  sums = parts.model.replicas ? std::vector{gather_replicas(executor)} : add_over_ranks(sums);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(sums[static_cast<size_t>(i)])) {
      fail_diverged("loss", first_step + i + 1, recipe_.train);
    }
  }
  optim::Updated updated = parts.optimizer.updated();
  if (!updates_by_itself) {
    note_update(updated, step);
  }

  parts.state.step = step;
  parts.state.samples_seen = batch.first_sample + batch.sequences;
  (is_reduced ? parts.records : parts.unreduced_records)
      .add({executor.measured(), record_began}, count);
  const double seconds = (now_seconds() - began) / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double loss = sums[static_cast<size_t>(i)];
    summary_.losses.push_back(loss);
    if (updates_by_itself) {
      updated.norm = std::sqrt(sums[static_cast<size_t>(count + i)]);
    }
    if (parts.reporter) {
      parts.reporter->show_step(
          first_step + i + 1,
          {.loss = loss,
           .lr = optim::rate_at(recipe_.train, first_step + i).lr,
           .gradient_norm = updated.was_applied ? updated.norm : 0,
           .seconds = seconds,
           .loss_scale = parts.scaler ? std::optional(settings.loss_scale) : std::nullopt,
           .sent_bytes = parts.model.replicas ? std::optional(summary_.sent_bytes) : std::nullopt,
           .was_skipped = !updated.was_applied});
    }
  }
}

// The mean over the targets of all replicas, added up in the order of the micro-batches; and what the rank
// that sent most has sent to replicas in this step.
double Trainer::gather_replicas(const run::Executor& executor) {
  Parts& parts = *parts_;
  std::vector<double> own{static_cast<double>(
      parts.model.replicas->sent_bytes() - parts.sent_before + parts.optimizer.last_sent_bytes())};
  own.insert(own.end(), executor.loss_sums().begin(), executor.loss_sums().end());
  const std::vector<double> all =
      group_.all_gather(own, [] { return std::string("the losses of all replicas"); });
  double sum = 0, sent = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % own.size() == 0) {
      sent = std::max(sent, all[i]);
    } else {
      sum += all[i];  // those of ranks without the loss are 0
    }
  }
  summary_.sent_bytes = static_cast<int64_t>(sent);
  return sum * executor.loss_scale(0);
}

void Trainer::check_replicas() {
  Parts& parts = *parts_;
  if (!parts.model.replicas) {
    return;
  }
  comm::Group& replicas = parts.model.replicas->group();
  const std::string drift = run::find_drift(
      run::replicated_weights(parts.parameters), replicas, group_.rank() - replicas.rank());
  // All ranks stop, whichever stage it is in; the first that found something says what.
  const std::vector<double> found = gather(drift.empty() ? 0 : 1);
  const auto first = std::find(found.begin(), found.end(), 1.0);
  if (first == found.end()) {
    return;
  }
  std::array<char, 512> line = {};
  drift.copy(line.data(), line.size() - 1);
  group_.broadcast(static_cast<int32_t>(first - found.begin()), line.data(), line.size(), [] {
    return std::string("what differs between the replicas");
  });
  throw Error(
      ExitCode::Negative,
      cat("replicas have drifted apart by step ",
          parts.state.step,
          ": ",
          line.data(),
          "; nothing is saved from here; memory or a link of that machine is the likely cause: "
          "go on with --resume ",
          recipe_.run.out,
          " elsewhere"));
}

// A step whose gradients overflowed was not applied: in float16 the loss scale falls, elsewhere the
// run has diverged.
void Trainer::note_update(const optim::Updated& updated, int64_t step) {
  Parts& parts = *parts_;
  if (!parts.scaler) {
    if (!updated.was_applied) {
      fail_diverged("gradient", step, recipe_.train);
    }
    return;
  }
  if (updated.was_applied) {
    parts.scaler->step_was_clean();
  } else {
    parts.scaler->step_overflowed();
    ++summary_.skipped_steps;
    log_info("step ",
             step,
             ": gradients overflow at a loss scale of ",
             parts.state.loss_scale->scale,
             "; the step is skipped, the scale is now ",
             parts.scaler->scale());
  }
  if (parts.scaler->is_stuck()) {
    throw Error(ExitCode::Negative,
                cat("training diverged at step ",
                    step,
                    ": the gradients overflow float16 at the least loss scale ",
                    parts.scaler->scale(),
                    ", ",
                    optim::LossScaler::kOverflowsWhenStuck,
                    " steps in a row; nothing is saved from here; try train.precision = "
                    "\"bfloat16\" or a lower train.lr than ",
                    recipe_.train.lr));
  }
  parts.state.loss_scale = parts.scaler->state();
}

void Trainer::validate() {
  Parts& parts = *parts_;
  if (!parts.split.validation) {
    return;
  }
  parts.executor.release_graph();
  const data::Dataset& dataset = *parts.split.validation;
  const int64_t sequences = std::min(recipe_.run.validate_sequences, dataset.samples());
  const int64_t at_once = recipe_.micro_batch_size();
  const int64_t batches = (sequences + at_once - 1) / at_once;
  const int64_t replicas = recipe_.plan.data;
  run::LossSum total;
  // The replicas take a batch each at the same time. Where some are left over they repeat the last, for
  // weights may have to be gathered by all, and it does not count.
  for (int64_t round = 0; round < batches; round += replicas) {
    const int64_t number = round + parts.parameters.replica();
    const int64_t first = std::min(number, batches - 1) * at_once;
    const data::Batch batch =
        data::read_in_order(dataset, first, std::min(at_once, sequences - first));
    const BatchTensors tensors = as_tensors(batch);
    run::LossSum part = recipe_.plan.pipeline == 1
                            ? run::evaluate(parts.chain,
                                            parts.parameters,
                                            tensors.inputs,
                                            tensors.targets,
                                            parts.model.replicas.get())
                            : run::evaluate_stages(parts.chain,
                                                   parts.parameters,
                                                   parts.model.stages,
                                                   parts.pipeline ? *parts.pipeline : group_,
                                                   tensors.inputs,
                                                   tensors.targets,
                                                   parts.model.replicas.get());
    part = number < batches ? part : run::LossSum{};
    total.count += part.count;
    // One after the other, in the order of the batches.
    for (const double sum : replicas > 1 ? gather(part.sum) : std::vector{part.sum}) {
      total.sum += sum;
    }
  }
  const double sum = replicas > 1 ? total.sum : sum_over_ranks(total.sum);
  summary_.validation_loss = sum / sum_over_ranks(static_cast<double>(total.count));
  if (!std::isfinite(*summary_.validation_loss)) {
    fail_diverged("validation loss", parts.state.step, recipe_.train);
  }
  if (parts.reporter) {
    parts.reporter->show_validation(parts.state.step, *summary_.validation_loss, sequences);
  }
}

std::vector<double> Trainer::gather(double own) {
  return group_.all_gather(std::span(&own, 1), [] { return std::string("the end of the step"); });
}

double Trainer::sum_over_ranks(double own) {
  return add_over_ranks({own})[0];
}

std::vector<double> Trainer::add_over_ranks(const std::vector<double>& own) {
  const std::vector<double> all =
      group_.all_gather(own, [] { return std::string("the end of the step"); });
  std::vector<double> sums(own.size(), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    sums[i % own.size()] += all[i];
  }
  return sums;
}

// Where one rank has been asked to stop, all do, after the same step: one after which all is the same
// at the replicas.
bool Trainer::is_to_stop() {
  return sum_over_ranks(was_interrupted() ? 1 : 0) > 0 && parts_->optimizer.replicas_agree();
}

void Trainer::save() {
  Parts& parts = *parts_;
  if (recipe_.run.check_replicas > 0) {
    check_replicas();
  }
  if (!std::isfinite(sum_over_ranks(optim::weight_norm(parts.parameters)))) {
    fail_diverged("weights' norm", parts.state.step, recipe_.train);
  }
  try {
    summary_.checkpoint =
        group_.size() == 1
            ? checkpoint::save(recipe_, parts.parameters, parts.optimizer, parts.state)
            : checkpoint::save_ranks(recipe_,
                                     parts.chain,
                                     parts.model.parts,
                                     parts.parameters,
                                     parts.optimizer,
                                     parts.state,
                                     group_);
  } catch (const FileError& error) {
    const std::string last = checkpoint::list_steps(recipe_.run.out).empty()
                                 ? "there is no earlier checkpoint"
                                 : cat("the last checkpoint is ",
                                       checkpoint::resolve_checkpoint(recipe_.run.out).string());
    throw FileError(cat("cannot save step ",
                        parts.state.step,
                        ": ",
                        error.what(),
                        "; ",
                        last,
                        "; make room or choose another run.out, then --resume"));
  }
  log_info("saved ", summary_.checkpoint.string());
}

std::string Trainer::write_sample() const {
  if (group_.size() > 1) {
    log_warning("run.sample_tokens is set, but the model is with several ranks; penstock sample ",
                recipe_.run.out,
                " writes one from the checkpoint");
    return "";
  }
  if (recipe_.data.tokenizer != "bytes") {
    log_warning(
        "run.sample_tokens is set, but only data.tokenizer = \"bytes\" gives text; no sample");
    return "";
  }
  const std::vector<int64_t> made = run::generate(parts_->chain,
                                                  parts_->parameters,
                                                  data::encode(recipe_.run.sample_prompt),
                                                  {.tokens = recipe_.run.sample_tokens,
                                                   .context = recipe_.model.context,
                                                   .seed = parts_->seed,
                                                   .stop_token = data::kEndOfDocument},
                                                  [](int64_t) { return !was_interrupted(); });
  return recipe_.run.sample_prompt + data::decode(made);
}

}  // namespace penstock::train
