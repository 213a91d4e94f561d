// In which order each rank of a pipeline runs the phases of its micro-batches. Pure functions: no
// layer, no second and no byte is known here. docs/pipelines.md has a page for each schedule.
//
// The model is cut into stages, one after the other; a rank has one stage, or several (chunks).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::schedule {

enum class Phase {
  Forward,
  Backward,        // input gradient and weight gradient at once
  BackwardInput,   // the gradient of the stage's input, which the stage before waits for
  BackwardWeight,  // the gradients of its parameters, which nobody waits for
  Update,          // the rank moves its weights, without waiting for other ranks
};

// The weights as they are when the turn comes.
inline constexpr int32_t kNewest = -1;

struct Turn {
  Phase phase = Phase::Forward;
  int32_t stage = 0;
  int32_t micro_batch = 0;  // of an update: its number
  // Which weights the turn works with: those that have had so many updates.
  int32_t version = kNewest;

  bool operator==(const Turn&) const = default;
};

// Synchronous schedules end with one update, for which all ranks wait for each other: it is no
// turn. Asynchronous ones have several updates, which are turns; each takes the gradients of as
// many micro-batches, in order.
struct Schedule {
  int32_t micro_batches = 1;  // of all updates
  int32_t updates = 1;
  std::vector<int32_t> rank_of;          // of each stage
  std::vector<std::vector<Turn>> turns;  // of each rank, in order

  int32_t stages() const { return static_cast<int32_t>(rank_of.size()); }
  int32_t ranks() const { return static_cast<int32_t>(turns.size()); }
};

enum class Kind {
  GPipe,
  OneFOneB,
  Interleaved,
  ZeroBubbleH1,
  ZeroBubbleH2,
  ZeroBubbleV,
  PipeDream,
  PipeDream2BW,
  PipeMare,
};

std::string_view kind_name(Kind kind);  // "1f1b"
// All names, in the order of the enumeration: "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2",
// "zb-v", "pipedream", "2bw", "pipemare".
const std::vector<std::string>& kind_names();
Kind parse_kind(std::string_view name);  // ConfigError names the nearest

// Whether backward is split into input gradient and weight gradient.
bool splits_backward(Kind kind);
// Stages a rank has: `chunks` for interleaved, 2 for zb-v, 1 elsewhere.
int32_t stages_per_rank(Kind kind, int32_t chunks);

// Whether weights move while micro-batches are in flight: results differ from those of one device.
bool is_asynchronous(Kind kind);

struct Sizes {
  int32_t ranks = 1;
  int32_t micro_batches = 1;  // of each update
  int32_t chunks = 2;         // for interleaved alone
  int32_t updates = 1;        // for asynchronous ones alone: until the pipeline is drained
};
// Any numbers from 1 on will do, but 2bw needs a micro-batch for each rank; ConfigError otherwise,
// and where there would be millions of turns.
Schedule make_schedule(Kind kind, const Sizes& sizes);
Schedule make_schedule(Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks = 2);

// The turns that are not updates: for those who ask only who waits for whom, and what is in flight.
Schedule without_updates(const Schedule& schedule);

// How old gradients are, at most, of each rank: updates between the weights that a micro-batch goes
// forward with and the update that its gradient goes into. 0: as on one device.
std::vector<int32_t> most_delayed(const Schedule& schedule);
// Versions of the weights that each rank has at the same time, at most.
std::vector<int32_t> most_versions(const Schedule& schedule);

// What is wrong with it, or nothing: every stage has every phase of every micro-batch once, on its
// rank; a micro-batch goes forward before backward, and a split backward has its input gradient
// first; micro-batches take their turns at a stage in order, in each phase; an update comes when
// the gradients of its micro-batches are complete and no others are there; no turn wants weights
// that are to come; and the ranks never wait for each other in a circle.
std::string find_fault(const Schedule& schedule);

// Micro-batches that a rank has begun and not ended (with the last phase that it runs of them), at
// most, in units of a rank's share of the model: a rank with v stages counts 1/v for each.
std::vector<double> most_in_flight(const Schedule& schedule);

}  // namespace penstock::schedule
