#include "penstock/report/plan_text.h"

#include <cmath>
#include <cstdio>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using plan::OperationKind;

// What the plan does with one layer, per micro-batch.
struct LayerPlan {
  std::string kept;  // the way of keeping, and from when
  int64_t forwards = 0;
  int64_t kept_bytes = 0;
  double forward_s = 0;
  double backward_s = 0;
};

std::vector<LayerPlan> plans_of(const plan::CostTable& costs, const plan::Operations& operations) {
  std::vector<LayerPlan> plans(costs.layers.size());
  bool is_before_loss = true;
  for (size_t i = 0; i < operations.size(); ++i) {
    const plan::Operation& operation = operations[i];
    if (operation.kind == OperationKind::Loss) {
      is_before_loss = false;
      continue;
    }
    const size_t at = static_cast<size_t>(operation.layer);
    const plan::LayerCost& cost = costs.layers[at];
    LayerPlan& row = plans[at];
    if (operation.kind == OperationKind::Backward) {
      continue;
    }
    ++row.forwards;
    if (operation.kind != OperationKind::ForwardAll) {
      row.forward_s += cost.forward_s;
      if (operation.kind == OperationKind::ForwardKeepInput && is_before_loss) {
        row.kept = "input; ";
        row.kept_bytes = cost.input_bytes;
      }
      continue;
    }
    const plan::KeepCost& way = cost.ways[static_cast<size_t>(operation.way)];
    const bool without_output = plan::leaves_output_out(costs, operations, i);
    row.forward_s += without_output ? way.recompute_s : way.forward_s;
    row.backward_s = way.backward_s;
    if (is_before_loss) {
      row.kept = way.name;
      row.kept_bytes = way.saved_bytes;
    } else {
      row.kept += cat("recomputed, then ", way.name);
    }
  }
  return plans;
}

std::string recomputation_text(const plan::CostTable& costs, const plan::PlanResult& result) {
  const int64_t again = plan::recomputed_forwards(costs, result.plan.operations);
  return cat(plan::recompute_name(result.plan.recompute),
             ", ",
             again,
             again == 1 ? " forward run again" : " forwards run again",
             result.plan.micro_batches > 1 ? " per micro-batch" : "");
}

}  // namespace

std::string overhead_text(const plan::PlanResult& result) {
  if (!(result.unlimited_s > 0)) {
    return "-";
  }
  const double over = 100 * (result.step_s / result.unlimited_s - 1);
  const bool is_under = over < -0.05;  // what rounds to zero is neither
  char text[64];
  std::snprintf(text,
                sizeof text,
                "%.1f %% %s keeping everything",
                std::abs(over),
                is_under ? "under" : "over");
  return text;
}

std::string plan_line(const plan::CostTable& costs, const plan::PlanResult& result) {
  const int64_t limit = result.plan.limit_bytes;
  return cat(recomputation_text(costs, result),
             "; peak ",
             format_bytes(result.peak_bytes),
             limit > 0 ? cat(" of ", format_bytes(limit)) : "",
             result.step_s > 0
                 ? cat("; step ", format_seconds(result.step_s), ", ", overhead_text(result))
                 : "");
}

std::string plan_title(const plan::CostTable& costs, const plan::PlanResult& result) {
  const int64_t limit = result.plan.limit_bytes;
  return cat(costs.description,
             costs.description.empty() ? "" : "; ",
             plan::recompute_name(result.plan.recompute),
             limit > 0 ? cat(" within ", format_bytes(limit)) : "");
}

std::string does_not_fit(const plan::PlanResult& result) {
  return cat("does not fit: plan.memory = ",
             format_count(result.plan.limit_bytes),
             " bytes, but recompute = \"",
             plan::recompute_name(result.plan.recompute),
             "\" needs at least ",
             format_count(result.least_bytes),
             " (",
             format_bytes(result.least_bytes),
             "), where ",
             result.binding,
             " binds; penstock plan shows what the cheapest changes would do");
}

std::string plan_table(const plan::CostTable& costs, const plan::PlanResult& result) {
  const std::vector<LayerPlan> plans = plans_of(costs, result.plan.operations);
  Table table({{"layer"},
               {"keeps"},
               {"forwards", Align::Right},
               {"held for backward", Align::Right},
               {"forward ms", Align::Right},
               {"backward ms", Align::Right}});
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayerPlan& row = plans[i];
    table.add_row({costs.layers[i].name,
                   row.kept,
                   format_count(row.forwards),
                   format_bytes(row.kept_bytes),
                   format_milliseconds(row.forward_s),
                   format_milliseconds(row.backward_s)});
  }
  table.add_row({costs.loss.name, "", "1", "", format_milliseconds(costs.loss.seconds), ""});
  return table.text();
}

std::string plan_totals(const plan::CostTable& costs, const plan::PlanResult& result) {
  Table table({{""}, {""}});
  const int64_t limit = result.plan.limit_bytes;
  table.add_row({"recomputation", recomputation_text(costs, result)});
  for (const program::Held& resident : costs.held) {
    table.add_row({cat("  ", resident.name), format_bytes(resident.bytes)});
  }
  table.add_row({"peak",
                 cat(format_bytes(result.peak_bytes),
                     limit > 0 ? cat(" of ", format_bytes(limit), " allowed") : ", no limit")});
  table.add_row({"least limit",
                 cat(format_bytes(result.least_bytes),
                     " (",
                     format_count(result.least_bytes),
                     " bytes); ",
                     result.binding,
                     " binds there")});
  table.add_row(
      {"keeping everything",
       cat(format_seconds(result.unlimited_s), " with ", format_bytes(result.unlimited_bytes))});
  table.add_row(
      {"step", cat(format_seconds(result.step_s), " predicted, ", overhead_text(result))});
  return table.text();
}

}  // namespace penstock::report
