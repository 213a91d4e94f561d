// A recipe: everything that defines a run, as plain values. The option table (options.h) gives each
// field its key, default, range and help; nothing else parses or prints recipes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::config {

// The first is the default.
inline constexpr const char* kFamilies[] = {
#define PENSTOCK_FAMILY(name) #name,
#include "penstock/config/families.def"
};
// Instead of a family's name: the chain comes from a program of the user's.
inline constexpr const char* kOwnFamily = "own";

struct ModelOptions {
  std::string family = kFamilies[0];
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t context = 1024;
  int64_t vocabulary = 50257;
  bool tied = true;
  double dropout = 0.0;
  // Of some families (model/<family>/family.def); the others refuse them (model/family.h).
#define PENSTOCK_INTEGER_OPTION(name, value, ...) int64_t name = value;
#define PENSTOCK_NUMBER_OPTION(name, value, ...) double name = value;
#define PENSTOCK_FLAG_OPTION(name, value, ...) bool name = value;
#define PENSTOCK_CHOICE_OPTION(name, value, ...) std::string name = value;
#include "penstock/config/families.def"
  std::string weights;  // where training starts from; empty: fresh weights
};

struct DataOptions {
  std::string path;
  std::string tokenizer = "bytes";
  double split = 0.1;
};

inline constexpr double kLargestLossScale = 16777216;  // 2²⁴; float32 gradients stay far from inf

// Everything that decides the numbers.
struct TrainOptions {
  int64_t steps = 100;
  int64_t batch = 8;
  std::string optimizer = "adamw";
  double lr = 3e-4;
  std::string schedule = "cosine";
  int64_t warmup = 0;
  double final_lr = 0.1;
  double decay = 0.2;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  // Of the 1-bit optimizers, in optimizer steps; 0: a share of `steps` (docs/onebit.md).
  int64_t freeze_step = 0;
  int64_t var_freeze_step = 0;
  int64_t var_update_scaler = 64;
  int64_t local_step_scaler = 0;
  int64_t local_step_clipper = 16;
  double clip = 1.0;
  std::string precision = "float32";
  double loss_scale = 65536;
  int64_t loss_scale_interval = 2000;
  double loss_scale_least = 1;
  int64_t loss_scale_hysteresis = 2;
  int64_t seed = 1;

  bool is_one_bit() const;  // replicas exchange 1-bit compressed vectors
};

// What may change without changing the numbers.
struct PlanOptions {
  int64_t micro_batches = 1;
  std::string memory;  // "600MiB"; empty: no limit
  std::string recompute = "auto";
  std::string costs;  // a cost table; empty: measure
  int64_t pipeline = 1;
  int64_t data = 1;
  std::string shard = "auto";
  bool keep_gathered = false;
  std::string bucket = "25MiB";
  std::string collectives = "auto";
  std::string links;  // what collectives cost; empty: not known
  std::string reduce = "float32";
  std::string schedule = "auto";
  int64_t chunks = 2;
  std::string cuts;  // "6,12,18"; empty: chosen
  // Of asynchronous schedules, in optimizer steps.
  int64_t flush_every = 16;
  int64_t sync_steps = 0;
  int64_t anneal_steps = 1000;

  int64_t ranks() const { return pipeline * data; }
  int64_t memory_bytes() const;  // 0: no limit
  int64_t bucket_bytes() const;
  bool is_asynchronous() const;  // weights move while micro-batches are in flight
  // The first layers of the stages after the first, as `cuts` has them.
  std::vector<int32_t> first_layers() const;

  bool operator==(const PlanOptions&) const = default;
};

struct RunOptions {
  std::string device = "cpu";
  bool deterministic = false;
  std::string graphs = "auto";
  std::string links = "auto";
  int64_t threads = 0;
  double timeout = 600;
  double hours = 0;            // wall time; 0: no limit
  std::string process_memory;  // "2GiB"; empty: not limited
  int64_t check_replicas = 100;
  std::string out;
  std::string log = "all";
  int64_t log_every = 10;
  int64_t save_every = 0;
  double save_minutes = 30;
  int64_t save_wait = 60;  // seconds
  int64_t keep = 3;
  int64_t validate_every = 0;
  int64_t validate_sequences = 64;
  int64_t sample_tokens = 0;
  std::string sample_prompt = "\n";

  int64_t process_memory_bytes() const;  // 0: not given
};

struct Recipe {
  ModelOptions model;
  DataOptions data;
  TrainOptions train;
  PlanOptions plan;
  RunOptions run;

  // Sequences that a rank computes at once.
  int64_t micro_batch_size() const { return train.batch / (plan.data * plan.micro_batches); }
};

// Reads TOML. `origin` is the file name for messages. Throws ConfigError: unknown key, wrong type,
// out of range. Sections that are none of a recipe's are passed over where they are named.
Recipe parse_recipe(const std::string& toml,
                    const std::string& origin,
                    const std::vector<std::string>& other_sections = {});

// The recipe at `path`, then each "key=value" of `settings` over it, then validated. An empty
// run.out becomes runs/<file name without its ending>.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& settings);

// The complete recipe as TOML: parse_recipe gives back the same values.
std::string format_recipe(const Recipe& recipe);

// Checks that concern several keys. Throws ConfigError.
void validate(const Recipe& recipe);
// And one for when it is known how many replicas there are: without any there is nothing to shard.
void require_replicas(const PlanOptions& plan);

}  // namespace penstock::config
