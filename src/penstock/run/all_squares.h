// The squares that make up the norm of all gradients, where several ranks have parts of the model.
#pragma once

#include <cstddef>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/comm/mesh.h"
#include "penstock/model/chain.h"
#include "penstock/run/stepper.h"

namespace penstock::run {

class AllSquares {
 public:
  // `parts` are the layers of each stage. is_sharded: replicas have slices of the sums. The group,
  // of all ranks, must outlive this.
  AllSquares(const model::Chain& chain,
             const std::vector<model::Part>& parts,
             const comm::Mesh& mesh,
             bool is_sharded,
             comm::Group& group);

  // All ranks call it. From the squares of this rank to those of all parameters that learn, in the
  // order of the chain, so that every cut gives the same norm.
  Squares gather(const Squares& own, const comm::What& what);

 private:
  comm::Group& group_;
  const comm::Mesh mesh_;
  const bool is_sharded_;
  std::vector<int32_t> first_stage_;  // of each parameter that learns: the first that has it
  std::vector<size_t> own_;           // this rank's, as indices into those
};

}  // namespace penstock::run
