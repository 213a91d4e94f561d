#include "penstock/comm/local.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/seconds.h"
#include "comm/traffic.h"

namespace penstock::comm {
namespace {

using test::without_seconds;
using test::words;

void sleep_ms(int64_t ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

void send_int(Group& group, int32_t peer, int64_t channel, int64_t value) {
  Ticket ticket = group.send(peer, channel, &value, sizeof(value));
  group.wait(ticket, words("a send"));
}

int64_t receive_int(Group& group, int32_t peer, int64_t channel, const std::string& what = "it") {
  int64_t value = 0;
  group.receive(peer, channel, &value, sizeof(value), words(what));
  return value;
}

// The line of each rank's error, "" where it had none, and what run_local threw; without seconds.
struct Outcome {
  std::vector<std::string> of_rank;
  std::string thrown;
  ExitCode code = ExitCode::Ok;
};

Outcome outcome_of(int32_t ranks, const std::function<void(Group&)>& work) {
  Outcome outcome;
  outcome.of_rank.resize(static_cast<size_t>(ranks));
  try {
    run_local(ranks, [&](Group& group) {
      try {
        work(group);
      } catch (const std::exception& error) {
        outcome.of_rank[static_cast<size_t>(group.rank())] = without_seconds(error.what());
        throw;
      }
    });
  } catch (const Error& error) {
    outcome.thrown = without_seconds(error.what());
    outcome.code = error.exit_code();
  } catch (const std::exception& error) {
    outcome.thrown = without_seconds(error.what());
  }
  return outcome;
}

TEST(Local, RunsEachRankOnceWithRankZeroOnTheCallingThread) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    std::mutex mutex;
    std::multiset<int32_t> seen;
    std::thread::id of_rank_zero;
    run_local(ranks, [&](Group& group) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(group.size(), ranks);
      seen.insert(group.rank());
      if (group.rank() == 0) {
        of_rank_zero = std::this_thread::get_id();
      }
    });
    std::multiset<int32_t> expected;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      expected.insert(rank);
    }
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(of_rank_zero, std::this_thread::get_id());
  }
}

TEST(Local, MessagesOfOneChannelArriveInOrder) {
  run_local(2, [](Group& group) {
    std::vector<int64_t> values(1000);
    std::iota(values.begin(), values.end(), 0);
    if (group.rank() == 0) {
      std::vector<Ticket> tickets;
      for (const int64_t& value : values) {
        tickets.push_back(group.send(1, 7, &value, sizeof(value)));
      }
      for (Ticket& ticket : tickets) {
        group.wait(ticket, words("a send"));
      }
    } else {
      for (const int64_t value : values) {
        EXPECT_EQ(receive_int(group, 0, 7), value);
      }
    }
  });
}

TEST(Local, AChannelDoesNotHoldUpAnother) {
  run_local(2, [](Group& group) {
    if (group.rank() == 0) {
      const std::vector<int64_t> values = {10, 11, 20};
      Ticket first = group.send(1, 1, &values[0], sizeof(int64_t));
      Ticket second = group.send(1, 1, &values[1], sizeof(int64_t));
      Ticket other = group.send(1, 2, &values[2], sizeof(int64_t));
      group.wait(other, words("channel 2"));
      EXPECT_FALSE(group.is_done(first));
      group.wait(second, words("channel 1"));
      EXPECT_TRUE(group.is_done(first));
    } else {
      EXPECT_EQ(receive_int(group, 0, 2), 20);
      sleep_ms(50);
      EXPECT_EQ(receive_int(group, 0, 1), 10);
      EXPECT_EQ(receive_int(group, 0, 1), 11);
    }
  });
}

TEST(Local, ARankMaySendToItself) {
  run_local(1, [](Group& group) {
    const int64_t value = 5;
    Ticket ticket = group.send(0, 0, &value, sizeof(value));
    EXPECT_FALSE(group.is_done(ticket));
    EXPECT_EQ(receive_int(group, 0, 0), 5);
    EXPECT_TRUE(group.is_done(ticket));
  });
}

TEST(Local, RandomTrafficArrivesAsItWasSent) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    run_local(ranks, [](Group& group) { test::random_traffic(group, 20); });
  }
}

TEST(Local, SizesFromNothingTo16MiBArriveWhole) {
  for (const int64_t bytes : {0, 1, 4095, 65537, 16 << 20}) {
    const std::vector<test::Message> there_and_back = {{0, 1, 0, bytes, bytes},
                                                       {1, 0, 0, bytes + 1, bytes}};
    run_local(2, [&](Group& group) { test::swap_messages(group, there_and_back); });
  }
}

