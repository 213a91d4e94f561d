// How long ROTOR's dynamic program takes, and the memory of the process: random heterogeneous chains at several limits.
//   penstock_bench_solve [layers slots]...     default: 100 500 400 1000
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sys/resource.h>
#include <vector>

#include "penstock/plan/one_rank.h"

namespace {

using namespace penstock;

plan::CostTable random_chain(int layers) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random()) % (most - least);
  };
  plan::CostTable table;
  int64_t input = 5'000'000;
  for (int i = 0; i < layers; ++i) {
    const int64_t output = draw(1'000'000, 10'000'000);
    const double forward = static_cast<double>(draw(10, 110)) / 10;
    plan::LayerCost layer{.name = "layer",
                          .input_bytes = input,
                          .output_bytes = output,
                          .forward_s = forward,
                          .forward_extra_bytes = draw(0, 3'000'000)};
    layer.modes = {{.forward_s = forward,
                    .backward_s = static_cast<double>(draw(20, 220)) / 10,
                    .saved_bytes = output + draw(0, 40'000'000),
                    .backward_extra_bytes = draw(0, 3'000'000),
                    .recompute_s = forward}};
    table.layers.push_back(layer);
    input = output;
  }
  return table;
}

void time_solve(int layers, int64_t slots) {
  const plan::CostTable table = random_chain(layers);
  const int64_t most = plan::solve_one_rank(table, {.recompute = plan::Recompute::None}).peak_bytes;
  const int64_t least = plan::solve_rotor(table, 0, {.slots = 1}).least_bytes;
  for (const double share : {0.05, 0.3, 0.6, 0.95}) {
    const int64_t limit = least + static_cast<int64_t>(share * static_cast<double>(most - least));
    const auto began = std::chrono::steady_clock::now();
    const plan::RotorAnswer answer = plan::solve_rotor(table, limit, {.slots = slots});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf(
        "%d layers, %lld slots, limit %.0f %%: %.3f s for a step of %.4f s, process at most %ld "
        "MiB\n",
        layers,
        static_cast<long long>(answer.slots),
        100 * static_cast<double>(limit) / static_cast<double>(most),
        seconds.count(),
        answer.seconds,
        usage.ru_maxrss / 1024);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    time_solve(100, 500);
    time_solve(400, 1000);
  }
  for (int i = 1; i + 1 < argc; i += 2) {
    time_solve(std::atoi(argv[i]), std::atoll(argv[i + 1]));
  }
}
