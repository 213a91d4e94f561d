#include "penstock/plan/pipeline_solver.h"

#include <algorithm>
#include <cmath>

#include "penstock/base/error.h"
#include "penstock/plan/cuts.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

namespace penstock::plan {

namespace {

constexpr schedule::Kind kAllKinds[] = {schedule::Kind::OneFOneB,
                                        schedule::Kind::GPipe,
                                        schedule::Kind::Interleaved,
                                        schedule::Kind::ZeroBubbleH1,
                                        schedule::Kind::ZeroBubbleH2,
                                        schedule::Kind::ZeroBubbleV};

class PipelineSolver {
 public:
  struct CutChoice {
    // Where a rank has several stages: whether their seconds are evened out, or those of ranks.
    bool evens_stages = false;
    double share = 1;  // of the limit that the cuts are chosen for: their estimate may be too low
  };

  PipelineSolver(const CostTable& table,
                 const PipelineRequest& request,
                 schedule::Kind kind,
                 const CutChoice& choice)
      : table_(table), request_(request) {
    result_.kind = kind;
    Pipeline& pipeline = result_.pipeline;
    pipeline.link = request.link;
    pipeline.schedule =
        schedule::make_schedule(kind,
                                {.ranks = request.ranks,
                                 .micro_batches = request.micro_batches,
                                 .chunks = request.chunks,
                                 .updates = schedule::is_asynchronous(kind) ? request.updates : 1});
    pipeline.cuts = find_cuts(choice);
    holdings_ = request.holdings ? request.holdings(pipeline) : holdings_by_rank(table, pipeline);
    pipeline.weight_bytes = request.weight_bytes ? request.weight_bytes(pipeline)
                                                 : weight_bytes_by_rank(table, pipeline);
  }

  PipelineAnswer run() {
    // What the slots are chosen by is close to what the program holds, and not above it everywhere:
    // where the program goes over, less is asked for.
    int64_t margin = 0;
    constexpr int kTries = 4;
    for (int tries = 0; tries < kTries; ++tries) {
      const SlotsAnswer answer = choose(margin);
      lower(answer);
      const int64_t over = most_over();
      result_.is_feasible = over <= 0;
      if (!answer.is_feasible || over <= 0) {
        break;
      }
      margin += over;
    }
    finish();
    return std::move(result_);
  }

 private:
  std::vector<int32_t> find_cuts(const CutChoice& choice) const {
    const schedule::Schedule& schedule = result_.pipeline.schedule;
    const int32_t layers = static_cast<int32_t>(table_.layers.size());
    const SpentScope scope(request_.spent, "cuts");
    if (!request_.first_layers.empty()) {
      return check_cuts(request_.first_layers, layers, schedule.stages());
    }
    CutRequest request{.link = request_.link};
    if (choice.evens_stages) {
      return choose_cuts(table_, schedule.stages(), request);
    }
    request.rank_of = schedule.rank_of;
    if (request_.limit_bytes > 0) {
      request.memory =
          request_.mode == SlotMode::KeepAll ? CutMemory::KeepAll : CutMemory::Recompute;
      const double limit = choice.share * static_cast<double>(request_.limit_bytes);
      request.limit_bytes.assign(static_cast<size_t>(request_.ranks), static_cast<int64_t>(limit));
      const std::vector<double> in_flight = schedule::most_in_flight(schedule);
      for (const int32_t rank : schedule.rank_of) {
        request.in_flight.push_back(
            static_cast<int32_t>(std::ceil(in_flight[static_cast<size_t>(rank)])));
      }
    }
    return choose_cuts(table_, schedule.stages(), request);
  }

