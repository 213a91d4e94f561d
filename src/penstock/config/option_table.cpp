// The rows of the option table, and what a row is made of.
#include <algorithm>
#include <cmath>
#include <limits>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"

namespace penstock::config {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct IntegerRange {
  int64_t least = 0;
  int64_t most = kNoLimit;
};

struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool without_least = false;
  bool without_most = false;
};

std::vector<std::string> family_names() {
  std::vector<std::string> names(std::begin(kFamilies), std::end(kFamilies));
  names.push_back(kOwnFamily);
  return names;
}

std::string describe(const IntegerRange& range) {
  if (range.most == kNoLimit) {
    return cat(range.least, " or more");
  }
  return cat(range.least, " to ", range.most);
}

std::string describe(const NumberRange& range) {
  const std::string least = cat(range.without_least ? "above " : "", format_number(range.least));
  if (std::isinf(range.most)) {
    return range.without_least ? least : least + " or more";
  }
  return cat(least, range.without_most ? " to below " : " to ", format_number(range.most));
}

std::string describe(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    const bool is_last = i + 1 == choices.size();
    text += cat(i == 0 ? "" : is_last ? " or " : ", ", "\"", choices[i], "\"");
  }
  return text;
}

// Rows are built from a pointer to the section and one to the field in it, so that key and field
// stand side by side.
template <typename Section, typename Field>
Option make_option(const char* key,
                   const char* type,
                   Section Recipe::*section,
                   Field Section::*field,
                   std::string allowed,
                   std::function<bool(const Field&)> is_allowed,
                   const char* help) {
  return Option{
      .key = key,
      .type = type,
      .allowed = std::move(allowed),
      .help = help,
      .get = [=](const Recipe& recipe) { return OptionValue(recipe.*section.*field); },
      .assign = [=](Recipe& recipe,
                    const OptionValue& value) { recipe.*section.*field = std::get<Field>(value); },
      .is_allowed = [=](const OptionValue& value) { return is_allowed(std::get<Field>(value)); }};
}

template <typename Section>
Option integer(const char* key,
               Section Recipe::*section,
               int64_t Section::*field,
               IntegerRange range,
               const char* help) {
  return make_option<Section, int64_t>(
      key,
      "integer",
      section,
      field,
      describe(range),
      [=](const int64_t& value) { return value >= range.least && value <= range.most; },
      help);
}

template <typename Section>
Option number(const char* key,
              Section Recipe::*section,
              double Section::*field,
              NumberRange range,
              const char* help) {
  const auto is_allowed = [=](const double& value) {
    const bool high_enough = range.without_least ? value > range.least : value >= range.least;
    const bool low_enough = range.without_most ? value < range.most : value <= range.most;
    return high_enough && low_enough && std::isfinite(value);
  };
  return make_option<Section, double>(
      key, "number", section, field, describe(range), is_allowed, help);
}

template <typename Section>
Option text(const char* key,
            Section Recipe::*section,
            std::string Section::*field,
            const char* help) {
  return make_option<Section, std::string>(
      key, "text", section, field, "", [](const std::string&) { return true; }, help);
}

template <typename Section>
Option choice(const char* key,
              Section Recipe::*section,
              std::string Section::*field,
              std::vector<std::string> choices,
              const char* help) {
  const auto is_allowed = [=](const std::string& value) {
    return std::find(choices.begin(), choices.end(), value) != choices.end();
  };
  Option option = make_option<Section, std::string>(
      key, "text", section, field, describe(choices), is_allowed, help);
  option.choices = choices;
  return option;
}

template <typename Section>
Option bytes(const char* key,
             Section Recipe::*section,
             std::string Section::*field,
             const char* help) {
  const auto is_allowed = [](const std::string& value) {
    return value.empty() || parse_bytes(value).value_or(0) > 0;
  };
  return make_option<Section, std::string>(
      key, "text", section, field, "bytes, as in \"600MiB\" or \"8GB\"", is_allowed, help);
}

template <typename Section>
Option flag(const char* key, Section Recipe::*section, bool Section::*field, const char* help) {
  return make_option<Section, bool>(
      key, "true or false", section, field, "", [](const bool&) { return true; }, help);
}

