#include "penstock/train/rank_model.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/plan/cuts.h"
#include "penstock/plan/shard.h"
#include "penstock/profile/profile.h"
#include "penstock/program/program_json.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"
#include "penstock/report/pipeline_text.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/asynchronous.h"
#include "penstock/train/layout.h"
#include "penstock/train/mesh.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

// One layer of each kind, and the loss: enough to measure a chain by.
model::Part kinds_of(const model::Chain& chain) {
  model::Part part;
  std::set<std::string> known;
  for (int64_t i = 0; i < chain.size(); ++i) {
    const std::string kind = chain.layer(i).kind();
    if (kind.empty() || known.insert(kind).second) {
      part.layers.push_back(i);
    }
  }
  return part;
}

// A table of another model, or of other micro-batches.
void require_table_of(const plan::CostTable& table,
                      const model::Chain& chain,
                      const config::Recipe& recipe) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(cat(
        "plan.costs = ", recipe.plan.costs, " ", what, "; measure again with penstock profile"));
  };
  if (static_cast<int64_t>(table.layers.size()) != chain.size()) {
    refuse(cat("has ", table.layers.size(), " layers, the model has ", chain.size()));
  }
  const std::vector<model::TensorShape> shapes = chain.shapes_for(
      {{recipe.micro_batch_size(), recipe.model.context}, at::kLong}, compute_type(recipe.train));
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const plan::LayerCost& cost = table.layers[static_cast<size_t>(i)];
    const int64_t tensor_bytes = shapes[static_cast<size_t>(i) + 1].bytes();
    const int64_t output_bytes =
        recipe.run.device == "cuda" ? memory::gpu_block_bytes(tensor_bytes) : tensor_bytes;
    const auto same_way = [](const plan::KeepCost& a, const model::Way& b) {
      return a.name == b.name && a.needs_output == b.needs_output;
    };
    if (cost.output_bytes != output_bytes || !std::equal(cost.ways.begin(),
                                                         cost.ways.end(),
                                                         layer.ways().begin(),
                                                         layer.ways().end(),
                                                         same_way)) {
      refuse(cat("does not fit the model: layer ",
                 i,
                 " (",
                 cost.name,
                 ", ",
                 format_count(cost.output_bytes),
                 " bytes out) is not ",
                 layer.name(),
                 " (",
                 format_count(output_bytes),
                 " bytes out) or has other ways of keeping"));
    }
  }
}

// More stages than layers, or cuts that are none.
void require_cuts(const config::Recipe& recipe, const model::Chain& chain) {
  const config::PlanOptions& options = recipe.plan;
  const schedule::Kind kind = options.schedule == "auto" ? schedule::Kind::OneFOneB
                                                         : schedule::parse_kind(options.schedule);
  const int64_t stages =
      options.pipeline * schedule::stages_per_rank(kind, static_cast<int32_t>(options.chunks));
  const std::vector<int32_t> first_layers = options.first_layers();
  plan::check_stages(static_cast<int32_t>(stages), static_cast<int32_t>(chain.size()));
  if (!first_layers.empty() && options.schedule != "auto") {
    plan::check_cuts(
        first_layers, static_cast<int32_t>(chain.size()), static_cast<int32_t>(stages));
  }
}

plan::SlotMode slot_mode(const config::PlanOptions& options) {
  if (options.recompute == "rotor-uniform") {
    return plan::SlotMode::Uniform;
  }
  const bool recomputes =
      options.recompute == "rotor" || (options.recompute == "auto" && options.memory_bytes() > 0);
  return recomputes ? plan::SlotMode::Apart : plan::SlotMode::KeepAll;
}

// What the other ranks need to know of the plan.
std::string spell(const plan::PipelineResult& result) {
  return nlohmann::json{{"rank_of", result.pipeline.schedule.rank_of},
                        {"cuts", result.pipeline.cuts},
                        {"step_s", result.step_s},
                        {"peak_bytes", result.peak_bytes},
                        {"program", program::program_json(result.program)}}
      .dump();
}

std::string broadcast(comm::Group& group, std::string text) {
  const comm::What what = [] { return std::string("the plan of the step"); };
  int64_t size = static_cast<int64_t>(text.size());
  group.broadcast(0, &size, sizeof size, what);
  text.resize(static_cast<size_t>(size));
  group.broadcast(0, text.data(), size, what);
  return text;
}

