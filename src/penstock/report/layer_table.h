// Seconds of a step summed per layer, predicted beside measured: where a prediction is off, and
// what recomputation costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/report/step_picture.h"

namespace penstock::report {

struct SecondsPair {
  double predicted = 0;
  double measured = 0;  // 0 when there is no measurement

  SecondsPair& operator+=(SecondsPair other);
};

struct LayerRow {
  std::string name;
  int64_t num_forwards = 0;
  int64_t num_again = 0;          // of these, recomputed
  int64_t num_keep_nothing = 0;   // of all forwards
  std::vector<int64_t> num_kept;  // for each save mode, of all forwards
  SecondsPair forward, backward;
};

struct OpRow {
  std::string name;
  int64_t count = 0;
  SecondsPair seconds;
};

struct StepSums {
  std::vector<LayerRow> layers;  // all ranks together
  std::vector<OpRow> others;     // loss, step, ...: those that occur
  std::vector<OpRow> transfers;  // send, receive, gather, reduce: likewise
  SecondsPair forward, backward;
  SecondsPair all;      // without transfers, which nobody computes
  SecondsPair again;    // the part of `forward` that was recomputed
  SecondsPair step;     // from beginning to end; less than `all` where resources overlap
  int32_t updates = 1;  // that `step` has

  // What `step` is called.
  std::string step_name() const;
};

StepSums step_sums(const StepPicture& picture);

// measured / predicted as "1.02"; "-" where that says nothing.
std::string ratio_text(double predicted, double measured);

// "2 x all, 1 x nothing"
std::string kept_text(const StepPicture& picture, size_t layer, const LayerRow& row);

// Tables for a terminal: per layer, the step, and the peak of each rank. Without a measurement,
// just the prediction.
std::string measured_beside_predicted(const StepPicture& picture);

}  // namespace penstock::report
