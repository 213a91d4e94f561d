// What a collective between ranks costs: for each algorithm a latency of each step and a bandwidth,
// as 'penstock bench allreduce' measures them and writes them to a JSON file (docs/collectives.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/comm/all_reduce_bench.h"
#include "penstock/comm/collectives.h"

namespace penstock::plan {

// Seconds = latency_s * steps + bytes / bytes_per_s, with the steps of the algorithm and the bytes
// that its busiest rank sends (comm/collective_traffic.h).
struct CollectiveCost {
  double latency_s = 0;
  double bytes_per_s = 1;

  bool operator==(const CollectiveCost&) const = default;
};

struct LinkCosts {
  int32_t ranks = 0;  // that were measured
  std::map<comm::Algorithm, CollectiveCost> algorithms;

  bool operator==(const LinkCosts&) const = default;

  // Of a message of so many bytes over `size` ranks; even chunks.
  double all_reduce_s(comm::Algorithm algorithm, int32_t size, int64_t bytes) const;
  double reduce_scatter_s(comm::Algorithm algorithm, int32_t size, int64_t bytes) const;
  double all_gather_s(comm::Algorithm algorithm, int32_t size, int64_t bytes) const;

  // The fastest for an all-reduce, of those that were measured.
  comm::Algorithm best_algorithm(int32_t size, int64_t bytes) const;
};

// Least squares of the relative errors, latency and bandwidth never negative.
LinkCosts fit_links(int32_t ranks, const std::vector<comm::AllReduceTime>& times);

// The JSON has the times, too, for those who want to draw them.
std::string format_links(const LinkCosts& costs, const std::vector<comm::AllReduceTime>& times);
// Throws ConfigError, which names `where`.
LinkCosts parse_links(std::string_view text, const std::string& where);
LinkCosts load_links(const std::filesystem::path& path);

}  // namespace penstock::plan