RankModel build_alone(const config::Recipe& recipe,
                      const model::Chain& chain,
                      const device::Device& device,
                      bool predicts) {
  RankModel made{.stages = {{0}, {0, static_cast<int32_t>(chain.size())}},
                 .parts = {chain.whole()}};
  made.parameters = std::make_unique<model::Parameters>(
      chain, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device);
  made.optimizer = optim::make_optimizer(recipe.train, *made.parameters);
  made.planned = plan_run(recipe, chain, *made.parameters, *made.optimizer, predicts);
  if (made.planned.result.step_s > 0) {
    made.predicted_peaks = {made.planned.result.peak_bytes};
    made.title = report::plan_title(made.planned.costs, made.planned.result);
  }
  return made;
}

}  // namespace

plan::CostTable find_pipeline_costs(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const device::Device& device) {
  require_cuts(recipe, chain);
  if (recipe.plan.costs.empty()) {
    return measure_pipeline(recipe, chain, device);
  }
  plan::CostTable table = plan::read_costs(recipe.plan.costs);
  require_table_of(table, chain, recipe);
  return table;
}

namespace {

// A GPU counts by stream, so there is no other account to measure on: its limit waits meanwhile.
class LimitLifted {
 public:
  explicit LimitLifted(memory::Account& account)
      : account_(account), before_(account.limit_bytes()) {
    if (before_ > 0) {
      account_.set_limit(0);
    }
  }
  // To be called where all went well: without its limit nothing may go on.
  void set_again() {
    if (before_ > 0) {
      account_.set_limit(before_);
    }
    is_set_again_ = true;
  }
  ~LimitLifted() {
    try {
      if (!is_set_again_) {
        set_again();
      }
    } catch (const std::exception& error) {
      log_warning("while a memory limit was set again: ", error.what());  // a device has failed
    }
  }
  LimitLifted(const LimitLifted&) = delete;
  LimitLifted& operator=(const LimitLifted&) = delete;

 private:
  memory::Account& account_;
  const int64_t before_;
  bool is_set_again_ = false;
};

plan::CostTable measure_without_limit(const config::Recipe& recipe,
                                      const model::Chain& chain,
                                      const device::Device& device,
                                      const CostOptions& options) {
  const int64_t held = device.account().usage().current_bytes;
  const model::Part part = kinds_of(chain);
  model::Parameters parameters(
      chain, part, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device);
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  plan::CostTable table = measure_costs(recipe, chain, parameters, *optimizer, options);
  table.held.clear();  // of the layers that were measured
  if (device.is_gpu()) {
    table.held.push_back({kWorkspacesName, held});
  }
  // A table is of the whole model; a pipeline shares its update among the ranks by their
  // parameters.
  const double share =
      static_cast<double>(chain.parameter_count()) / static_cast<double>(parameters.count());
  table.step_s *= share;
  table.clear_s *= share;
  return table;
}

// The limit comes back when what was measured with is gone.
plan::CostTable measure_kinds(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const device::Device& device,
                              const CostOptions& options) {
  const memory::AccountScope scope(device.account());
  LimitLifted lifted(device.account());
  plan::CostTable table = measure_without_limit(recipe, chain, device, options);
  lifted.set_again();
  return table;
}

}  // namespace

plan::CostTable measure_pipeline(const config::Recipe& recipe,
                                 const model::Chain& chain,
                                 const device::Device& device) {
  return measure_kinds(recipe, chain, device, {.measures_halves = true});
}

plan::PipelineRequest pipeline_request(const config::PlanOptions& options) {
  plan::PipelineRequest request{.ranks = static_cast<int32_t>(options.pipeline),
                                .micro_batches = static_cast<int32_t>(options.micro_batches),
                                .chunks = static_cast<int32_t>(options.chunks),
                                .updates = static_cast<int32_t>(options.flush_every),
                                .first_layers = options.first_layers(),
                                .mode = slot_mode(options),
                                .limit_bytes = options.memory_bytes()};
  if (options.schedule != "auto") {
    request.kind = schedule::parse_kind(options.schedule);
  }
  return request;
}

