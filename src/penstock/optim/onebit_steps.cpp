#include "penstock/optim/onebit_steps.h"

#include <algorithm>

#include "penstock/base/text.h"

namespace penstock::optim {

namespace {

int64_t given_or_fifths(int64_t given, int64_t fifths, const config::TrainOptions& train) {
  return given > 0 ? given : std::max<int64_t>(1, fifths * train.steps / 5);
}

}  // namespace

int64_t freeze_step(const config::TrainOptions& train) {
  return given_or_fifths(train.freeze_step, 1, train);
}

int64_t var_freeze_step(const config::TrainOptions& train) {
  return given_or_fifths(train.var_freeze_step, 1, train);
}

int64_t variance_updates(const config::TrainOptions& train, int64_t step) {
  const int64_t last = std::min(step, var_freeze_step(train));
  int64_t updates = 0, done = 0;  // `done`: the step of the last of them
  for (int64_t interval = 1; done < last; interval *= 2) {
    const int64_t more = std::min(train.var_update_scaler, (last - done) / interval);
    updates += more;
    done += more * interval;
    if (more < train.var_update_scaler) {
      break;
    }
  }
  return updates;
}

bool updates_variance(const config::TrainOptions& train, int64_t step) {
  return step <= var_freeze_step(train) &&
         variance_updates(train, step) > variance_updates(train, step - 1);
}

bool replicas_meet(const config::TrainOptions& train, int64_t step) {
  const int64_t local = step - var_freeze_step(train);
  if (local <= 0 || step == train.steps) {
    return true;
  }
  const int64_t scaler = given_or_fifths(train.local_step_scaler, 2, train);
  int64_t interval = 1, begin = 0;
  while (interval < train.local_step_clipper && begin + scaler < local) {
    interval = std::min(2 * interval, train.local_step_clipper);
    begin += scaler;
  }
  const bool is_last_of_interval = interval < train.local_step_clipper && local == begin + scaler;
  return is_last_of_interval || (local - begin) % interval == 0;
}

std::string settings_to_go_on(const config::TrainOptions& before,
                              const config::TrainOptions& after,
                              int64_t steps) {
  if (before.optimizer == "zeroone-adam") {
    const bool is_same =
        std::min(steps, var_freeze_step(before)) == std::min(steps, var_freeze_step(after)) &&
        variance_updates(before, steps) == variance_updates(after, steps);
    return is_same ? ""
                   : cat("train.var_freeze_step = ",
                         var_freeze_step(before),
                         " and train.var_update_scaler = ",
                         before.var_update_scaler);
  }
  return std::min(steps, freeze_step(before)) == std::min(steps, freeze_step(after))
             ? ""
             : cat("train.freeze_step = ", freeze_step(before));
}

}  // namespace penstock::optim