TEST(Local, AMessageOfAnotherSizeIsAnErrorThatNamesBoth) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    const std::vector<char> bytes(44);
    if (group.rank() == 0) {
      Ticket ticket = group.send(1, 0, bytes.data(), 44);
      group.wait(ticket, words("the send"));
    } else {
      std::vector<char> room(40);
      group.receive(0, 0, room.data(), 40, words("block 3"));
    }
  });
  EXPECT_EQ(outcome.thrown, "rank 1 expected a message of 40 bytes, but rank 0 sent 44: block 3");
  EXPECT_EQ(outcome.code, ExitCode::Internal);
}

TEST(Local, ATimeoutNamesWhoWaitedForWhomAndWhat) {
  std::atomic<bool> is_over = false;
  const Outcome outcome = outcome_of(3, [&](Group& group) {
    group.set_timeout(group.rank() == 2 ? 0.2 : 60);
    if (group.rank() == 2) {
      try {
        receive_int(group, 1, 0, "instruction 12");
      } catch (...) {
        is_over = true;
        throw;
      }
    } else if (group.rank() == 1) {
      while (!is_over) {
        sleep_ms(1);
      }
      group.barrier(words("the step"));
    } else {
      receive_int(group, 1, 3, "instruction 4");
    }
  });
  const std::string line = "rank 2 has waited N s for rank 1: instruction 12";
  EXPECT_EQ(outcome.thrown, line);
  EXPECT_EQ(outcome.of_rank[2], line);
  EXPECT_EQ(outcome.of_rank[0], line + " (rank 0 had waited N s for rank 1: instruction 4)");
  EXPECT_EQ(outcome.of_rank[1], line + " (rank 1 had waited N s for rank 0: the step)");
}

TEST(Local, ATimeoutIsHeardByAllEvenWhereItIsCaught) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    if (group.rank() == 0) {
      group.set_timeout(0.1);
      EXPECT_THROW(receive_int(group, 1, 0), Timeout);
    } else {
      receive_int(group, 0, 1);
    }
  });
  EXPECT_EQ(outcome.thrown, "rank 0 has waited N s for rank 1: it");
}

TEST(Local, ASendThatNobodyTakesTimesOut) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    group.set_timeout(group.rank() == 0 ? 0.1 : 60);
    if (group.rank() == 0) {
      send_int(group, 1, 0, 1);
    } else {
      receive_int(group, 0, 1, "another channel");
    }
  });
  EXPECT_EQ(outcome.thrown, "rank 0 has waited N s for rank 1: a send");
}

TEST(Local, WhatOneRankThrowsEndsAllAndIsWhatIsThrown) {
  const Outcome outcome = outcome_of(4, [](Group& group) {
    if (group.rank() == 2) {
      sleep_ms(20);
      throw OutOfMemory("no room for block 3");
    }
    receive_int(group, (group.rank() + 1) % 4, 0, "a gradient");
  });
  EXPECT_EQ(outcome.thrown, "no room for block 3");
  EXPECT_EQ(outcome.code, ExitCode::Negative);
  for (const int32_t rank : {0, 1, 3}) {
    const std::string start = "rank 2 failed: no room for block 3 (rank ";
    EXPECT_EQ(outcome.of_rank[static_cast<size_t>(rank)].find(start), 0U) << rank;
  }
}

TEST(Local, OfTwoErrorsTheFirstIsThrown) {
  const Outcome outcome = outcome_of(3, [](Group& group) {
    if (group.rank() == 1) {
      throw ConfigError("the first");
    }
    sleep_ms(100);
    throw ConfigError("a later one");
  });
  EXPECT_EQ(outcome.thrown, "the first");
}

TEST(Local, APeerErrorCarriesTheExitCodeOfTheRankThatFailed) {
  std::atomic<int> code = -1;
  EXPECT_THROW(run_local(2,
                         [&](Group& group) {
                           if (group.rank() == 0) {
                             throw ConfigError("no such file");
                           }
                           try {
                             receive_int(group, 0, 0);
                           } catch (const PeerError& error) {
                             code = static_cast<int>(error.exit_code());
                             throw;
                           }
                         }),
               ConfigError);
  EXPECT_EQ(code, static_cast<int>(ExitCode::UserInput));
}

