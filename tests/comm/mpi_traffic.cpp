// One rank of a job for tests/comm/test_mpi.py: mpirun -n 4 mpi_traffic MODE [TIMEOUT_S]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "penstock/comm/collectives.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/mpi.h"
#include "penstock/comm/sub_group.h"

#include "comm/collective_cases.h"
#include "comm/traffic.h"
#include "comm/two_threads.h"

namespace penstock::comm {
namespace {

using test::words;

void traffic(Group& group) {
  test::random_traffic(group, 20);
  for (const int64_t bytes : {0, 1, 4095, 65537, 16 << 20}) {
    std::vector<test::Message> ring;
    for (int32_t rank = 0; rank < group.size(); ++rank) {
      ring.push_back({rank, (rank + 1) % group.size(), 0, bytes + rank, bytes});
    }
    test::swap_messages(group, ring);
  }
  std::vector<double> expected;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    expected.push_back(rank + 0.5);
  }
  const double mine = group.rank() + 0.5;
  PENSTOCK_CHECK(group.all_gather({&mine, 1}, words("values")) == expected, "all_gather");
  int64_t value = group.rank();
  group.broadcast(2, &value, sizeof(value), words("a value"));
  PENSTOCK_CHECK(value == 2, "broadcast gave ", value);
  const std::unique_ptr<Group> parity = split(group, group.rank() % 2, words("odd and even ranks"));
  test::random_traffic(*parity, 20);
  const double whole = group.rank();
  const std::vector<double> others = parity->all_gather({&whole, 1}, words("their ranks"));
  for (size_t i = 0; i < others.size(); ++i) {
    PENSTOCK_CHECK(others[i] == static_cast<double>(2 * i) + group.rank() % 2, "split");
  }
  std::printf("rank %d of %d is content\n", group.rank(), group.size());
}

// Longer than an int can count.
void large(Group& group) {
  const int64_t bytes = (int64_t{9} << 28) + 3;
  if (group.rank() < 2) {
    test::swap_messages(group, {{0, 1, 0, 1, bytes}});
  }
  std::printf("rank %d of %d is content\n", group.rank(), group.size());
}

// Own also with so few elements in a call that it needs several.
void collectives(Group& group) {
  test::check_collectives(group, {0, 1, 3, 7, 1000, 4097, 65537});
  group.own_collectives()->set_most_per_call(1000);
  test::check_collectives(group, {1, 4097});
  std::printf("rank %d of %d is content\n", group.rank(), group.size());
}

// Groups within the job, and a second thread in each rank.
void threads(Group& group) {
  test::use_two_threads(group);
  std::printf("rank %d of %d is content\n", group.rank(), group.size());
}

// All but rank 2 reduce; it fails, or is silent.
void reduce_without(Group& group, Algorithm algorithm, const std::function<void()>& rank_2) {
  group.barrier(words("the start"));
  if (group.rank() == 2) {
    return rank_2();
  }
  std::vector<std::byte> staging(static_cast<size_t>(Collectives::kLeastStaging));
  std::vector<float> data(1 << 20);
  Collectives sums(group, 0, staging);
  sums.all_reduce(
      data.data(), 1 << 20, Element::Float32, algorithm, words("the reduction of bucket 3"));
}

[[noreturn]] void run_out_of_memory() {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  throw OutOfMemory("no room for block 3");
}

void own_error(Group& group) {
  reduce_without(group, Algorithm::Own, run_out_of_memory);
}

void ring_error(Group& group) {
  reduce_without(group, Algorithm::Ring, run_out_of_memory);
}

void own_silence(Group& group) {
  reduce_without(group, Algorithm::Own, [&] {
    char byte = 0;
    group.receive(0, 1, &byte, 1, words("a word"));
  });
}

void direct_silence(Group& group) {
  reduce_without(group, Algorithm::Direct, [&] {
    char byte = 0;
    group.receive(0, 1, &byte, 1, words("a word"));
  });
}

void wrong_size(Group& group) {
  std::vector<char> bytes(44);
  if (group.rank() == 0) {
    Ticket ticket = group.send(1, 0, bytes.data(), 44);
    group.wait(ticket, words("the send"));
  } else if (group.rank() == 1) {
    group.receive(0, 0, bytes.data(), 40, words("block 3"));
  }
}

void error(Group& group) {
  if (group.rank() == 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    throw OutOfMemory("no room for block 3");
  }
  char byte = 0;
  group.receive((group.rank() + 1) % group.size(), 0, &byte, 1, words("a gradient"));
}

void refusal(Group& group) {
  if (group.rank() == 2) {
    throw ConfigError("plan.pipeline = 9 is too many");
  }
  char byte = 0;
  group.receive(2, 0, &byte, 1, words("a plan"));
}

// Each waits for the other, rank 0 longer.
void silence(Group& group) {
  group.barrier(words("the start"));
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  char byte = 0;
  group.receive(1 - group.rank(), 0, &byte, 1, words("a word"));
}

// Runs until it is stopped from outside: round and round, each rank waiting for the one before it.
void ring(Group& group) {
  std::printf("rank %d is process %d\n", group.rank(), ::getpid());
  std::fflush(stdout);
  const int32_t next = (group.rank() + 1) % group.size();
  const int32_t before = (group.rank() + group.size() - 1) % group.size();
  for (int64_t step = 0;; ++step) {
    int64_t got = 0;
    Ticket ticket = group.send(next, 0, &step, sizeof(step));
    group.receive(before, 0, &got, sizeof(got), [&] { return cat("the value of step ", step); });
    PENSTOCK_CHECK(got == step, "step ", got, " for ", step);
    group.wait(ticket, [&] { return cat("the send of step ", step); });
    if (step == 100 && group.rank() == 0) {
      std::printf("the ring turns\n");
      std::fflush(stdout);
    }
  }
}

// The same with sums over all ranks, by MPI's own collective.
void sums(Group& group) {
  std::printf("rank %d is process %d\n", group.rank(), ::getpid());
  std::fflush(stdout);
  std::vector<std::byte> staging(static_cast<size_t>(Collectives::kLeastStaging));
  std::vector<float> data(1 << 14);
  Collectives collectives(group, 0, staging);
  for (int64_t step = 0;; ++step) {
    collectives.all_reduce(data.data(), 1 << 14, Element::Float32, Algorithm::Own, [&] {
      return cat("the sum of step ", step);
    });
    if (step == 20 && group.rank() == 0) {
      std::printf("the ring turns\n");
      std::fflush(stdout);
    }
  }
}

int fail(const char* type, const Error& failure) {
  std::printf("caught a %s\n", type);
  std::fflush(stdout);
  std::fprintf(stderr, "penstock: %s\n", failure.what());
  return static_cast<int>(failure.exit_code());
}

int run(int argc, char** argv) {
  const std::map<std::string, void (*)(Group&)> modes = {{"traffic", traffic},
                                                         {"large", large},
                                                         {"collectives", collectives},
                                                         {"threads", threads},
                                                         {"own_error", own_error},
                                                         {"ring_error", ring_error},
                                                         {"own_silence", own_silence},
                                                         {"direct_silence", direct_silence},
                                                         {"wrong_size", wrong_size},
                                                         {"error", error},
                                                         {"refusal", refusal},
                                                         {"ring", ring},
                                                         {"sums", sums},
                                                         {"silence", silence}};
  try {
    PENSTOCK_CHECK(argc >= 2 && modes.contains(argv[1]), "no such mode");
    if (launched_ranks() == 1) {
      std::printf("a plain start\n");
      return 0;
    }
    const int times = argc >= 4 ? std::atoi(argv[3]) : 1;
    for (int i = 0; i < times; ++i) {
      run_mpi([&](Group& group) {
        group.set_timeout(argc >= 3 ? std::atof(argv[2]) : 60);
        modes.at(argv[1])(group);
      });
    }
    return 0;
  } catch (const ConfigError& failure) {
    return fail("ConfigError", failure);
  } catch (const PeerError& failure) {
    return fail("PeerError", failure);
  } catch (const Timeout& failure) {
    return fail("Timeout", failure);
  } catch (const Error& failure) {
    return fail("Error", failure);
  }
}

}  // namespace
}  // namespace penstock::comm

int main(int argc, char** argv) {
  const int code = penstock::comm::run(argc, argv);
  penstock::comm::end_mpi(code);
  return code;
}
