#include "penstock/train/process_memory.h"

#include <algorithm>
#include <functional>
#include <span>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/comm/group.h"

namespace penstock::train {

config::Recipe within_process_memory(config::Recipe recipe, int64_t ranks_here, int64_t resident) {
  const int64_t wanted = recipe.run.process_memory_bytes();
  if (wanted == 0) {
    return recipe;
  }
  const int64_t libraries = resident + kComputingBytes;
  const int64_t room = (wanted - libraries) / ranks_here;
  if (room <= 0) {
    throw ConfigError(cat("run.process_memory = \"",
                          recipe.run.process_memory,
                          "\" is less than the program takes without a model, about ",
                          format_bytes(libraries),
                          "; say more, or leave it out"));
  }
  if (recipe.plan.memory.empty()) {
    recipe.plan.memory = cat(room);
    recipe.run.process_memory.clear();  // has been used: what is saved of the recipe says it once
  } else if (recipe.plan.memory_bytes() > room) {
    throw ConfigError(cat("plan.memory = \"",
                          recipe.plan.memory,
                          "\" does not go into run.process_memory = \"",
                          recipe.run.process_memory,
                          "\", which leaves ",
                          ranks_here > 1 ? cat("each of ", ranks_here, " ranks ") : "",
                          format_bytes(room),
                          " beside the program's own ",
                          format_bytes(libraries),
                          "; leave plan.memory out, or say less"));
  }
  return recipe;
}

std::string missing_room(const Need& need,
                         const MemoryCeiling& host,
                         const std::optional<MemoryCeiling>& allocation) {
  const int64_t libraries = need.resident + need.processes * kComputingBytes;
  const auto line = [&](const MemoryCeiling& ceiling, int64_t wanted, int64_t room) {
    return cat("does not fit: the step needs about ",
               format_bytes(wanted),
               need.processes > 1 ? cat(" in ", need.processes, " processes of this host") : "",
               " (",
               format_bytes(need.tensors),
               " for tensors, the rest for libraries), and ",
               ceiling.what,
               " is ",
               format_bytes(ceiling.bytes),
               room > 0 ? cat("; try plan.memory = \"", room / need.ranks / 1024, "KiB\"") : "");
  };
  if (need.tensors + libraries > host.bytes) {
    return line(host, need.tensors + libraries, host.bytes - libraries);
  }
  // Of one process, and from now on.
  if (allocation && need.processes == 1 && need.tensors + kComputingBytes > allocation->bytes) {
    return line({allocation->bytes, cat("what ", allocation->what, " leaves")},
                need.tensors + kComputingBytes,
                allocation->bytes - kComputingBytes);
  }
  return "";
}

void require_room(const config::Recipe& recipe,
                  const std::vector<int64_t>& peaks,
                  comm::Group& group) {
  if (recipe.run.device != "cpu" || peaks.size() != static_cast<size_t>(group.size())) {
    return;
  }
  // Threads share what their process has; it counts once.
  const bool counts = !group.shares_memory() || group.rank() == 0;
  const double host = static_cast<double>(
      std::hash<std::string>{}(this_process().host + this_process().boot) >> 12);
  const std::vector<double> own{
      host, counts ? static_cast<double>(private_bytes()) : 0, counts ? 1.0 : 0};
  const std::vector<double> all =
      group.all_gather(std::span(own), [] { return std::string("the memory of all ranks"); });
  Need need{.processes = 0, .ranks = 0};
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    if (all[3 * rank] == host) {
      ++need.ranks;
      need.tensors += peaks[rank];
      need.resident += static_cast<int64_t>(all[3 * rank + 1]);
      need.processes += static_cast<int64_t>(all[3 * rank + 2]);
    }
  }
  const std::string text = missing_room(need, memory_ceiling(), allocation_ceiling());
  if (!text.empty()) {
    throw Error(ExitCode::Negative, text);
  }
}

}  // namespace penstock::train
