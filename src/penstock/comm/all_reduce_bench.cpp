#include "penstock/comm/all_reduce_bench.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "penstock/base/error.h"

namespace penstock::comm {

namespace {

constexpr int64_t kLeastRuns = 5;
constexpr int64_t kMostRuns = 101;
constexpr int64_t kChannel = 0;

double slowest(Group& group, double seconds, const What& what) {
  const std::vector<double> all = group.all_gather({&seconds, 1}, what);
  return *std::max_element(all.begin(), all.end());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Algorithm> different_algorithms(Group& group) {
  std::vector<Algorithm> algorithms(std::begin(kAlgorithms), std::end(kAlgorithms));
  if (group.own_collectives() == nullptr) {
    std::erase(algorithms, Algorithm::Own);
  }
  return algorithms;
}

class Runs {
 public:
  Runs(Group& group, Element element)
      : group_(group),
        element_(element),
        staging_(static_cast<size_t>(Collectives::kStaging)),
        collectives_(group, kChannel, staging_) {}

  // Zeros, whose sums stay finite.
  void set_size(int64_t bytes) { data_.resize(static_cast<size_t>(bytes)); }

  double time(Algorithm algorithm) {
    using Clock = std::chrono::steady_clock;
    const auto bytes = static_cast<int64_t>(data_.size());
    const What what = [&] {
      return cat("the all-reduce of ", bytes, " bytes by ", algorithm_name(algorithm));
    };
    group_.barrier(what);
    const Clock::time_point start = Clock::now();
    collectives_.all_reduce(
        data_.data(), bytes / element_bytes(element_), element_, algorithm, what);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    return slowest(group_, seconds.count(), what);
  }

 private:
  Group& group_;
  const Element element_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> data_;
  Collectives collectives_;
};

}  // namespace

std::vector<AllReduceTime> measure_all_reduce(Group& group, const AllReduceBench& bench) {
  std::vector<AllReduceTime> times;
  const std::vector<Algorithm> algorithms = different_algorithms(group);
  Runs runs(group, bench.element);
  for (size_t i = 0; i < bench.sizes.size(); ++i) {
    const What what = [] { return "whether to go on"; };
    if (slowest(group, bench.is_stopped() ? 1 : 0, what) > 0) {
      break;
    }
    bench.on_size(i);
    const int64_t bytes = bench.sizes[i];
    runs.set_size(bytes);
    double once = 0;
    for (const Algorithm algorithm : algorithms) {
      runs.time(algorithm);  // the first opens connections
      once += runs.time(algorithm);
    }
    const auto num_runs = static_cast<int64_t>(
        std::clamp(bench.seconds_per_size / once, double{kLeastRuns}, double{kMostRuns}));
    std::vector<std::vector<double>> seconds(algorithms.size());
    for (int64_t run = 0; run < num_runs; ++run) {
      for (size_t one = 0; one < algorithms.size(); ++one) {
        seconds[one].push_back(runs.time(algorithms[one]));
      }
    }
    for (size_t one = 0; one < algorithms.size(); ++one) {
      times.push_back({algorithms[one], bytes, median(seconds[one])});
    }
  }
  return times;
}

}  // namespace penstock::comm
