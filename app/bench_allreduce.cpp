#include "bench_allreduce.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/quiet.h"
#include "penstock/base/quote.h"
#include "penstock/base/units.h"
#include "penstock/comm/all_reduce_bench.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mpi.h"
#include "penstock/plan/link_costs.h"
#include "penstock/report/allreduce_text.h"
#include "penstock/report/progress.h"

#include "arguments.h"

namespace penstock::app {

namespace {

constexpr int32_t kUsualRanks = 4;
constexpr int64_t kGrowth = 4;  // from one size to the next

struct AllReduceArguments {
  int32_t ranks = 0;  // 0: not given
  std::string least = "1KiB";
  std::string most = "64MiB";
  std::string element = "float32";
  double seconds = 1;
  std::string json;
};

int64_t bytes_of(const std::string& text) {
  return parse_bytes(text).value_or(0) / 4 * 4;  // whole elements of either kind
}

std::vector<int64_t> wanted_sizes(const AllReduceArguments& arguments) {
  const int64_t most = bytes_of(arguments.most);
  std::vector<int64_t> sizes;
  for (int64_t bytes = bytes_of(arguments.least); bytes <= most; bytes *= kGrowth) {
    sizes.push_back(bytes);
  }
  if (sizes.empty()) {
    throw ConfigError(cat("--least ",
                          arguments.least,
                          " is more than --most ",
                          arguments.most,
                          "; try --most ",
                          arguments.least));
  }
  return sizes;
}

int32_t wanted_ranks(const AllReduceArguments& arguments) {
  const int32_t launched = comm::launched_ranks();
  if (launched > 1 && arguments.ranks > 0 && arguments.ranks != launched) {
    throw ConfigError(cat("--ranks ",
                          arguments.ranks,
                          ", but the launcher started ",
                          launched,
                          "; leave --ranks out, it is for ranks as threads"));
  }
  return launched > 1 ? launched : arguments.ranks > 0 ? arguments.ranks : kUsualRanks;
}

// All ranks measure, the first one speaks.
void measure_and_print(const AllReduceArguments& arguments, comm::Group& group) {
  const QuietScope quiet(group.rank() > 0);
  comm::AllReduceBench bench{
      .sizes = wanted_sizes(arguments),
      .element = arguments.element == "float32" ? comm::Element::Float32 : comm::Element::BFloat16,
      .seconds_per_size = arguments.seconds,
      .is_stopped = was_interrupted};
  const auto total = static_cast<int64_t>(bench.sizes.size());
  std::optional<report::Progress> progress;
  if (group.rank() == 0) {
    progress.emplace(
        report::ProgressOptions{.title = "bench allreduce", .total = total, .plain_every = 1});
    bench.on_size = [&](size_t i) {
      progress->update(static_cast<int64_t>(i), {{"", format_bytes(bench.sizes[i])}});
    };
  }
  const std::vector<comm::AllReduceTime> times = comm::measure_all_reduce(group, bench);
  if (group.rank() > 0) {
    return;
  }
  progress->finish();
  if (times.empty()) {
    throw Error(ExitCode::Negative,
                cat("bench was stopped by ", interrupt_name(), " before its first size"));
  }
  const plan::LinkCosts fitted = plan::fit_links(group.size(), times);
  if (!arguments.json.empty()) {
    write_text_file(arguments.json, plan::format_links(fitted, times));
    log_info("wrote ", arguments.json);
  }
  std::printf("all-reduce of %s over %d ranks, which are %s\n\n%s",
              arguments.element.c_str(),
              group.size(),
              group.shares_memory() ? "threads" : "processes",
              report::all_reduce_text(times, fitted).c_str());
}

int bench_allreduce(const AllReduceArguments& arguments) {
  wanted_sizes(arguments);
  const int32_t ranks = wanted_ranks(arguments);
  require_writable(arguments.json);
  install_interrupt_handler();
  const auto work = [&](comm::Group& group) { measure_and_print(arguments, group); };
  if (comm::launched_ranks() > 1) {
    comm::run_mpi(work);
  } else {
    comm::run_local(ranks, work);
  }
  return 0;
}

void add_size_option(Command& command,
                     const char* name,
                     std::string& value,
                     const char* description) {
  constexpr int64_t kMostBytes = int64_t{16} << 30;
  const auto check = [](const std::string& text) {
    const int64_t bytes = bytes_of(text);
    return bytes > 0 && bytes <= kMostBytes
               ? std::string()
               : cat(in_quotes(text), " is not a number of bytes from 4 to 16GiB, as in 64KiB");
  };
  command.add(name, value, description).checked_by(check).named("BYTES").shows_default();
}

}  // namespace

void add_bench_allreduce_command(Command& bench) {
  Command command =
      bench.add_command("allreduce", "sums over all ranks, by each algorithm and message size");
  const auto arguments = std::make_shared<AllReduceArguments>();
  command
      .add("--ranks",
           arguments->ranks,
           "ranks, as threads: 4 by default; under mpirun or srun the ranks are theirs")
      .in_range(int64_t{2}, int64_t{256})
      .named("N");
  add_size_option(command, "--least", arguments->least, "the smallest message");
  add_size_option(
      command, "--most", arguments->most, "the largest message; sizes grow by 4 from the smallest");
  command.add("--element", arguments->element, "what is summed")
      .one_of({"float32", "bfloat16"})
      .shows_default();
  command.add("--seconds", arguments->seconds, "about how long to measure each size")
      .in_range(0.0, 3600.0)
      .shows_default();
  command.add("--json", arguments->json, "write times and fitted costs to this file, as JSON")
      .named("FILE")
      .not_empty();
  command.ends_with(
      "Times are medians, of the slowest rank. docs/collectives.md tells of the algorithms; own is "
      "MPI's, and is measured where the ranks are processes.");
  command.runs([arguments] { return bench_allreduce(*arguments); });
}

}  // namespace penstock::app
