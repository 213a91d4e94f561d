// Some ranks of a job as a group of their own: the pipeline or the replicas that a rank belongs to.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/comm/group.h"

namespace penstock::comm {

// The ranks that give the same colour, in the order of their ranks. All ranks of `group` call it; a
// member is numbered anew, but what a wait says names ranks as the whole job does. Its messages do
// not mix with those of other groups. It waits as long as the whole job does, and fails with it.
// Must not outlive `group`.
std::unique_ptr<Group> split(Group& group, int32_t colour, const What& what);

}  // namespace penstock::comm
