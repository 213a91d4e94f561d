#include "penstock/plan/plan.h"

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock::plan {

comm::Mesh mesh_of(const config::PlanOptions& options) {
  const comm::Mesh mesh{.data = static_cast<int32_t>(options.data),
                        .pipeline = static_cast<int32_t>(options.pipeline)};
  PENSTOCK_CHECK(
      mesh.ranks() == options.ranks(), "a mesh of ", mesh.ranks(), " of ", options.ranks());
  return mesh;
}

program::Shard shard_of(const config::PlanOptions& options) {
  if (options.data == 1) {
    return program::Shard::None;
  }
  for (const program::Shard shard : program::kShards) {
    if (program::shard_name(shard) == options.shard) {
      return shard;
    }
  }
  throw InternalError(cat("no shard ", options.shard));
}

std::string cuts_text(const std::vector<int32_t>& cuts) {
  std::vector<std::string> firsts;
  for (size_t i = 1; i + 1 < cuts.size(); ++i) {
    firsts.push_back(cat(cuts[i]));
  }
  return join(firsts, ",");
}

comm::Mesh Plan::mesh() const {
  return mesh_of(options);
}

program::Shard Plan::shard() const {
  return shard_of(options);
}

schedule::Kind Plan::kind() const {
  return schedule::parse_kind(options.schedule);
}

schedule::Schedule Plan::schedule(int32_t updates) const {
  return schedule::make_schedule(kind(),
                                 {.ranks = static_cast<int32_t>(options.pipeline),
                                  .micro_batches = static_cast<int32_t>(options.micro_batches),
                                  .chunks = static_cast<int32_t>(options.chunks),
                                  .updates = updates});
}

std::vector<int32_t> Plan::cuts(int32_t layers) const {
  std::vector<int32_t> all = options.first_layers();
  all.insert(all.begin(), 0);
  all.push_back(layers);
  return all;
}

Operations Plan::one_rank_operations() const {
  const StageOperations& both = operations.front().front();
  Operations all = both.forward;
  all.insert(all.end(), both.backward.begin(), both.backward.end());
  return all;
}

}  // namespace penstock::plan
