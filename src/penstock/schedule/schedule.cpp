#include "penstock/schedule/schedule.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/schedule/kinds.h"

namespace penstock::schedule {

namespace {

// Far beyond any real pipeline, and small enough that no number here overflows.
constexpr int64_t kMostTurns = 10'000'000;

void check_at_least_one(int32_t number, const char* what) {
  if (number < 1) {
    throw ConfigError(cat("a pipeline with ", number, " ", what, ": it takes at least 1"));
  }
}

void check_size(Kind kind, const Sizes& sizes) {
  const int64_t stages = int64_t{sizes.ranks} * stages_per_rank(kind, sizes.chunks);
  // Interleaved goes through groups of as many micro-batches as ranks, even where there are fewer.
  const int64_t counted =
      std::max(int64_t{sizes.micro_batches} * sizes.updates, int64_t{sizes.ranks});
  const int64_t phases = splits_backward(kind) || is_asynchronous(kind) ? 3 : 2;
  if (stages > kMostTurns / phases / counted) {
    throw ConfigError(cat("a pipeline of ",
                          stages,
                          " stages with ",
                          counted,
                          " micro-batches",
                          sizes.updates > 1 ? cat(" in ", sizes.updates, " updates") : "",
                          " is too large to schedule: use fewer ranks, chunks or micro-batches",
                          sizes.updates > 1 ? ", or a smaller plan.flush_every" : ""));
  }
}

// With two versions of the weights, those that a batch goes forward with must still be there when
// the last of its micro-batches comes back.
void check_two_versions(Kind kind, const Sizes& sizes) {
  if (kind == Kind::PipeDream2BW && sizes.micro_batches < sizes.ranks) {
    throw ConfigError(
        cat("2bw has two versions of the weights, which takes a micro-batch for each of ",
            sizes.ranks,
            " ranks, and there are ",
            sizes.micro_batches,
            "; use at least ",
            sizes.ranks,
            " micro-batches, or pipedream"));
  }
}

}  // namespace

std::string_view kind_name(Kind kind) {
  return kind_names().at(static_cast<size_t>(kind));
}

const std::vector<std::string>& kind_names() {
  static const std::vector<std::string> names{
      "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "pipedream", "2bw", "pipemare"};
  return names;
}

Kind parse_kind(std::string_view name) {
  const std::vector<std::string>& names = kind_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) {
      return static_cast<Kind>(i);
    }
  }
  const std::string suggestion = nearest(name, names);
  throw ConfigError(cat("unknown pipeline schedule ",
                        in_quotes(name),
                        suggestion.empty() ? "" : cat("; did you mean ", suggestion, "?"),
                        " (there are ",
                        join(names, ", "),
                        ")"));
}

bool splits_backward(Kind kind) {
  return kind == Kind::ZeroBubbleH1 || kind == Kind::ZeroBubbleH2 || kind == Kind::ZeroBubbleV;
}

int32_t stages_per_rank(Kind kind, int32_t chunks) {
  switch (kind) {
    case Kind::Interleaved:
      return chunks;
    case Kind::ZeroBubbleV:
      return 2;
    default:
      return 1;
  }
}

bool is_asynchronous(Kind kind) {
  return kind == Kind::PipeDream || kind == Kind::PipeDream2BW || kind == Kind::PipeMare;
}

Schedule make_schedule(Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks) {
  return make_schedule(kind, {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks});
}

Schedule make_schedule(Kind kind, const Sizes& sizes) {
  const auto [ranks, micro_batches, chunks, updates] = sizes;
  check_at_least_one(ranks, "ranks");
  check_at_least_one(micro_batches, "micro-batches");
  check_at_least_one(stages_per_rank(kind, chunks), "chunks on each rank");
  check_at_least_one(updates, "updates");
  PENSTOCK_CHECK(updates == 1 || is_asynchronous(kind), "updates of a synchronous schedule");
  check_size(kind, sizes);
  check_two_versions(kind, sizes);
  switch (kind) {
    case Kind::GPipe:
      return make_gpipe(ranks, micro_batches);
    case Kind::OneFOneB:
      return make_one_f_one_b(ranks, micro_batches);
    case Kind::Interleaved:
      return make_interleaved(ranks, micro_batches, chunks);
    case Kind::ZeroBubbleH1:
      return make_zero_bubble_h1(ranks, micro_batches);
    case Kind::ZeroBubbleH2:
      return make_zero_bubble_h2(ranks, micro_batches);
    case Kind::ZeroBubbleV:
      return make_zero_bubble_v(ranks, micro_batches);
    case Kind::PipeDream:
    case Kind::PipeDream2BW:
    case Kind::PipeMare:
      return make_asynchronous(kind, ranks, micro_batches, updates);
  }
  PENSTOCK_CHECK(false, "schedule kind ", static_cast<int>(kind));
  return {};
}

}  // namespace penstock::schedule
