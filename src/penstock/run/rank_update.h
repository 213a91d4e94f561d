// What the update of a model that several ranks share needs from the other ranks: the gradients of
// parameters that more than one of them has, and the squares that make up the norm of all.
#pragma once

#include <string>
#include <vector>

#include "penstock/base/exact_sum.h"
#include "penstock/comm/group.h"
#include "penstock/model/chain.h"
#include "penstock/program/program.h"

namespace penstock::model {
class Parameters;
}

namespace penstock::run {

class Transfers;

class RankUpdate {
 public:
  // `parts` are the layers of each stage of ranks; rank = stage * replicas + replica. The group, of
  // all ranks, must outlive this.
  RankUpdate(const model::Chain& chain,
             const std::vector<model::Part>& parts,
             comm::Group& group,
             int32_t replicas = 1,
             program::Shard shard = program::Shard::None);

  // The most that adding up shared gradients holds beside them.
  static int64_t working_bytes(const model::Chain& chain);

  // All ranks call both, in this order, before their optimizers' step.
  //
  // A parameter that several layers share (a table that embeds tokens and makes logits) may be with
  // two stages: afterwards both have the sum of the gradients (of the pieces that the rank has), to
  // the same bits, and so their weights stay the same. `is_whole`: all of the gradient, where the
  // replicas have not divided the sum of theirs.
  void add_shared_gradients(model::Parameters& parameters, bool is_whole = false);
  // From the squares of this rank's pieces to those of all parameters, in the order of the chain.
  std::vector<ExactSum> gather_squares(const std::vector<ExactSum>& own);

 private:
  void exchange(Transfers& transfers,
                model::Parameters& parameters,
                const std::string& name,
                int32_t peer,
                bool is_whole);

  struct Shared {
    std::string name;
    std::vector<int32_t> stages;  // that have it, in the order of the chain
  };

  comm::Group& group_;
  const int32_t replicas_;
  const bool is_sharded_;
  std::vector<Shared> all_;     // parameters of the chain
  std::vector<size_t> own_;     // this rank's, as indices into all_
  std::vector<size_t> shared_;  // those of them that another rank has too
  int64_t channel_ = 0;
};

}  // namespace penstock::run
