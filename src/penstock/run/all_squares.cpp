#include "penstock/run/all_squares.h"

#include <map>
#include <string>

#include "penstock/base/error.h"

namespace penstock::run {

namespace {

constexpr int32_t kNobody = -1;

}  // namespace

AllSquares::AllSquares(const model::Chain& chain,
                       const std::vector<model::Part>& parts,
                       const comm::Mesh& mesh,
                       bool is_sharded,
                       comm::Group& group)
    : group_(group), mesh_(mesh), is_sharded_(is_sharded) {
  const int32_t own_stage = mesh.coordinate(group.rank(), comm::Axis::Pipeline);
  std::map<std::string, size_t> index;
  for (const model::ParameterSpec& spec : chain.parameters()) {
    if (spec.is_frozen) {
      continue;
    }
    index[spec.name] = first_stage_.size();
    first_stage_.push_back(kNobody);
  }
  for (int32_t stage = 0; stage < static_cast<int32_t>(parts.size()); ++stage) {
    for (const model::ParameterSpec& spec : chain.parameters(parts[static_cast<size_t>(stage)])) {
      if (spec.is_frozen) {
        continue;
      }
      const size_t at = index.at(spec.name);
      if (first_stage_[at] == kNobody) {
        first_stage_[at] = stage;
      }
      if (stage == own_stage) {
        own_.push_back(at);
      }
    }
  }
}

Squares AllSquares::gather(const Squares& own, const comm::What& what) {
  PENSTOCK_CHECK(own.size() == own_.size(), own.size(), " squares of ", own_.size());
  std::vector<double> mine(2 * first_stage_.size(), 0);
  for (size_t i = 0; i < own.size(); ++i) {
    mine[2 * own_[i]] = own[i].high;
    mine[2 * own_[i] + 1] = own[i].low;
  }
  const std::vector<double> gathered = group_.all_gather(mine, what);
  // Of each parameter the slices of its first stage; where it is not sharded all replicas have all
  // of it, and the first counts.
  Squares squares(first_stage_.size());
  for (size_t i = 0; i < squares.size(); ++i) {
    for (int32_t replica = 0; replica < (is_sharded_ ? mesh_.data : 1); ++replica) {
      const int32_t rank = mesh_.rank_at({.data = replica, .pipeline = first_stage_[i]});
      const size_t at = static_cast<size_t>(rank) * mine.size() + 2 * i;
      squares[i].add(ExactSum(gathered[at], gathered[at + 1]));
    }
  }
  return squares;
}

}  // namespace penstock::run
