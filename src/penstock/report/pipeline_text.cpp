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

std::string cut_text(const plan::Outcome& outcome) {
  std::vector<std::string> firsts;
  for (const int32_t layer : outcome.plan.options.first_layers()) {
    firsts.push_back(cat(layer));
  }
  return firsts.empty() ? "not cut" : cat("cut at ", join(firsts, ", "));
}

// "0-5, 12-17"
std::string layers_of(const plan::Outcome& outcome, size_t rank) {
  const std::vector<int32_t> rank_of = outcome.schedule().rank_of;
  const std::vector<int32_t> cuts = outcome.cuts();
  const int32_t place = outcome.program.stage_of(static_cast<int32_t>(rank));
  std::vector<std::string> ranges;
  for (size_t stage = 0; stage < rank_of.size(); ++stage) {
    if (rank_of[stage] == place) {
      const int32_t last = cuts[stage + 1] - 1;
      ranges.push_back(cuts[stage] == last ? cat(last) : cat(cuts[stage], "-", last));
    }
  }
  return join(ranges, ", ");
}

size_t tightest_rank(const plan::Outcome& outcome) {
  return static_cast<size_t>(
      std::max_element(outcome.least_bytes.begin(), outcome.least_bytes.end()) -
      outcome.least_bytes.begin());
}

std::string list_text(const std::vector<int32_t>& numbers) {
  std::vector<std::string> words;
  for (const int32_t number : numbers) {
    words.push_back(cat(number));
  }
  return join(words, ", ");
}

// What an asynchronous schedule does to the numbers.
std::string delay_text(const plan::Outcome& outcome) {
  if (!outcome.plan.options.is_asynchronous()) {
    return "";
  }
  const schedule::Schedule schedule = outcome.schedule();
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

std::string sent_text(const plan::Outcome& outcome) {
  if (outcome.sent_bytes == 0) {
    return "";
  }
  const bool is_accumulated = outcome.program.micro_batches > 1 && outcome.gathered_again_bytes > 0;
  return cat("; ",
             format_bytes(outcome.sent_bytes),
             " sent to replicas",
             is_accumulated ? cat(", ",
                                  format_bytes(outcome.gathered_again_bytes),
                                  " of it to gather weights again for ",
                                  outcome.program.micro_batches,
                                  " micro-batches (plan.keep_gathered spares that)")
                            : "");
}

}  // namespace

std::string pipeline_title(const plan::Outcome& outcome) {
  const config::PlanOptions& options = outcome.plan.options;
  const bool is_pipeline = options.pipeline > 1;
  return cat(replicas_text(outcome.program),
             is_pipeline ? cat(options.schedule, " on ", options.pipeline, " ranks, ") : "",
             outcome.micro_batches(),
             " micro-batches",
             is_pipeline ? cat(", ", cut_text(outcome)) : "",
             delay_text(outcome),
             "; ",
             outcome.recomputed_forwards,
             " forwards recomputed");
}

std::string pipeline_line(const plan::Outcome& outcome) {
  const int64_t limit_bytes = outcome.limit_bytes();
  return cat(pipeline_title(outcome),
             "; peak ",
             format_bytes(outcome.most_peak_bytes()),
             limit_bytes > 0 ? cat(" of ", format_bytes(limit_bytes)) : "",
             "; step ",
             format_seconds(outcome.step_s),
             ", ",
             percent(outcome.bubble),
             " of it bubble",
             sent_text(outcome));
}

std::string pipeline_does_not_fit(const plan::Outcome& outcome) {
  const size_t rank = tightest_rank(outcome);
  return cat("does not fit: rank ",
             rank,
             " needs at least ",
             format_count(outcome.least_bytes[rank]),
             " bytes (",
             outcome.binding[rank],
             "), and plan.memory allows ",
             format_count(outcome.limit_bytes()),
             "; try more plan.micro_batches, more ranks in plan.pipeline, another plan.schedule, ",
             outcome.program.updates > 1 ? "a smaller plan.flush_every, " : "",
             "or plan.recompute = \"auto\"");
}

std::string pipeline_table(const plan::Outcome& outcome) {
  const program::Timeline timeline = program::simulate(outcome.program);
  Table ranks({{"rank", Align::Right},
               {"layers"},
               {"weights and state", Align::Right},
               {"peak", Align::Right},
               {"computes", Align::Right},
               {"of the step", Align::Right},
               {"holds most at"}});
  for (size_t rank = 0; rank < outcome.program.ranks.size(); ++rank) {
    const double seconds = timeline.ranks[rank].compute_seconds();
    ranks.add_row({cat(rank),
                   layers_of(outcome, rank),
                   format_bytes(outcome.program.ranks[rank].persistent_bytes()),
                   format_bytes(outcome.peak_bytes[rank]),
                   format_seconds(seconds / outcome.program.updates),
                   percent(timeline.seconds > 0 ? seconds / timeline.seconds : 0),
                   outcome.binding[rank]});
  }
  std::string text = ranks.text();
  if (!outcome.runners_up.empty()) {
    Table others({{"other schedules"}, {"step", Align::Right}, {"peak", Align::Right}});
    for (const plan::PipelineAnswer::RunnerUp& other : outcome.runners_up) {
      others.add_row({std::string(schedule::kind_name(other.kind)),
                      other.is_feasible ? format_seconds(other.step_s) : "does not fit",
                      format_bytes(other.peak_bytes)});
    }
    text += "\n" + others.text();
  }
  return text;
}

std::string pipeline_certificate(const plan::Outcome& outcome) {
  Table ranks({{"rank", Align::Right},
               {"layers"},
               {"weights and state", Align::Right},
               {"least limit", Align::Right},
               {"fits"},
               {"holds most at"}});
  for (size_t rank = 0; rank < outcome.least_bytes.size(); ++rank) {
    ranks.add_row({cat(rank),
                   layers_of(outcome, rank),
                   format_bytes(outcome.program.ranks[rank].persistent_bytes()),
                   cat(format_count(outcome.least_bytes[rank]), " bytes"),
                   outcome.least_bytes[rank] <= outcome.limit_bytes() ? "yes" : "no",
                   outcome.binding[rank]});
  }
  return cat("It does not fit: ",
             format_count(outcome.limit_bytes()),
             " bytes are allowed to each rank.\n\n",
             ranks.text());
}

}  // namespace penstock::report