TEST(Local, AnErrorThatIsNoneOfOursReachesAll) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    if (group.rank() == 1) {
      throw std::out_of_range("index 9");
    }
    receive_int(group, 1, 0);
  });
  EXPECT_EQ(outcome.thrown, "index 9");
  EXPECT_EQ(outcome.of_rank[0].find("rank 1 failed: index 9"), 0U);
}

TEST(Local, AFailureThatARankOnlyTellsOfIsThrown) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    if (group.rank() == 1) {
      group.fail({ExitCode::Negative, "rank 1 gives up"});
      return;
    }
    receive_int(group, 1, 0);
  });
  EXPECT_EQ(outcome.thrown, "rank 1 gives up");
  EXPECT_EQ(outcome.code, ExitCode::Negative);
}

TEST(Local, WaitingForARankThatHasEndedIsAnErrorAtOnce) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    if (group.rank() == 0) {
      receive_int(group, 1, 0, "block 2");
    }
  });
  EXPECT_EQ(outcome.thrown, "rank 0 waits for rank 1, which has ended its work: block 2");
}

TEST(Local, ATicketThatIsDroppedTakesItsMessageBack) {
  run_local(2, [](Group& group) {
    if (group.rank() == 0) {
      auto gone = std::make_unique<int64_t>(1);
      const int64_t stays = 2;
      std::optional<Ticket> dropped = group.send(1, 0, gone.get(), sizeof(int64_t));
      Ticket kept = group.send(1, 0, &stays, sizeof(int64_t));
      dropped.reset();
      gone.reset();
      group.barrier(words("the drop"));
      group.wait(kept, words("the other"));
    } else {
      group.barrier(words("the drop"));
      EXPECT_EQ(receive_int(group, 0, 0), 2);
    }
  });
}

TEST(Local, AReceiverCanUseTheBytesWhereTheyAre) {
  run_local(2, [](Group& group) {
    EXPECT_TRUE(group.shares_memory());
    if (group.rank() == 0) {
      int64_t answer = 0;
      int64_t* const place = &answer;
      Ticket ticket = group.send(1, 0, &place, sizeof(place));
      group.wait(ticket, words("a send"));
      EXPECT_EQ(answer, 42);  // the send was done only after the receiver had used it
    } else {
      group.receive_in_place(0, 0, sizeof(int64_t*), words("it"), [](const void* sent) {
        sleep_ms(20);
        **static_cast<int64_t* const*>(sent) = 42;
      });
    }
  });
}

TEST(Local, ReceivingInPlaceThatFailsEndsBothRanks) {
  const Outcome outcome = outcome_of(2, [](Group& group) {
    int64_t value = 1;
    if (group.rank() == 0) {
      Ticket ticket = group.send(1, 0, &value, sizeof(value));
      group.wait(ticket, words("a send"));
      receive_int(group, 1, 0);
    } else {
      group.receive_in_place(0, 0, sizeof(value), words("it"), [](const void*) {
        throw Error(ExitCode::Negative, "no room");
      });
    }
  });
  EXPECT_EQ(outcome.thrown, "no room");
  EXPECT_EQ(outcome.code, ExitCode::Negative);
}

TEST(Local, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  run_local(5, [&](Group& group) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      group.barrier(words("a round"));
      EXPECT_GE(come.load(), round * 5);
    }
  });
}

TEST(Local, AllGatherAnswersInTheOrderOfRanks) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    run_local(ranks, [&](Group& group) {
      const std::vector<double> mine = {group.rank() + 0.5, group.rank() * 10.0};
      std::vector<double> expected;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        expected.insert(expected.end(), {rank + 0.5, rank * 10.0});
      }
      EXPECT_EQ(group.all_gather(mine, words("losses")), expected);
    });
  }
}

TEST(Local, BroadcastGivesAllTheBytesOfTheRoot) {
  run_local(4, [](Group& group) {
    for (int32_t root = 0; root < 4; ++root) {
      int64_t value = group.rank() * 100;
      group.broadcast(root, &value, sizeof(value), words("the seed"));
      EXPECT_EQ(value, root * 100);
    }
  });
}

TEST(Local, AChannelOrPeerThatIsNoneIsRefused) {
  run_local(2, [](Group& group) {
    char byte = 0;
    EXPECT_THROW((void)group.send(2, 0, &byte, 1), InternalError);
    EXPECT_THROW((void)group.send(1, -1, &byte, 1), InternalError);
    EXPECT_THROW(group.receive(1, Group::kNumChannels, &byte, 1, words("it")), InternalError);
    EXPECT_THROW((void)group.send(1, 0, &byte, -1), InternalError);
  });
}

}  // namespace
}  // namespace penstock::comm
