// What a training does because the model has replicas: their losses become one, and every so often
// their weights are compared.
#pragma once

#include <cstdint>

namespace penstock::comm {
class Group;
}
namespace penstock::run {
class Executor;
}

namespace penstock::train {

struct TrainerParts;

// Of a step that has just run.
struct ReplicaStep {
  double loss = 0;         // the mean over the targets of all replicas
  int64_t sent_bytes = 0;  // to replicas, by the rank that sent most
};
// All ranks call it; all get the same answer.
ReplicaStep gather_replicas(const run::Executor& executor, comm::Group& group);

// All ranks call it. Throws Error (exit code 1) at all of them when replicas differ. Nothing to do
// where there are none.
void check_replicas(const TrainerParts& parts);

}  // namespace penstock::train