namespace {

// The program of all replicas of a pipeline's plan.
program::Program replicate(const config::Recipe& recipe,
                           const model::Chain& chain,
                           plan::CostTable costs,
                           const plan::Pipeline& pipeline,
                           int64_t limit_bytes) {
  const plan::Sharding sharding = sharding_of(recipe, chain, pipeline.cuts, pipeline.link);
  if (sharding.shard != program::Shard::None) {
    costs.step_s /= static_cast<double>(recipe.plan.data);  // each moves its slices
  }
  program::Program program =
      plan::finish_program(plan::shard(plan::write_turns(costs, pipeline), sharding),
                           all_holdings(recipe, chain, pipeline, costs),
                           pipeline.link,
                           limit_bytes);
  return write_form(std::move(program),
                    recipe,
                    chain,
                    {pipeline.schedule.rank_of, pipeline.cuts},
                    pipeline.link,
                    first_form(recipe));
}

// With replicas: the same stages, each `plan.data` times, with the program of all of them.
void add_replicas(const config::Recipe& recipe,
                  const model::Chain& chain,
                  const plan::CostTable& costs,
                  plan::PipelineResult& result) {
  const int64_t limit = result.is_feasible ? recipe.plan.memory_bytes() : 0;
  result.program = replicate(recipe, chain, costs, result.pipeline, limit);
  const program::Verdict verdict = program::verify(result.program);
  PENSTOCK_CHECK(verdict.is_sound(), "an unsound program of replicas: ", verdict.violation->text);
  const std::vector<int64_t> least = result.least_bytes;
  result.peak_bytes.clear();
  result.least_bytes.clear();
  result.binding.clear();
  for (size_t rank = 0; rank < result.program.ranks.size(); ++rank) {
    const program::Peak& peak = verdict.peaks[rank];
    const auto stage = static_cast<size_t>(result.program.stage_of(static_cast<int32_t>(rank)));
    result.peak_bytes.push_back(peak.bytes);
    result.least_bytes.push_back(result.is_feasible ? peak.bytes
                                                    : std::max(peak.bytes, least[stage]));
    result.binding.push_back(
        peak.instruction < 0
            ? "weights, state and inputs"
            : describe(
                  result.program,
                  result.program.ranks[rank].instructions[static_cast<size_t>(peak.instruction)]));
  }
  const program::Timeline timeline = program::simulate(result.program);
  result.step_s = timeline.seconds;
  result.bubble = plan::idle_share(timeline);
  const plan::SentBytes sent = plan::count_sent(result.program);
  result.sent_bytes = sent.all;
  result.gathered_again_bytes = sent.gathered_again;
}

plan::PipelineResult plan_request(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const plan::CostTable& costs,
                                  plan::PipelineRequest request) {
  const auto parts_of = [&](const plan::Pipeline& pipeline) {
    return run::parts_of({pipeline.schedule.rank_of, pipeline.cuts}, request.ranks);
  };
  request.holdings = [&](const plan::Pipeline& pipeline) {
    return stage_holdings(recipe, chain, pipeline, costs);
  };
  request.weight_bytes = [&](const plan::Pipeline& pipeline) {
    std::vector<int64_t> all;
    for (const model::Part& part : parts_of(pipeline)) {
      const int64_t bytes =
          model::Parameters::copy_bytes(chain.parameters(part), compute_type(recipe.train));
      // On a GPU each of its two tensors ends with a block.
      all.push_back(recipe.run.device == "cuda"
                        ? memory::gpu_block_bytes(bytes) + memory::gpu_block_bytes(1)
                        : bytes);
    }
    return all;
  };
  if (recipe.plan.data == 1) {
    return plan::plan_pipeline(costs, request);
  }
  if (request.ranks == 1) {
    request.kind = request.kind.value_or(schedule::Kind::OneFOneB);
  }
  const plan::Sharding units =
      sharding_of(recipe, chain, {0, static_cast<int32_t>(chain.size())}, request.link);
  std::vector<int32_t> rank_of;  // of each layer and of the loss
  if (units.keeps_gathered && request.ranks > 1) {
    // What is kept depends on what else the rank has: the cuts come first.
    plan::PipelineRequest free = request;
    free.limit_bytes = 0;
    free.mode = plan::SlotMode::KeepAll;
    const plan::PipelineResult cut = plan::plan_pipeline(costs, free);
    request.kind = cut.kind;
    request.first_layers.assign(cut.pipeline.cuts.begin() + 1, cut.pipeline.cuts.end() - 1);
    for (size_t stage = 0; stage < cut.pipeline.schedule.rank_of.size(); ++stage) {
      rank_of.resize(static_cast<size_t>(cut.pipeline.cuts[stage + 1]),
                     cut.pipeline.schedule.rank_of[stage]);
    }
    rank_of.push_back(rank_of.back());
  }
  // What units hold at each layer does not depend on the cuts otherwise.
  plan::PipelineResult result =
      plan::plan_pipeline(plan::with_sharding(costs, units, rank_of), request);
  add_replicas(recipe, chain, costs, result);
  return result;
}

}  // namespace

