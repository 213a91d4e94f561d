#include "penstock/train/ranks.h"

#include "penstock/base/error.h"
#include "penstock/base/quiet.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mpi.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/train/layout.h"

namespace penstock::train {

void require_ranks(const config::PlanOptions& plan, int64_t found, const char* who) {
  if (plan.ranks() == found) {
    return;
  }
  const bool may_be_replicas = plan.data > 1 && found % plan.pipeline == 0;
  throw ConfigError(cat(
      who,
      " ",
      found,
      found == 1 ? " rank" : " ranks",
      ", and the plan has ",
      plan.ranks(),
      ": plan.pipeline = ",
      plan.pipeline,
      plan.data > 1 ? cat(", plan.data = ", plan.data) : "",
      "; make them agree, as in --set ",
      may_be_replicas ? cat("plan.data=", found / plan.pipeline)
                      : cat("plan.pipeline=", found, plan.data > 1 ? " --set plan.data=1" : "")));
}

namespace {

void run_so_many(const config::Recipe& recipe,
                 int64_t ranks,
                 const std::function<void(comm::Group&)>& work) {
  const auto run = [&](comm::Group& group) {
    group.set_timeout(recipe.run.timeout);
    const QuietScope quiet(group.rank() > 0);
    if (group.size() == 1) {
      return work(group);
    }
    const memory::AccountScope scope(memory::make_account());
    work(group);
  };
  if (comm::launched_ranks() > 1) {
    return comm::run_mpi(run);
  }
  comm::run_local(static_cast<int32_t>(ranks), run);
}

}  // namespace

void run_ranks(const config::Recipe& recipe,
               int64_t asked,
               const std::function<void(comm::Group&)>& work) {
  if (asked > 0) {
    require_ranks(recipe.plan, asked, "--ranks says");
  }
  if (const int64_t launched = comm::launched_ranks(); launched > 1) {
    require_ranks(recipe.plan, launched, "the launcher started");
  }
  run_so_many(recipe, recipe.plan.ranks(), work);
}

void run_chosen_ranks(const config::Recipe& recipe,
                      int64_t asked,
                      const std::function<void(comm::Group&, const config::Recipe&)>& work,
                      const Subject& subject) {
  const int64_t ranks = num_ranks(recipe, asked);
  if (!plan::leaves_layout_open(recipe.plan, ranks)) {
    config::require_replicas(recipe.plan);
    config::Recipe settled = recipe;
    settled.plan.shard = recipe.plan.shard == "auto" ? "none" : recipe.plan.shard;
    return run_ranks(settled, asked, [&](comm::Group& group) { work(group, settled); });
  }
  if (asked > 0 && comm::launched_ranks() > 1 && asked != comm::launched_ranks()) {
    throw ConfigError(
        cat("--ranks says ", asked, " ranks, and the launcher started ", comm::launched_ranks()));
  }
  run_so_many(recipe, ranks, [&](comm::Group& group) {
    work(group, choose_layout(recipe, group, subject));
  });
}

int64_t num_ranks(const config::Recipe& recipe, int64_t asked) {
  const int64_t launched = comm::launched_ranks();
  return launched > 1 ? launched : asked > 0 ? asked : recipe.plan.ranks();
}

}  // namespace penstock::train
