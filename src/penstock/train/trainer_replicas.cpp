#include "penstock/train/trainer_replicas.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/comm/group.h"
#include "penstock/comm/mesh.h"
#include "penstock/run/executor.h"
#include "penstock/run/replica_check.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/trainer_parts.h"

namespace penstock::train {

ReplicaStep gather_replicas(const run::Executor& executor, comm::Group& group) {
  std::vector<double> own{static_cast<double>(executor.replica_bytes())};
  own.insert(own.end(), executor.loss_sums().begin(), executor.loss_sums().end());
  const std::vector<double> all =
      group.all_gather(own, [] { return std::string("the losses of all replicas"); });
  // Added up in the order of the micro-batches.
  double sum = 0, sent = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % own.size() == 0) {
      sent = std::max(sent, all[i]);
    } else {
      sum += all[i];  // those of ranks without the loss are 0
    }
  }
  return {.loss = sum * executor.loss_scale(0), .sent_bytes = static_cast<int64_t>(sent)};
}

void check_replicas(const TrainerParts& parts) {
  if (!parts.model.replicas) {
    return;
  }
  comm::Group& group = parts.group;
  comm::Group& replicas = parts.model.replicas->group();
  const std::string drift =
      run::find_drift(run::replicated_tensors(parts.parameters),
                      replicas,
                      comm::members(parts.mesh, comm::along(comm::Axis::Data), group.rank()));
  // All ranks stop, whichever stage it is in; the first that found something says what.
  const std::vector<double> found = gather_ranks(drift.empty() ? 0 : 1, group);
  const auto first = std::find(found.begin(), found.end(), 1.0);
  if (first == found.end()) {
    return;
  }
  std::array<char, 512> line = {};
  drift.copy(line.data(), line.size() - 1);
  group.broadcast(static_cast<int32_t>(first - found.begin()), line.data(), line.size(), [] {
    return std::string("what differs between the replicas");
  });
  throw Error(
      ExitCode::Negative,
      cat("replicas have drifted apart by step ",
          parts.state.step,
          ": ",
          line.data(),
          "; nothing is saved from here; memory or a link of that machine is the likely cause: "
          "go on with --resume ",
          parts.recipe.run.out,
          " elsewhere"));
}

}  // namespace penstock::train
