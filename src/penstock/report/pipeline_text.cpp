#include "penstock/report/pipeline_text.h"

#include <algorithm>
#include <cstdio>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/program/simulate.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string cuts_text(const plan::Pipeline& pipeline) {
  std::vector<std::string> cuts;
  for (size_t i = 1; i + 1 < pipeline.cuts.size(); ++i) {
    cuts.push_back(cat(pipeline.cuts[i]));
  }
  return cuts.empty() ? "not cut" : cat("cut at ", join(cuts, ", "));
}

// "0-5, 12-17"
std::string layers_of(const plan::PipelineResult& result, size_t rank) {
  const plan::Pipeline& pipeline = result.pipeline;
  const int32_t place = result.program.stage_of(static_cast<int32_t>(rank));
  std::vector<std::string> ranges;
  for (size_t stage = 0; stage < pipeline.schedule.rank_of.size(); ++stage) {
    if (pipeline.schedule.rank_of[stage] == place) {
      const int32_t last = pipeline.cuts[stage + 1] - 1;
      ranges.push_back(pipeline.cuts[stage] == last ? cat(last)
                                                    : cat(pipeline.cuts[stage], "-", last));
    }
  }
  return join(ranges, ", ");
}

size_t tightest_rank(const plan::PipelineResult& result) {
  return static_cast<size_t>(
      std::max_element(result.least_bytes.begin(), result.least_bytes.end()) -
      result.least_bytes.begin());
}

std::string list_text(const std::vector<int32_t>& numbers) {
  std::vector<std::string> words;
  for (const int32_t number : numbers) {
    words.push_back(cat(number));
  }
  return join(words, ", ");
}

// What an asynchronous schedule does to the numbers.
std::string delay_text(const plan::PipelineResult& result) {
  if (!schedule::is_asynchronous(result.kind)) {
    return "";
  }
  const schedule::Schedule& schedule = result.pipeline.schedule;
  return cat("; asynchronous: gradients are late by up to ",
             list_text(schedule::most_delayed(schedule)),
             " updates (by rank), ",
             list_text(schedule::most_versions(schedule)),
             " versions of the weights, drained every ",
             schedule.updates,
             " updates");
}

std::string replicas_text(const program::Program& program) {
  if (program.replicas() == 1) {
    return "";
  }
  const std::string what = program.shard == program::Shard::None
                               ? "all of it whole"
                               : cat("sharded: ", program::shard_name(program.shard));
  return cat(program.replicas(), " replicas, ", what, "; ");
}

std::string sent_text(const plan::PipelineResult& result) {
  if (result.sent_bytes == 0) {
    return "";
  }
  const bool is_accumulated = result.program.micro_batches > 1 && result.gathered_again_bytes > 0;
  return cat("; ",
             format_bytes(result.sent_bytes),
             " sent to replicas",
             is_accumulated ? cat(", ",
                                  format_bytes(result.gathered_again_bytes),
                                  " of it to gather weights again for ",
                                  result.program.micro_batches,
                                  " micro-batches (plan.keep_gathered spares that)")
                            : "");
}

}  // namespace

std::string pipeline_line(const plan::PipelineResult& result, int64_t limit_bytes) {
  const int64_t peak = *std::max_element(result.peak_bytes.begin(), result.peak_bytes.end());
  const bool is_pipeline = result.pipeline.schedule.ranks() > 1;
  return cat(replicas_text(result.program),
             is_pipeline ? cat(schedule::kind_name(result.kind),
                               " on ",
                               result.pipeline.schedule.ranks(),
                               " ranks, ")
                         : "",
             result.pipeline.schedule.micro_batches / result.pipeline.schedule.updates,
             " micro-batches",
             is_pipeline ? cat(", ", cuts_text(result.pipeline)) : "",
             delay_text(result),
             "; ",
             result.recomputed_forwards,
             " forwards run again; peak ",
             format_bytes(peak),
             limit_bytes > 0 ? cat(" of ", format_bytes(limit_bytes)) : "",
             "; step ",
             format_seconds(result.step_s),
             ", ",
             percent(result.bubble),
             " of it bubble",
             sent_text(result));
}

std::string does_not_fit(const plan::PipelineResult& result, int64_t limit_bytes) {
  const size_t rank = tightest_rank(result);
  return cat("does not fit: rank ",
             rank,
             " needs at least ",
             format_count(result.least_bytes[rank]),
             " bytes (",
             result.binding[rank],
             "), and plan.memory allows ",
             format_count(limit_bytes),
             "; try more plan.micro_batches, more ranks in plan.pipeline, another plan.schedule, ",
             result.program.updates > 1 ? "a smaller plan.flush_every, " : "",
             "or plan.recompute = \"auto\"");
}

std::string pipeline_table(const plan::CostTable& costs, const plan::PipelineResult& result) {
  const program::Timeline timeline = program::simulate(result.program);
  Table ranks({{"rank", Align::Right},
               {"layers"},
               {"weights and state", Align::Right},
               {"peak", Align::Right},
               {"computes", Align::Right},
               {"of the step", Align::Right},
               {"holds most at"}});
  for (size_t rank = 0; rank < result.program.ranks.size(); ++rank) {
    const double seconds = timeline.ranks[rank].compute_seconds();
    ranks.add_row({cat(rank),
                   layers_of(result, rank),
                   format_bytes(result.program.ranks[rank].persistent_bytes()),
                   format_bytes(result.peak_bytes[rank]),
                   format_seconds(seconds / result.program.updates),
                   percent(timeline.seconds > 0 ? seconds / timeline.seconds : 0),
                   result.binding[rank]});
  }
  std::string text = ranks.text();
  if (!result.runners_up.empty()) {
    Table others({{"other schedules"}, {"step", Align::Right}, {"peak", Align::Right}});
    for (const plan::PipelineResult::RunnerUp& other : result.runners_up) {
      others.add_row({std::string(schedule::kind_name(other.kind)),
                      other.is_feasible ? format_seconds(other.step_s) : "does not fit",
                      format_bytes(other.peak_bytes)});
    }
    text += "\n" + others.text();
  }
  return cat(costs.description.empty() ? "" : cat(costs.description, "\n\n"), text);
}

std::string pipeline_certificate(const plan::PipelineResult& result, int64_t limit_bytes) {
  Table ranks({{"rank", Align::Right},
               {"layers"},
               {"weights and state", Align::Right},
               {"least limit", Align::Right},
               {"fits"},
               {"holds most at"}});
  for (size_t rank = 0; rank < result.least_bytes.size(); ++rank) {
    ranks.add_row({cat(rank),
                   layers_of(result, rank),
                   format_bytes(result.program.ranks[rank].persistent_bytes()),
                   cat(format_count(result.least_bytes[rank]), " bytes"),
                   result.least_bytes[rank] <= limit_bytes ? "yes" : "no",
                   result.binding[rank]});
  }
  return cat("It does not fit: ",
             format_count(limit_bytes),
             " bytes are allowed to each rank.\n\n",
             ranks.text());
}

}  // namespace penstock::report
