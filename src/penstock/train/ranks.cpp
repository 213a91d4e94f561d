#include "penstock/train/ranks.h"

#include "penstock/base/error.h"
#include "penstock/base/quiet.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mpi.h"
#include "penstock/memory/cpu_allocator.h"

namespace penstock::train {

namespace {

void require_ranks(int64_t planned, int64_t found, const char* who) {
  if (planned != found) {
    throw ConfigError(cat(who,
                          " ",
                          found,
                          found == 1 ? " rank" : " ranks",
                          ", and the plan has ",
                          planned,
                          ": plan.pipeline = ",
                          planned,
                          "; make them agree, as in --set plan.pipeline=",
                          found));
  }
}

}  // namespace

void run_ranks(const config::Recipe& recipe,
               int64_t asked,
               const std::function<void(comm::Group&)>& work) {
  const int64_t planned = recipe.plan.pipeline;
  const int64_t launched = comm::launched_ranks();
  if (asked > 0) {
    require_ranks(planned, asked, "--ranks says");
  }
  const auto run = [&](comm::Group& group) {
    group.set_timeout(recipe.run.timeout);
    const QuietScope quiet(group.rank() > 0);
    if (group.size() == 1) {
      return work(group);
    }
    const memory::AccountScope scope(memory::make_account());
    work(group);
  };
  if (launched > 1) {
    require_ranks(planned, launched, "the launcher started");
    return comm::run_mpi(run);
  }
  comm::run_local(static_cast<int32_t>(planned), run);
}

}  // namespace penstock::train
