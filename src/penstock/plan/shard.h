// From the program of a pipeline, or of one rank, to that of its replicas: gathers and reduces are
// put in where the list calls for them. Data parallelism and the sharding of optimizer state,
// gradients and parameters differ in nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/cost_table.h"
#include "penstock/program/program.h"

namespace penstock::plan {

struct UnitCost {
  program::Unit unit;
  int64_t gathered_bytes = 0;  // its whole weights
  int64_t bucket_bytes = 0;    // its whole gradient
  double gather_s = 0, reduce_s = 0;
  int64_t reduced_bytes = 0;  // of its gradient, as it goes between replicas
  // By replica: what it sends to the others in a gather, and in a reduce.
  std::vector<int64_t> gather_sent = {}, reduce_sent = {};
};

struct Sharding {
  int32_t replicas = 1;
  program::Shard shard = program::Shard::None;
  std::vector<UnitCost> units;  // becomes the program's, in this order
  // Shard::Parameters: a unit is gathered once in a step and kept until its last use there, instead
  // of once for each use.
  bool keeps_gathered = false;

  std::vector<program::Unit> program_units() const;
};

// `pipeline` has one replica, is a step of one update or an evaluation, and holds nothing yet. With
// one replica nothing changes. An evaluation has gathers alone.
//
// Gradients that are resident are reduced right after their last contribution. Others go into
// buckets: a bucket is reduced when it is complete, while the rank's next work at a layer goes on,
// and dropped after that. Sharded parameters are gathered one use ahead and freed by the
// instruction that uses them, unless the next use wants them too. Neither buckets nor gathered
// weights outlast work at a layer that is not the same or a neighbour: where the list jumps (to a
// layer that is recomputed, or to another micro-batch), a rank waits for its reduce, drops the
// bucket, and gathers for what comes. So what a layer finds of others' is of its neighbours, which
// is what with_sharding() counts.
program::Program shard(const program::Program& pipeline, const Sharding& sharding);

// What the rank that sends most sends to its replicas in a step; and the part of it that gathers
// beyond the first of each unit are.
struct SentBytes {
  int64_t all = 0;
  int64_t gathered_again = 0;
};
SentBytes count_sent(const program::Program& program);

// The table with what sharding adds to each layer, at most: planned for it, a pipeline's sharded
// program holds no more than was planned. What is held from step to step is left as it is. rank_of: of each layer,
// then of the loss; empty: one rank has them all.
CostTable with_sharding(const CostTable& table,
                        const Sharding& sharding,
                        const std::vector<int32_t>& rank_of = {});

}  // namespace penstock::plan
