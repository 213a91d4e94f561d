#include "penstock/report/plan_text.h"

#include <cmath>
#include <cstdio>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/pipeline_text.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using plan::OperationKind;

// What the plan does with one layer, per micro-batch.
struct LayerPlan {
  std::string kept;  // the save mode, and from when
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
    const plan::SaveModeCost& mode = cost.modes[static_cast<size_t>(operation.mode)];
    const bool without_output = plan::leaves_output_out(costs, operations, i);
    row.forward_s += without_output ? mode.recompute_s : mode.forward_s;
    row.backward_s = mode.backward_s;
    if (is_before_loss) {
      row.kept = mode.name;
      row.kept_bytes = mode.saved_bytes;
    } else {
      row.kept += cat("recomputed, then ", mode.name);
    }
  }
  return plans;
}

bool has_several_ranks(const plan::Outcome& outcome) {
  return outcome.program.ranks.size() > 1;
}

std::string recomputation_text(const plan::Outcome& outcome) {
  const int64_t recomputed = outcome.recomputed_forwards;
  return cat(outcome.plan.options.recompute,
             ", ",
             recomputed,
             recomputed == 1 ? " forward recomputed" : " forwards recomputed",
             outcome.micro_batches() > 1 ? " per micro-batch" : "");
}

}  // namespace

std::string overhead_text(const plan::Outcome& outcome) {
  if (!(outcome.unlimited_s > 0)) {
    return "-";
  }
  const double over = 100 * (outcome.step_s / outcome.unlimited_s - 1);
  const bool is_under = over < -0.05;  // what rounds to zero is neither
  char text[64];
  std::snprintf(text,
                sizeof text,
                "%.1f %% %s keeping everything",
                std::abs(over),
                is_under ? "under" : "over");
  return text;
}

std::string plan_line(const plan::Outcome& outcome) {
  if (!outcome.is_feasible) {
    return does_not_fit(outcome);
  }
  if (has_several_ranks(outcome)) {
    return pipeline_line(outcome);
  }
  const int64_t limit = outcome.limit_bytes();
  return cat(recomputation_text(outcome),
             "; peak ",
             format_bytes(outcome.most_peak_bytes()),
             limit > 0 ? cat(" of ", format_bytes(limit)) : "",
             outcome.step_s > 0
                 ? cat("; step ", format_seconds(outcome.step_s), ", ", overhead_text(outcome))
                 : "");
}

std::string plan_title(const plan::CostTable& costs, const plan::Outcome& outcome) {
  const int64_t limit = outcome.limit_bytes();
  const std::string within = limit > 0 ? cat(" within ", format_bytes(limit)) : "";
  if (has_several_ranks(outcome)) {
    return pipeline_title(outcome) + within;
  }
  return cat(costs.description,
             costs.description.empty() ? "" : "; ",
             outcome.plan.options.recompute,
             within);
}

std::string does_not_fit(const plan::Outcome& outcome) {
  if (has_several_ranks(outcome)) {
    return pipeline_does_not_fit(outcome);
  }
  return cat("does not fit: plan.memory = ",
             format_count(outcome.limit_bytes()),
             " bytes, but recompute = \"",
             outcome.plan.options.recompute,
             "\" needs at least ",
             format_count(outcome.most_least_bytes()),
             " (",
             format_bytes(outcome.most_least_bytes()),
             "), where ",
             outcome.binding.front(),
             " binds; penstock plan shows what the cheapest changes would do");
}

std::string plan_table(const plan::CostTable& costs, const plan::Outcome& outcome) {
  const std::vector<LayerPlan> plans = plans_of(costs, outcome.plan.one_rank_operations());
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

std::string plan_totals(const plan::CostTable& costs, const plan::Outcome& outcome) {
  Table table({{""}, {""}});
  const int64_t limit = outcome.limit_bytes();
  table.add_row({"recomputation", recomputation_text(outcome)});
  for (const program::Held& resident : costs.held) {
    table.add_row({cat("  ", resident.name), format_bytes(resident.bytes)});
  }
  table.add_row({"peak",
                 cat(format_bytes(outcome.most_peak_bytes()),
                     limit > 0 ? cat(" of ", format_bytes(limit), " allowed") : ", no limit")});
  table.add_row({"least limit",
                 cat(format_bytes(outcome.most_least_bytes()),
                     " (",
                     format_count(outcome.most_least_bytes()),
                     " bytes); ",
                     outcome.binding.front(),
                     " binds there")});
  table.add_row(
      {"keeping everything",
       cat(format_seconds(outcome.unlimited_s), " with ", format_bytes(outcome.unlimited_bytes))});
  table.add_row(
      {"step", cat(format_seconds(outcome.step_s), " predicted, ", overhead_text(outcome))});
  return table.text();
}

namespace {

std::string facts_table(const plan::CostTable& costs, const plan::Outcome& outcome) {
  const int64_t least = outcome.most_least_bytes();
  Table facts({{""}, {""}});
  facts.add_row(
      {"least limit that fits", cat(format_count(least), " bytes (", format_bytes(least), ")")});
  facts.add_row({"what binds there", outcome.binding.front()});
  facts.add_row({"weights and state", format_bytes(costs.held_bytes())});
  facts.add_row({"step at that limit",
                 cat(format_seconds(outcome.step_s),
                     ", ",
                     overhead_text(outcome),
                     " (",
                     format_bytes(outcome.unlimited_bytes),
                     ")")});
  return facts.text();
}

std::string changes_table(const plan::Outcome& outcome, const std::vector<plan::Remedy>& remedies) {
  const int64_t least = outcome.most_least_bytes();
  Table changes({{"change"}, {"least limit", Align::Right}, {"fits"}, {"step", Align::Right}});
  changes.add_row({cat("plan.memory = \"", least, "\""),
                   format_bytes(least),
                   "yes",
                   format_seconds(outcome.step_s)});
  for (const plan::Remedy& remedy : remedies) {
    changes.add_row({remedy.change,
                     format_bytes(remedy.least_bytes),
                     remedy.fits ? "yes" : "no",
                     format_seconds(remedy.step_s)});
  }
  return changes.text();
}

}  // namespace

std::string plan_page(const plan::CostTable& costs, const plan::Outcome& outcome) {
  const std::string head = costs.description.empty() ? "" : cat(costs.description, "\n\n");
  if (has_several_ranks(outcome)) {
    return cat(head, pipeline_table(outcome), "\n", pipeline_line(outcome), "\n");
  }
  return cat(head, plan_table(costs, outcome), "\n", plan_totals(costs, outcome));
}

std::string certificate_page(const plan::CostTable& costs,
                             const plan::Outcome& outcome,
                             const std::vector<plan::Remedy>& remedies) {
  if (has_several_ranks(outcome)) {
    return pipeline_certificate(outcome);
  }
  return cat("It does not fit: ",
             format_count(outcome.limit_bytes()),
             " bytes are allowed, ",
             format_count(outcome.most_least_bytes() - outcome.limit_bytes()),
             " more would do.\n\n",
             facts_table(costs, outcome),
             remedies.empty()
                 ? ""
                 : cat("\nWhat a change would do:\n\n", changes_table(outcome, remedies)));
}

}  // namespace penstock::report