  SlotsAnswer choose(int64_t margin) const {
    const SpentScope scope(request_.spent, "slots");
    // In a pipeline that is not drained every micro-batch is like every other.
    const Pipeline& pipeline = result_.pipeline;
    const bool is_drained = pipeline.schedule.updates == 1;
    const SlotMode mode =
        request_.mode == SlotMode::Apart && !is_drained ? SlotMode::Uniform : request_.mode;
    const schedule::Schedule turns = schedule::without_updates(pipeline.schedule);
    SlotsRequest request{.table = table_,
                         .schedule = turns,
                         .cuts = pipeline.cuts,
                         .link = request_.link,
                         .mode = mode};
    if (request_.limit_bytes > 0) {
      for (size_t rank = 0; rank < holdings_.ranks.size(); ++rank) {
        request.limit_bytes.push_back(request_.limit_bytes - held_always(rank) - margin);
      }
    }
    return choose_slots(request);
  }

  // Old versions of the weights included, as many as there are at the same time.
  int64_t held_always(size_t rank) const {
    const Pipeline& pipeline = result_.pipeline;
    const int32_t versions = schedule::most_versions(pipeline.schedule)[rank];
    return holdings_.ranks[rank].bytes() + (versions - 1) * pipeline.weight_bytes[rank];
  }

  void lower(const SlotsAnswer& answer) {
    result_.pipeline.operations = answer.operations;
    result_.recomputed_forwards = answer.recomputed_forwards;
    result_.program =
        lower_pipeline(table_, result_.pipeline, holdings_, /*limit_bytes=*/0, request_.spent);
    result_.peak_bytes.clear();
    result_.least_bytes.clear();
    for (size_t rank = 0; rank < holdings_.ranks.size(); ++rank) {
      result_.peak_bytes.push_back(program::replay_peak(result_.program.ranks[rank]).bytes);
      result_.least_bytes.push_back(
          answer.is_feasible
              ? result_.peak_bytes.back()
              : std::max(result_.peak_bytes.back(), answer.least_bytes[rank] + held_always(rank)));
    }
  }

  int64_t most_over() const {
    int64_t over = 0;
    for (const int64_t peak : result_.peak_bytes) {
      over = std::max(over, peak - request_.limit_bytes);
    }
    return request_.limit_bytes > 0 ? over : 0;
  }

  void finish() {
    const SpentScope scope(request_.spent, "verify and simulate");
    for (program::RankProgram& rank : result_.program.ranks) {
      rank.limit_bytes = result_.is_feasible ? request_.limit_bytes : 0;
    }
    const program::Verdict verdict = program::verify(result_.program);
    PENSTOCK_CHECK(verdict.is_sound(), "an unsound pipeline: ", verdict.violation->text);
    for (size_t rank = 0; rank < verdict.peaks.size(); ++rank) {
      const int32_t at = verdict.peaks[rank].instruction;
      result_.binding.push_back(
          at < 0 ? "weights, state and inputs"
                 : describe(result_.program,
                            result_.program.ranks[rank].instructions[static_cast<size_t>(at)]));
    }
    const program::Timeline timeline = program::simulate(result_.program);
    result_.step_s = timeline.seconds / result_.program.updates;
    result_.bubble = idle_share(timeline);
  }

