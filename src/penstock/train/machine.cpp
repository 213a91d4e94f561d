#include "penstock/train/machine.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/comm/collectives.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/local.h"
#include "penstock/comm/sub_group.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/plan/cost_table.h"
#include "penstock/plan/link_costs.h"
#include "penstock/train/rank_sums.h"

namespace penstock::train {

namespace {

// What a message takes, by gathers among the ranks of a group: all of them call it, all get the
// same.
plan::LinkCost probe_link(comm::Group& group) {
  if (group.size() == 1) {
    return {};
  }
  constexpr int64_t kSmall = int64_t{1} << 10;
  constexpr int64_t kLarge = int64_t{4} << 20;
  constexpr int kTimes = 5;
  std::vector<std::byte> staging(comm::Collectives::kStaging);
  std::vector<std::byte> data(kLarge);
  comm::Collectives collectives(group, /*channel=*/0, staging);
  const comm::What what = [] { return std::string("the speed of the links between ranks"); };
  const auto time = [&](int64_t bytes) {
    std::vector<double> seconds;
    for (int i = 0; i < kTimes; ++i) {
      group.barrier(what);
      const double began = now_seconds();
      collectives.all_gather(
          data.data(), comm::even_cuts(bytes, group.size()), comm::Algorithm::Direct, what);
      seconds.push_back(now_seconds() - began);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kTimes / 2, seconds.end());
    return seconds[kTimes / 2];
  };
  std::array<double, 2> found = {time(kSmall), time(kLarge)};
  group.broadcast(0, found.data(), sizeof found, what);
  const double sent =
      static_cast<double>(kLarge) * (group.size() - 1) / static_cast<double>(group.size());
  return {.latency_s = found[0], .bytes_per_s = sent / std::max(1e-9, found[1] - found[0])};
}

// Ranks that share a node with rank 0, where all nodes have as many and their ranks are neighbours
// in number; otherwise 1: every link counts as one between nodes.
int32_t find_ranks_per_node(comm::Group& group) {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  // 52 bits, for the ranks exchange doubles.
  const auto node = static_cast<double>(std::hash<std::string>()(name.data()) >> 12);
  const std::vector<double> nodes = gather_ranks(node, group);
  const auto same = std::find_if(
      nodes.begin(), nodes.end(), [&](double other) { return other != nodes.front(); });
  const auto size = same - nodes.begin();
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const size_t first = rank / static_cast<size_t>(size) * static_cast<size_t>(size);
    if (nodes[rank] != nodes[first]) {
      return 1;
    }
  }
  return static_cast<int32_t>(size);
}

}  // namespace

int64_t allocator_page_bytes() {
  return int64_t{96} << 20;
}

plan::Machine find_machine(const config::Recipe& recipe) {
  plan::Machine machine{.ranks_are_threads = comm::launched_ranks() <= 1};
  if (recipe.run.device == "cuda") {
    machine.block_bytes = memory::gpu_block_bytes(1);
    machine.spare_page_bytes = allocator_page_bytes();
  }
  if (!recipe.plan.links.empty()) {
    machine.collectives = plan::load_links(recipe.plan.links);
  }
  return machine;
}

namespace {

// Of a table that is planned with, and so the same in every run: nothing else is measured then
// either. Rank 0 reads it.
plan::LinkCost link_of_table(const std::string& file, comm::Group& group) {
  std::array<double, 2> found = {};
  if (group.rank() == 0) {
    const plan::LinkCost link = plan::read_costs(file).link;
    found = {link.latency_s, link.bytes_per_s};
  }
  group.broadcast(
      0, found.data(), sizeof found, [] { return std::string("the links of the cost table"); });
  return {.latency_s = found[0], .bytes_per_s = found[1]};
}

}  // namespace

plan::Machine probe_machine(const config::Recipe& recipe, comm::Group& group) {
  plan::Machine machine = find_machine(recipe);
  machine.ranks_are_threads = group.shares_memory();
  if (group.size() == 1) {
    return machine;
  }
  if (!recipe.plan.costs.empty()) {
    const plan::LinkCost link = link_of_table(recipe.plan.costs, group);
    // Of a table that has none, messages of a pipeline cost nothing. Replicas and layouts cannot be
    // weighed without: those are probed.
    const bool is_pipeline = recipe.plan.pipeline == group.size();
    if (link != plan::LinkCost() || is_pipeline) {
      machine.between_nodes = machine.within_node = link;
      return machine;
    }
  }
  machine.between_nodes = machine.within_node = probe_link(group);
  machine.ranks_per_node = group.shares_memory() ? group.size() : find_ranks_per_node(group);
  if (machine.ranks_per_node > 1 && machine.ranks_per_node < group.size()) {
    const std::unique_ptr<comm::Group> node =
        comm::split(group, group.rank() / machine.ranks_per_node, [] {
          return std::string("groups of the ranks of a node");
        });
    const plan::LinkCost within = probe_link(*node);
    std::array<double, 2> found = {within.latency_s, within.bytes_per_s};
    group.broadcast(0, found.data(), sizeof found, [] {
      return std::string("the speed of the links within a node");
    });
    machine.within_node = {.latency_s = found[0], .bytes_per_s = found[1]};
  }
  return machine;
}

plan::Machine probe_machine(const config::Recipe& recipe, int64_t ranks) {
  plan::Machine machine = find_machine(recipe);
  if (ranks == 1) {
    return machine;
  }
  // What a message takes between a few says what it takes between many.
  constexpr int64_t kMostThreads = 8;
  const int64_t threads = std::min(ranks, kMostThreads);
  comm::run_local(static_cast<int32_t>(threads), [&](comm::Group& group) {
    const plan::Machine found = probe_machine(recipe, group);
    if (group.rank() == 0) {
      machine = found;
    }
  });
  machine.ranks_per_node = static_cast<int32_t>(ranks);
  return machine;
}

}  // namespace penstock::train