std::vector<Option> make_table() {
  constexpr auto model = &Recipe::model;
  constexpr auto data = &Recipe::data;
  constexpr auto train = &Recipe::train;
  constexpr auto plan = &Recipe::plan;
  constexpr auto run = &Recipe::run;
  const NumberRange share{.least = 0, .most = 1, .without_most = true};
  const NumberRange positive{.least = 0, .without_least = true};
  const NumberRange loss_scale{.least = 0, .most = kLargestLossScale, .without_least = true};
  return {
      choice("model.family",
             model,
             &ModelOptions::family,
             family_names(),
             "the model family; \"own\" for the chain of a C++ program (docs/own_models.md)"),
      integer("model.layers", model, &ModelOptions::layers, {1, 100'000}, "transformer blocks"),
      integer("model.width",
              model,
              &ModelOptions::width,
              {1, 1'000'000},
              "features per token; a multiple of model.heads"),
      integer("model.heads", model, &ModelOptions::heads, {1, 100'000}, "attention heads"),
      integer(
          "model.context", model, &ModelOptions::context, {1, 10'000'000}, "tokens per sequence"),
      integer("model.vocabulary",
              model,
              &ModelOptions::vocabulary,
              {2, 100'000'000},
              "distinct tokens; 256 for data.tokenizer = \"bytes\""),
      flag("model.tied",
           model,
           &ModelOptions::tied,
           "one table embeds tokens and makes logits; false: the head has a table of its own"),
      number("model.dropout",
             model,
             &ModelOptions::dropout,
             share,
             "share of activations dropped in training, after the embedding, in attention and at "
             "each residual"),
#define PENSTOCK_INTEGER_OPTION(name, value, help, ...) \
  integer("model." #name, model, &ModelOptions::name, __VA_ARGS__, help),
#define PENSTOCK_NUMBER_OPTION(name, value, help, ...) \
  number("model." #name, model, &ModelOptions::name, __VA_ARGS__, help),
#define PENSTOCK_FLAG_OPTION(name, value, help) \
  flag("model." #name, model, &ModelOptions::name, help),
#define PENSTOCK_CHOICE_OPTION(name, value, help, ...) \
  choice("model." #name, model, &ModelOptions::name, {__VA_ARGS__}, help),
#include "penstock/config/families.def"
      text("model.weights",
           model,
           &ModelOptions::weights,
           "start from these weights: a checkpoint, a run's folder, a folder that Hugging Face "
           "saved, or a .safetensors file; empty: fresh weights"),

      text("data.path",
           data,
           &DataOptions::path,
           "what to train on: files or folders, separated by commas; relative to where penstock is "
           "started"),
      choice("data.tokenizer",
             data,
             &DataOptions::tokenizer,
             {"bytes", "tokens"},
             "\"bytes\": text, one token a byte; \"tokens\": .bin files of uint16 (vocabulary up "
             "to 65536) or uint32 token ids"),
      number("data.split",
             data,
             &DataOptions::split,
             share,
             "share of the tokens, at the end of the data, kept for validation; 0: no validation"),

      integer("train.steps", train, &TrainOptions::steps, {0}, "optimizer steps"),
      integer("train.batch",
              train,
              &TrainOptions::batch,
              {1, 10'000'000},
              "sequences per optimizer step"),
      choice("train.optimizer",
             train,
             &TrainOptions::optimizer,
             {"adamw", "sgd", "lamb", "onebit-adam", "zeroone-adam", "onebit-lamb"},
             "the optimizer; those with a one in their names send about a sixteenth of the bytes "
             "between replicas once their variance is known (docs/onebit.md)"),
      number("train.lr", train, &TrainOptions::lr, {0}, "the highest learning rate"),
      choice("train.schedule",
             train,
             &TrainOptions::schedule,
             {"constant", "linear", "cosine", "wsd", "onecycle"},
             "how the learning rate goes after warm-up: constant; a line or half a cosine down to "
             "train.final_lr; constant, then down over the last train.decay (wsd); up and down in "
             "one cycle, momentum the other way (onecycle)"),
      integer("train.warmup",
              train,
              &TrainOptions::warmup,
              {0},
              "steps in which the learning rate rises from 0"),
      number("train.final_lr",
             train,
             &TrainOptions::final_lr,
             {0, 1},
             "the last learning rate, as a share of train.lr"),
      number("train.decay",
             train,
             &TrainOptions::decay,
             {0, 1},
             "share of the steps in which \"wsd\" goes down"),
      number("train.weight_decay",
             train,
             &TrainOptions::weight_decay,
             {0},
             "weight decay, decoupled from the gradient (for sgd added to it); not applied to "
             "biases and norms"),
      number("train.beta1",
             train,
             &TrainOptions::beta1,
             share,
             "adamw, lamb and their 1-bit kin: decay of the mean gradient"),
      number("train.beta2",
             train,
             &TrainOptions::beta2,
             share,
             "adamw, lamb and their 1-bit kin: decay of the mean squared gradient"),
      number("train.epsilon",
             train,
             &TrainOptions::epsilon,
             positive,
             "adamw, lamb and their 1-bit kin: added to the denominator"),
      number("train.momentum", train, &TrainOptions::momentum, share, "sgd: momentum"),
      flag("train.nesterov", train, &TrainOptions::nesterov, "sgd: Nesterov's momentum"),
      integer("train.freeze_step",
              train,
              &TrainOptions::freeze_step,
              {0},
              "onebit-adam, onebit-lamb: steps in full precision, after which the variance of each "
              "element is no longer updated; 0: a fifth of train.steps"),
      integer("train.var_freeze_step",
              train,
              &TrainOptions::var_freeze_step,
              {0},
              "zeroone-adam: the step after which the variance stays as it is, and replicas take "
              "steps by themselves; 0: a fifth of train.steps"),
      integer(
          "train.var_update_scaler",
          train,
          &TrainOptions::var_update_scaler,
          {1},
          "zeroone-adam: updates of the variance after which the steps between two of them, one "
          "at first, are doubled"),
      integer("train.local_step_scaler",
              train,
              &TrainOptions::local_step_scaler,
              {0},
              "zeroone-adam: steps after which the steps that replicas take by themselves, one at "
              "first, are doubled; 0: two fifths of train.steps"),
      integer("train.local_step_clipper",
              train,
              &TrainOptions::local_step_clipper,
              {1, 1'000'000},
              "zeroone-adam: the most steps that replicas take by themselves; 1: none"),
      number("train.clip",
             train,
             &TrainOptions::clip,
             {0},
             "largest global gradient norm; 0: no clipping"),
      choice("train.precision",
             train,
             &TrainOptions::precision,
             {"float32", "tf32", "bfloat16", "float16"},
             "precision of forward and backward; weights, their gradients and the optimizer stay "
             "in float32; tf32: float32 with GEMMs in TF32, cuda only; float16: with dynamic "
             "loss scaling, cuda only"),
      number("train.loss_scale",
             train,
             &TrainOptions::loss_scale,
             loss_scale,
             "float16: the first loss scale; a power of two rounds nothing"),
      integer("train.loss_scale_interval",
              train,
              &TrainOptions::loss_scale_interval,
              {1},
              "float16: steps without overflow after which the loss scale doubles"),
      number("train.loss_scale_least",
             train,
             &TrainOptions::loss_scale_least,
             loss_scale,
             "float16: the loss scale never falls below this; at most train.loss_scale"),
      integer(
          "train.loss_scale_hysteresis",
          train,
          &TrainOptions::loss_scale_hysteresis,
          {1},
          "float16: the overflow, counted from when the loss scale last grew, that halves it; each "
          "further one halves it again"),
      integer("train.seed",
              train,
              &TrainOptions::seed,
              {0},
              "seed of weights, dropout and sample order"),

      integer("plan.micro_batches",
              plan,
              &PlanOptions::micro_batches,
              {1, 10'000'000},
              "parts in which a replica computes its share of a batch, one after the other; "
              "times plan.data it divides train.batch"),
      bytes("plan.memory",
            plan,
            &PlanOptions::memory,
            "the most that tensors of a rank may hold at any moment: weights, gradients, optimizer "
            "state, "
            "activations; empty: no limit"),
      choice("plan.recompute",
             plan,
             &PlanOptions::recompute,
             {"auto", "none", "all", "sqrt", "rotor", "rotor-uniform"},
             "what is recomputed instead of kept: nothing, every layer, segments of about the "
             "root of their number, or what is fastest within plan.memory (rotor; rotor-uniform: "
             "the same "
             "for every micro-batch of a pipeline); \"auto\": rotor where there is a limit, none "
             "elsewhere"),
      text("plan.costs",
           plan,
           &PlanOptions::costs,
           "plan with this cost table, as penstock profile writes it; empty: measure when a plan "
           "needs it"),

      integer(
          "plan.pipeline",
          plan,
          &PlanOptions::pipeline,
          {1, 4096},
          "ranks that the layers are cut across, each with a part of the model; 1: no pipeline"),
      integer("plan.data",
              plan,
              &PlanOptions::data,
              {1, 4096},
              "replicas of each rank of the pipeline, each with its share of the batch; there are "
              "plan.pipeline x plan.data ranks. Where a launcher or --ranks says that there are "
              "more, what is 1 of the two is chosen, with the shortest predicted step within "
              "plan.memory"),
      choice(
          "plan.shard",
          plan,
          &PlanOptions::shard,
          {"auto", "none", "optimizer", "gradients", "parameters"},
          "what the replicas have sharded, one shard each, instead of whole: optimizer state "
          "(ZeRO 1), gradients too (ZeRO 2), parameters too (ZeRO 3, FSDP); \"auto\": what has the "
          "shortest predicted step within plan.memory"),
      flag(
          "plan.keep_gathered",
          plan,
          &PlanOptions::keep_gathered,
          "plan.shard = \"parameters\": weights are gathered once a step and kept until their last "
          "use, instead of for every use: fewer bytes sent, more held"),
      bytes("plan.bucket",
            plan,
            &PlanOptions::bucket,
            "plan.shard = \"none\", \"optimizer\": gradients of consecutive layers are reduced at "
            "once when they have so many bytes"),
      choice(
          "plan.collectives",
          plan,
          &PlanOptions::collectives,
          {"auto", "own", "direct", "ring", "butterfly", "tree", "naive"},
          "how replicas reduce and gather (docs/collectives.md); \"direct\": sums in the order of "
          "the ranks, the same bits in every run; \"own\": MPI's; \"auto\": with plan.links the "
          "fastest for each message, else own between processes, direct between threads"),
      text("plan.links",
           plan,
           &PlanOptions::links,
           "what collectives between the ranks cost, as penstock bench allreduce --json writes it; "
           "empty: what a few messages take, measured where there are several ranks"),
      choice("plan.reduce",
             plan,
             &PlanOptions::reduce,
             {"float32", "compute"},
             "precision in which gradients go between replicas; \"compute\": that of "
             "train.precision, half the bytes in bfloat16"),
      choice(
          "plan.schedule",
          plan,
          &PlanOptions::schedule,
          {"auto",
           "gpipe",
           "1f1b",
           "interleaved",
           "zb-h1",
           "zb-h2",
           "zb-v",
           "pipedream",
           "2bw",
           "pipemare"},
          "in which order the ranks of a pipeline run their micro-batches; \"auto\": the one with "
          "the shortest predicted step, of those that give the results of one device; the last "
          "three "
          "are asynchronous and do not (docs/pipelines.md)"),
      integer("plan.chunks",
              plan,
              &PlanOptions::chunks,
              {1, 64},
              "stages that a rank has under plan.schedule = \"interleaved\""),
      text("plan.cuts",
           plan,
           &PlanOptions::cuts,
           "where the stages of a pipeline begin: the first layer of each after the first, as in "
           "\"6,12,18\"; empty: such that the slowest stage is as fast as can be"),
      integer("plan.flush_every",
              plan,
              &PlanOptions::flush_every,
              {1, 100000},
              "asynchronous schedules: optimizer steps between the moments when the pipeline is "
              "drained; saving, validating and stopping wait for those"),
      integer("plan.sync_steps",
              plan,
              &PlanOptions::sync_steps,
              {0, 1000000000},
              "asynchronous schedules: so many steps at the start drain the pipeline each, as "
              "\"1f1b\" does"),
      integer("plan.anneal_steps",
              plan,
              &PlanOptions::anneal_steps,
              {0, 1000000000},
              "\"pipemare\": steps over which the learning rates of early ranks, lowered by their "
              "delay, come up to train.lr; 0: never lowered"),

      choice("run.device", run, &RunOptions::device, {"cpu", "cuda"}, "where to compute"),
      flag("run.deterministic",
           run,
           &RunOptions::deterministic,
           "cuda: the same bits on every run and under every plan, at some cost in speed; the cpu "
           "is always deterministic"),
      choice(
          "run.graphs",
          run,
          &RunOptions::graphs,
          {"auto", "on", "off"},
          "cuda: record the step as a CUDA graph and replay it; \"auto\": where every step is the "
          "same to the device, that is without dropout, and there is no plan.memory"),
      choice("run.links",
             run,
             &RunOptions::links,
             {"auto", "pinned", "nccl"},
             "cuda: how the tensors of a step go between ranks that are processes: through pinned "
             "memory of the host, or by NCCL from GPU to GPU, each rank with one of its own; "
             "\"auto\": pinned, for NCCL has not been tried on two GPUs yet"),
      integer("run.threads",
              run,
              &RunOptions::threads,
              {0, 4096},
              "threads for computing, of each rank; 0: one per core, shared among the ranks"),
      number("run.timeout",
             run,
             &RunOptions::timeout,
             {0.1, 1e6},
             "seconds that a rank waits for another before the run ends and says for what"),
      number(
          "run.hours",
          run,
          &RunOptions::hours,
          {0, 1e6},
          "wall time that the run may take from its beginning, planning included: it saves in time "
          "and ends, to go on with --resume auto; 0: no limit"),
      bytes("run.process_memory",
            run,
            &RunOptions::process_memory,
            "RAM that each process of a CPU run may take, libraries and all: plan.memory is what "
            "they "
            "leave; empty: no limit but the machine's"),
      integer(
          "run.check_replicas",
          run,
          &RunOptions::check_replicas,
          {0},
          "steps between checks that the replicas have the same weights, made also before every "
          "save; 0: none"),
      text("run.out",
           run,
           &RunOptions::out,
           "folder of the run: checkpoints and metrics; empty: runs/ and the recipe's name"),
      choice("run.log",
             run,
             &RunOptions::log,
             {"all", "jsonl", "tensorboard", "none"},
             "which metric files to write: metrics.jsonl, TensorBoard events, both or none"),
      integer("run.log_every",
              run,
              &RunOptions::log_every,
              {1},
              "steps between progress lines where there is no terminal"),
      integer("run.save_every",
              run,
              &RunOptions::save_every,
              {0},
              "steps between checkpoints; 0: only run.save_minutes counts"),
      number("run.save_minutes",
             run,
             &RunOptions::save_minutes,
             {0, 1e6},
             "minutes after which a checkpoint is due where run.save_every has brought none; 0: "
             "only run.save_every counts. There is always one at the end"),
      integer("run.save_wait",
              run,
              &RunOptions::save_wait,
              {0},
              "seconds for which the last checkpoint is tried again where it cannot be written; "
              "the run "
              "goes on where one on the way cannot"),
      integer("run.keep", run, &RunOptions::keep, {0}, "checkpoints kept, the newest ones; 0: all"),
      integer("run.validate_every",
              run,
              &RunOptions::validate_every,
              {0},
              "steps between validations; 0: one at the end"),
      integer("run.validate_sequences",
              run,
              &RunOptions::validate_sequences,
              {1},
              "sequences read by a validation"),
      integer("run.sample_tokens",
              run,
              &RunOptions::sample_tokens,
              {0},
              "tokens of sample text written after training; 0: none"),
      text("run.sample_prompt", run, &RunOptions::sample_prompt, "what the sample starts with"),
  };
}

}  // namespace

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = make_table();
  return table;
}

std::vector<std::string> section_names() {
  std::vector<std::string> sections;
  for (const Option& option : option_table()) {
    if (sections.empty() || sections.back() != option.section()) {
      sections.push_back(option.section());
    }
  }
  return sections;
}

}  // namespace penstock::config