plan::PipelineResult plan_pipeline(const config::Recipe& recipe,
                                   const model::Chain& chain,
                                   const plan::CostTable& costs,
                                   const plan::LinkCost& line) {
  plan::PipelineRequest request = pipeline_request(recipe.plan);
  request.link = line;
  request.updates = static_cast<int32_t>(most_steps_at_once(recipe));
  return plan_request(recipe, chain, costs, std::move(request));
}

program::Program plan_updates(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const RankModel& model,
                              comm::Group& group,
                              int64_t updates) {
  std::string text;
  const PatientScope patience(group);
  if (group.rank() == 0) {
    plan::PipelineRequest request = pipeline_request(recipe.plan);
    request.updates = static_cast<int32_t>(updates);
    request.first_layers.assign(model.stages.cuts.begin() + 1, model.stages.cuts.end() - 1);
    const plan::PipelineResult result =
        plan_request(recipe, chain, model.planned.costs, std::move(request));
    if (!result.is_feasible) {
      throw Error(ExitCode::Negative,
                  cat(updates,
                      " steps of the pipeline do not fit, though ",
                      model.planned.result.program.updates,
                      " do: ",
                      report::does_not_fit(result, recipe.plan.memory_bytes())));
    }
    text = program::program_json(result.program);
  }
  return program::parse_program_json(broadcast(group, std::move(text)), "the plan of rank 0");
}

RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           bool predicts) {
  if (recipe.plan.ranks() == 1) {
    return build_alone(recipe, chain, device, predicts);
  }
  RankModel made;
  std::string text;
  std::optional<PatientScope> patience(group);
  const plan::LinkCost line = recipe.plan.data > 1 ? probe_line(group) : plan::LinkCost();
  made.line = line;
  if (group.rank() == 0) {
    made.planned.costs = find_pipeline_costs(recipe, chain, device);
    const plan::PipelineResult result = plan_pipeline(recipe, chain, made.planned.costs, line);
    if (!result.is_feasible) {
      throw Error(ExitCode::Negative, report::does_not_fit(result, recipe.plan.memory_bytes()));
    }
    made.title = report::pipeline_line(result, recipe.plan.memory_bytes());
    log_info("plan: ", made.title);
    text = spell(result);
  }
  text = broadcast(group, std::move(text));
  const bool has_measured = group.rank() == 0 && recipe.plan.costs.empty();
  if (device.is_gpu() && !recipe.run.deterministic) {
    // The algorithms of products are chosen while costs are measured, by each rank for itself.
    // Nobody goes on, and waits for a peer with run.timeout, before all have theirs.
    if (!has_measured) {
      measure_kinds(recipe, chain, device, {.only_bytes = true});
    }
    group.barrier([] { return std::string("the choice of algorithms for products"); });
  }
  if (device.is_gpu()) {
    device.account().restart_peak();  // what measuring held is no part of the rank's peak
  }
  patience.reset();
  const nlohmann::json json = nlohmann::json::parse(text);
  made.stages = {json.at("rank_of").get<std::vector<int32_t>>(),
                 json.at("cuts").get<std::vector<int32_t>>()};
  made.parts = run::parts_of(made.stages, static_cast<int32_t>(recipe.plan.pipeline));
  plan::PlanResult& result = made.planned.result;
  result.is_feasible = true;
  result.step_s = json.at("step_s").get<double>();
  made.predicted_peaks = json.at("peak_bytes").get<std::vector<int64_t>>();
  result.peak_bytes = *std::max_element(made.predicted_peaks.begin(), made.predicted_peaks.end());
  result.plan.limit_bytes = recipe.plan.memory_bytes();
  result.plan.micro_batches = static_cast<int32_t>(recipe.plan.micro_batches);
  result.program =
      program::parse_program_json(json.at("program").get<std::string>(), "the plan of rank 0");
  const comm::Mesh mesh = mesh_of(recipe.plan);
  const comm::Coordinates at = mesh.coordinates(group.rank());
  if (mesh.data > 1) {
    made.replicas = std::make_unique<run::Replicas>(group, replica_options(recipe, group));
  }
  made.parameters =
      std::make_unique<model::Parameters>(chain,
                                          made.parts[static_cast<size_t>(at.pipeline)],
                                          compute_type(recipe.train),
                                          static_cast<uint64_t>(recipe.train.seed),
                                          device,
                                          replication_of(recipe, chain, made.stages.cuts, at.data));
  made.optimizer = optim::make_optimizer(recipe.train, *made.parameters);
  return made;
}

}  // namespace penstock::train
