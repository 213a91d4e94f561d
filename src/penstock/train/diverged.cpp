#include "penstock/train/diverged.h"

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/optim/loss_scale.h"

namespace penstock::train {

void fail_diverged(const char* what, int64_t step, const config::TrainOptions& train) {
  throw Error(ExitCode::Negative,
              cat("training diverged at step ",
                  step,
                  ": the ",
                  what,
                  " is not finite; nothing is saved from here; try a lower train.lr than ",
                  train.lr,
                  " or a longer train.warmup"));
}

void fail_stuck_scale(double scale, int64_t step, const config::TrainOptions& train) {
  throw Error(ExitCode::Negative,
              cat("training diverged at step ",
                  step,
                  ": the gradients overflow float16 at the least loss scale ",
                  scale,
                  ", ",
                  optim::LossScaler::kOverflowsWhenStuck,
                  " steps in a row; nothing is saved from here; try train.precision = "
                  "\"bfloat16\" or a lower train.lr than ",
                  train.lr));
}

}  // namespace penstock::train
