#include "penstock/train/rank_model.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/plan/cuts.h"
#include "penstock/profile/profile.h"
#include "penstock/program/program_json.h"
#include "penstock/report/pipeline_text.h"
#include "penstock/run/rank_update.h"
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

int64_t optimizer_copies(const config::TrainOptions& train) {
  return train.optimizer == "sgd" ? (train.momentum > 0 ? 1 : 0) : 2;
}

// As build_rank_model() will allocate them.
std::vector<program::Resident> residents_of(const config::Recipe& recipe,
                                            const model::Chain& chain,
                                            const model::Part& part) {
  const std::vector<model::ParameterSpec> specs = chain.parameters(part);
  const int64_t elements = model::Parameters::flat_elements(specs);
  std::vector<program::Resident> residents{{"weights", 4 * elements}, {"gradients", 4 * elements}};
  if (const at::ScalarType type = compute_type(recipe.train); type != at::kFloat) {
    residents.push_back({"compute copy", static_cast<int64_t>(c10::elementSize(type)) * elements});
  }
  residents.push_back({"optimizer state", 4 * elements * optimizer_copies(recipe.train)});
  int64_t largest = 0, shared = 0;
  for (const model::ParameterSpec& spec : specs) {
    largest = std::max(largest, spec.count());
  }
  std::set<std::string> seen;
  const auto count_shared = [&](const std::vector<model::ParameterSpec>& layer) {
    for (const model::ParameterSpec& spec : layer) {
      shared += seen.insert(spec.name).second ? 0 : spec.count();
    }
  };
  for (const int64_t layer : part.layers) {
    count_shared(chain.layer(layer).parameters());
  }
  if (part.has_loss) {
    count_shared(chain.loss().parameters());
  }
  if (shared > 0) {
    residents.push_back({"gradients of shared weights", 4 * shared});
  }
  if (recipe.train.optimizer == "lamb") {
    residents.push_back({"update", 4 * largest});
  }
  return residents;
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
      {{recipe.train.batch / recipe.plan.micro_batches, recipe.model.context}, at::kLong},
      compute_type(recipe.train));
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const plan::LayerCost& cost = table.layers[static_cast<size_t>(i)];
    const int64_t output_bytes = shapes[static_cast<size_t>(i) + 1].bytes();
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
  }
  return made;
}

}  // namespace

plan::CostTable find_pipeline_costs(const config::Recipe& recipe, const model::Chain& chain) {
  require_cuts(recipe, chain);
  if (recipe.plan.costs.empty()) {
    return measure_pipeline(recipe, chain);
  }
  plan::CostTable table = plan::read_costs(recipe.plan.costs);
  require_table_of(table, chain, recipe);
  return table;
}

plan::CostTable measure_pipeline(const config::Recipe& recipe, const model::Chain& chain) {
  const memory::AccountScope scope(memory::process_account());
  const model::Part part = kinds_of(chain);
  model::Parameters parameters(chain,
                               part,
                               compute_type(recipe.train),
                               static_cast<uint64_t>(recipe.train.seed),
                               device::open_cpu());
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  plan::CostTable table =
      measure_costs(recipe, chain, parameters, *optimizer, {.measures_halves = true});
  table.residents.clear();  // of the layers that were measured
  // A table is of the whole model; a pipeline shares its update among the ranks by their parameters.
  const double share =
      static_cast<double>(chain.parameter_count()) / static_cast<double>(parameters.count());
  table.step_s *= share;
  table.clear_s *= share;
  table.step_extra_bytes += run::RankUpdate::working_bytes(chain);
  return table;
}

plan::PipelineRequest pipeline_request(const config::PlanOptions& options) {
  plan::PipelineRequest request{.ranks = static_cast<int32_t>(options.pipeline),
                                .micro_batches = static_cast<int32_t>(options.micro_batches),
                                .chunks = static_cast<int32_t>(options.chunks),
                                .first_layers = options.first_layers(),
                                .mode = slot_mode(options),
                                .limit_bytes = options.memory_bytes()};
  if (options.schedule != "auto") {
    request.kind = schedule::parse_kind(options.schedule);
  }
  return request;
}

plan::PipelineResult plan_pipeline(const config::Recipe& recipe,
                                   const model::Chain& chain,
                                   const plan::CostTable& costs) {
  plan::PipelineRequest request = pipeline_request(recipe.plan);
  request.residents = [&](const plan::Pipeline& pipeline) {
    plan::Residents all;
    for (const model::Part& part :
         run::parts_of({pipeline.schedule.rank_of, pipeline.cuts}, request.ranks)) {
      all.push_back(residents_of(recipe, chain, part));
    }
    return all;
  };
  return plan::plan_pipeline(costs, request);
}

RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           bool predicts) {
  if (group.size() == 1) {
    return build_alone(recipe, chain, device, predicts);
  }
  RankModel made;
  std::string text;
  std::optional<PatientScope> patience(group);
  if (group.rank() == 0) {
    made.planned.costs = find_pipeline_costs(recipe, chain);
    const plan::PipelineResult result = plan_pipeline(recipe, chain, made.planned.costs);
    if (!result.is_feasible) {
      throw Error(ExitCode::Negative, report::does_not_fit(result, recipe.plan.memory_bytes()));
    }
    log_info("plan: ", report::pipeline_line(result, recipe.plan.memory_bytes()));
    text = spell(result);
  }
  text = broadcast(group, std::move(text));
  patience.reset();
  const nlohmann::json json = nlohmann::json::parse(text);
  made.stages = {json.at("rank_of").get<std::vector<int32_t>>(),
                 json.at("cuts").get<std::vector<int32_t>>()};
  made.parts = run::parts_of(made.stages, group.size());
  plan::PlanResult& result = made.planned.result;
  result.is_feasible = true;
  result.step_s = json.at("step_s").get<double>();
  made.predicted_peaks = json.at("peak_bytes").get<std::vector<int64_t>>();
  result.peak_bytes = *std::max_element(made.predicted_peaks.begin(), made.predicted_peaks.end());
  result.plan.limit_bytes = recipe.plan.memory_bytes();
  result.plan.micro_batches = static_cast<int32_t>(recipe.plan.micro_batches);
  result.program =
      program::parse_program_json(json.at("program").get<std::string>(), "the plan of rank 0");
  made.parameters =
      std::make_unique<model::Parameters>(chain,
                                          made.parts[static_cast<size_t>(group.rank())],
                                          compute_type(recipe.train),
                                          static_cast<uint64_t>(recipe.train.seed),
                                          device);
  made.optimizer = optim::make_optimizer(recipe.train, *made.parameters);
  return made;
}

}  // namespace penstock::train
