#include "penstock/plan/link_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/quote.h"
#include "penstock/base/strict_json.h"
#include "penstock/comm/collective_traffic.h"

namespace penstock::plan {

namespace {

using comm::Algorithm;
using comm::Traffic;
using nlohmann::json;

constexpr double kMostBytesPerS = 1e15;
constexpr int32_t kMostRanks = 1 << 20;

// Of the rank that sends most.
Traffic busiest(int32_t size, const std::function<Traffic(int32_t)>& of_rank) {
  Traffic most;
  for (int32_t rank = 0; rank < size; ++rank) {
    const Traffic traffic = of_rank(rank);
    most = {std::max(most.bytes, traffic.bytes), std::max(most.steps, traffic.steps)};
  }
  return most;
}

Traffic busiest_all_reduce(Algorithm algorithm, int32_t size, int64_t bytes) {
  return busiest(size, [&](int32_t rank) {
    return comm::all_reduce_traffic(algorithm, rank, size, bytes / 4, comm::Element::Float32);
  });
}

double seconds_of(const CollectiveCost& cost, const Traffic& traffic) {
  return cost.latency_s * traffic.steps + static_cast<double>(traffic.bytes) / cost.bytes_per_s;
}

// With s steps and x bytes in t seconds, minimises the sum of ((a s + c x - t) / t)^2 over a and c.
CollectiveCost fit_one(const std::vector<std::pair<Traffic, double>>& measured) {
  double ss = 0, sx = 0, xx = 0, s1 = 0, x1 = 0;
  for (const auto& [traffic, seconds] : measured) {
    const double s = traffic.steps / seconds;
    const double x = static_cast<double>(traffic.bytes) / seconds;
    ss += s * s;
    sx += s * x;
    xx += x * x;
    s1 += s;
    x1 += x;
  }
  const double determinant = ss * xx - sx * sx;
  double latency = 0;
  double per_byte = x1 / xx;
  if (determinant > 1e-9 * ss * xx) {  // else one size alone, which cannot tell the two apart
    latency = (s1 * xx - x1 * sx) / determinant;
    per_byte = (x1 * ss - s1 * sx) / determinant;
  }
  if (latency < 0) {
    latency = 0;
    per_byte = x1 / xx;
  } else if (per_byte < 1 / kMostBytesPerS) {
    latency = s1 / ss;
    per_byte = 1 / kMostBytesPerS;
  }
  return {latency, 1 / per_byte};
}

double read_number(
    const json& object, const char* key, double least, double most, const std::string& where) {
  if (!object.contains(key)) {
    throw ConfigError(cat(where, " has no ", key));
  }
  const json& value = object[key];
  if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() <= most)) {
    throw ConfigError(
        cat(where, " ", key, " = ", value.dump(), " is not a number from ", least, " to ", most));
  }
  return value.get<double>();
}

}  // namespace

double LinkCosts::all_reduce_s(Algorithm algorithm, int32_t size, int64_t bytes) const {
  return seconds_of(algorithms.at(algorithm), busiest_all_reduce(algorithm, size, bytes));
}

double LinkCosts::reduce_scatter_s(Algorithm algorithm, int32_t size, int64_t bytes) const {
  const std::vector<int64_t> cuts = comm::even_cuts(bytes / 4, size);
  return seconds_of(algorithms.at(algorithm), busiest(size, [&](int32_t rank) {
                      return comm::reduce_scatter_traffic(
                          algorithm, rank, cuts, comm::Element::Float32);
                    }));
}

double LinkCosts::all_gather_s(Algorithm algorithm, int32_t size, int64_t bytes) const {
  const std::vector<int64_t> cuts = comm::even_cuts(bytes, size);
  return seconds_of(algorithms.at(algorithm), busiest(size, [&](int32_t rank) {
                      return comm::all_gather_traffic(algorithm, rank, cuts);
                    }));
}

Algorithm LinkCosts::best_algorithm(int32_t size, int64_t bytes) const {
  PENSTOCK_CHECK(!algorithms.empty(), "no algorithm was measured");
  return std::min_element(algorithms.begin(),
                          algorithms.end(),
                          [&](const auto& a, const auto& b) {
                            return all_reduce_s(a.first, size, bytes) <
                                   all_reduce_s(b.first, size, bytes);
                          })
      ->first;
}

LinkCosts fit_links(int32_t ranks, const std::vector<comm::AllReduceTime>& times) {
  std::map<Algorithm, std::vector<std::pair<Traffic, double>>> measured;
  for (const comm::AllReduceTime& time : times) {
    measured[time.algorithm].emplace_back(busiest_all_reduce(time.algorithm, ranks, time.bytes),
                                          time.seconds);
  }
  LinkCosts costs{.ranks = ranks};
  for (const auto& [algorithm, points] : measured) {
    costs.algorithms[algorithm] = fit_one(points);
  }
  return costs;
}

std::string format_links(const LinkCosts& costs, const std::vector<comm::AllReduceTime>& times) {
  nlohmann::ordered_json file;
  file["ranks"] = costs.ranks;
  file["algorithms"] = nlohmann::ordered_json::object();
  for (const auto& [algorithm, cost] : costs.algorithms) {
    file["algorithms"][std::string(algorithm_name(algorithm))] = {
        {"latency_s", cost.latency_s}, {"bytes_per_s", cost.bytes_per_s}};
  }
  file["rows"] = nlohmann::ordered_json::array();
  for (const comm::AllReduceTime& time : times) {
    file["rows"].push_back({{"bytes", time.bytes},
                            {"algorithm", algorithm_name(time.algorithm)},
                            {"seconds", time.seconds}});
  }
  return file.dump(2) + "\n";
}

LinkCosts parse_links(std::string_view text, const std::string& where) {
  json file;
  try {
    file = parse_strict_json(text, 4);
  } catch (const ConfigError& error) {
    throw ConfigError(cat(where, " ", error.what()));
  }
  if (!file.is_object() || !file.contains("algorithms") || !file["algorithms"].is_object() ||
      file["algorithms"].empty()) {
    throw ConfigError(
        cat(where, " has no algorithms; write it with penstock bench allreduce --json ", where));
  }
  LinkCosts costs;
  const double ranks = read_number(file, "ranks", 2, kMostRanks, where);
  costs.ranks = static_cast<int32_t>(ranks);
  for (const auto& [name, object] : file["algorithms"].items()) {
    const std::optional<Algorithm> algorithm = comm::parse_algorithm(name);
    if (!algorithm || !object.is_object()) {
      std::vector<std::string> names;
      for (const Algorithm one : comm::kAlgorithms) {
        names.emplace_back(algorithm_name(one));
      }
      throw ConfigError(
          cat(where, " algorithms has ", in_quotes(name), "; there is ", join(names, ", ")));
    }
    const std::string here = cat(where, " algorithms.", name);
    costs.algorithms[*algorithm] = {read_number(object, "latency_s", 0, 1e6, here),
                                    read_number(object, "bytes_per_s", 1, kMostBytesPerS, here)};
  }
  return costs;
}

LinkCosts load_links(const std::filesystem::path& path) {
  return parse_links(read_text_file(path), path.string());
}

}  // namespace penstock::plan