  const CostTable& table_;
  const PipelineRequest& request_;
  Holdings holdings_;
  PipelineAnswer result_;
};

int64_t most(const std::vector<int64_t>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

bool is_better(const PipelineAnswer& a, const PipelineAnswer& b) {
  if (a.is_feasible != b.is_feasible) {
    return a.is_feasible;
  }
  return a.is_feasible ? a.step_s < b.step_s : most(a.least_bytes) < most(b.least_bytes);
}

PipelineAnswer plan_kind(const CostTable& table,
                         const PipelineRequest& request,
                         schedule::Kind kind) {
  PipelineAnswer result = PipelineSolver(table, request, kind, {}).run();
  if (!request.first_layers.empty()) {
    return result;
  }
  const auto offer = [&](const PipelineSolver::CutChoice& choice) {
    PipelineAnswer other = PipelineSolver(table, request, kind, choice).run();
    if (is_better(other, result)) {
      result = std::move(other);
    }
  };
  if (schedule::stages_per_rank(kind, request.chunks) > 1) {
    offer({.evens_stages = true});
  }
  // Whatever keeping everything needs, cut as if there were no limit, is enough for it: nothing that is
  // estimated stands in its way.
  if (request.limit_bytes > 0 && request.mode != SlotMode::KeepAll) {
    PipelineRequest whole = request;
    whole.mode = SlotMode::KeepAll;
    whole.limit_bytes = 0;
    PipelineAnswer kept = plan_kind(table, whole, kind);
    if (most(kept.peak_bytes) <= request.limit_bytes) {
      for (program::RankProgram& rank : kept.program.ranks) {
        rank.limit_bytes = request.limit_bytes;
      }
      if (is_better(kept, result)) {
        result = std::move(kept);
      }
    }
  }
  for (const double share : {0.8, 0.6, 0.4, 0.2, 0.0}) {
    if (!result.is_feasible) {
      offer({.share = share});
    }
  }
  return result;
}

// Other limits lead to other cuts, so the least limit of one plan is not the least of all: it is
// looked for between one that does not do and one that does, to a hundredth.
void lower_least(const CostTable& table, PipelineRequest request, PipelineAnswer& result) {
  int64_t too_low = request.limit_bytes;
  int64_t enough = most(result.least_bytes);
  while (enough - too_low > std::max<int64_t>(1, enough / 100)) {
    request.limit_bytes = too_low + (enough - too_low) / 2;
    PipelineAnswer tried = plan_kind(table, request, result.kind);
    if (tried.is_feasible) {
      enough = most(tried.peak_bytes);
      tried.is_feasible = false;
      tried.least_bytes = tried.peak_bytes;
      result = std::move(tried);
    } else {
      too_low = request.limit_bytes;
    }
  }
}

// Those that have enough layers; where none has, the error says so for the plainest.
std::vector<schedule::Kind> candidates(const CostTable& table, const PipelineRequest& request) {
  std::vector<schedule::Kind> kinds;
  for (const schedule::Kind kind : kAllKinds) {
    const int64_t stages = int64_t{request.ranks} * schedule::stages_per_rank(kind, request.chunks);
    const bool has_cuts = request.first_layers.empty() ||
                          static_cast<int64_t>(request.first_layers.size()) + 1 == stages;
    if (stages <= static_cast<int64_t>(table.layers.size()) && has_cuts) {
      kinds.push_back(kind);
    }
  }
  return kinds.empty() ? std::vector{kAllKinds[0]} : kinds;
}

}  // namespace

double idle_share(const program::Timeline& timeline) {
  double busy = 0;
  for (const program::RankTimeline& rank : timeline.ranks) {
    busy += rank.compute_seconds();
  }
  const double all = timeline.seconds * static_cast<double>(timeline.ranks.size());
  return all > 0 ? 1 - busy / all : 0;
}

PipelineAnswer solve_pipeline(const CostTable& table, const PipelineRequest& request) {
  const SpentScope scope(request.spent, "schedule");
  std::vector<PipelineAnswer> results;
  for (const schedule::Kind kind :
       request.kind ? std::vector{*request.kind} : candidates(table, request)) {
    results.push_back(plan_kind(table, request, kind));
  }
  const bool fits_none = std::none_of(
      results.begin(), results.end(), [](const auto& result) { return result.is_feasible; });
  for (PipelineAnswer& result : results) {
    if (fits_none) {
      lower_least(table, request, result);
    }
  }
  std::stable_sort(results.begin(), results.end(), is_better);
  PipelineAnswer best = std::move(results.front());
  for (size_t i = 1; i < results.size(); ++i) {
    best.runners_up.push_back(
        {results[i].kind, results[i].is_feasible, results[i].step_s, most(results[i].peak_bytes)});
  }
  return best;
}

}  // namespace penstock::plan
