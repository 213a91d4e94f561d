// What the update of a model that several ranks share needs from the other ranks: the gradients of
// parameters that more than one of them has, and the squares that make up the norm of all.
#pragma once

#include <string>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/model/chain.h"

namespace penstock::model {
class Parameters;
}

namespace penstock::run {

class Transfers;

class RankUpdate {
 public:
  // `parts` are the layers of each rank. The group must outlive this.
  RankUpdate(const model::Chain& chain, const std::vector<model::Part>& parts, comm::Group& group);

  // The most that adding up shared gradients holds beside them.
  static int64_t working_bytes(const model::Chain& chain);

  // All ranks call both, in this order, before their optimizers' step.
  //
  // A parameter that several layers share (a table that embeds tokens and makes logits) may be with
  // two ranks: afterwards both have the sum of the gradients, to the same bits, and so their weights
  // stay the same.
  void add_shared_gradients(model::Parameters& parameters);
  // From the squares of this rank's parameters to those of all, in the order of the chain.
  std::vector<double> gather_squares(const std::vector<double>& own);

 private:
  void exchange(Transfers& transfers,
                model::Parameters& parameters,
                const std::string& name,
                int32_t peer);

  struct Shared {
    std::string name;
    std::vector<int32_t> ranks;  // that have it, in the order of the chain
  };

  comm::Group& group_;
  std::vector<Shared> all_;     // parameters of the chain
  std::vector<size_t> own_;     // this rank's, as indices into all_
  std::vector<size_t> shared_;  // those of them that another rank has too
  int64_t channel_ = 0;
};

}  // namespace penstock::run
