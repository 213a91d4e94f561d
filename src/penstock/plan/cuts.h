// Where a chain is cut into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/pipeline.h"

namespace penstock::plan {

// What a stage's micro-batches hold while they wait for their backward.
enum class CutMemory {
  Ignored,
  KeepAll,    // everything is kept
  Recompute,  // as little as recomputation allows
};

struct CutRequest {
  std::vector<int32_t> rank_of;  // of each stage; empty: a rank for each
  LinkCost link = {};            // a stage's messages count as its seconds
  CutMemory memory = CutMemory::Ignored;
  std::vector<int64_t> limit_bytes = {};  // of each rank, its parameters and optimizer included
  std::vector<int32_t> in_flight = {};    // of each stage: micro-batches that it holds at most
};

// What one stage with layers first .. end - 1 takes for a micro-batch, and of memory.
struct StageCost {
  double seconds = 0;
  int64_t bytes = 0;
};
class StageCosts {
 public:
  StageCosts(const CostTable& table, int32_t stages, const CutRequest& request);
  StageCost of(int32_t stage, int32_t first, int32_t end) const;

 private:
  int64_t held_bytes(int32_t first, int32_t end) const;
  int64_t running_bytes(int32_t first, int32_t end) const;
  int64_t carried_bytes(int32_t first, int32_t end) const;
  bool is_touched(const CarriedCost& one, int32_t first, int32_t end) const;
  double message_seconds(const CarriedCost& one, int32_t first, int32_t end) const;

  const CostTable& table_;
  const CutRequest& request_;
  int32_t stages_;
  std::vector<double> seconds_until_;  // sums over the layers
  std::vector<int64_t> resident_until_;
  std::vector<int64_t> kept_until_;
  std::vector<int64_t> running_;  // by first and last layer, in a row
};

// In the form of Pipeline::cuts: the slowest rank is as fast as can be within the limits. Where no
// cuts keep all ranks within them, those that exceed them least. Exact with one stage for each
// rank; with several, the slowest stage is made fast first, and cuts are moved layer by layer from
// there. ConfigError where there are more stages than layers.
std::vector<int32_t> choose_cuts(const CostTable& table, int32_t stages, const CutRequest& request);

// ConfigError where there are more stages than layers.
void check_stages(int32_t stages, int32_t layers);

// Of cuts that a user gave (the first layer of every stage but the first), in the form of
// Pipeline::cuts. ConfigError where they do not fit the layers or the stages.
std::vector<int32_t> check_cuts(const std::vector<int32_t>& given, int32_t layers, int32_t stages);

}  // namespace penstock::plan
