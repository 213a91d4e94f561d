#include "penstock/comm/compressed.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "penstock/comm/local.h"
#include "penstock/kernels/onebit.h"

#include "comm/traffic.h"

namespace penstock::comm {
namespace {

using test::words;

constexpr int64_t kElements = 16000;

// Tensors of odd sizes with gaps between them; 0: an empty one.
std::vector<Stretch> odd_tensors() {
  return {{0, 1}, {16, 513}, {544, 0}, {544, 9}, {560, 5000}, {5568, 7}, {5584, 10001}};
}

// Between -0.4 and 0.6, as good as random.
float value_of(int32_t rank, int64_t round, int64_t element) {
  uint64_t bits = static_cast<uint64_t>(1 + rank + 100 * round + 10000 * element);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((bits >> 40) & 0xFFFFFF) / 16777216.0f - 0.4f;
}

// The definition, in double precision, with nobody to send anything to.
class Reference {
 public:
  Reference(int32_t ranks, const SignBlocks& blocks, std::vector<uint8_t> alive)
      : ranks_(ranks),
        blocks_(blocks),
        alive_(std::move(alive)),
        worker_(static_cast<size_t>(ranks), std::vector<double>(kElements)),
        server_(kElements) {}

  std::vector<double> average(const std::vector<std::vector<double>>& values) {
    std::vector<double> result(kElements);
    for (int64_t block = 0; block < blocks_.size(); ++block) {
      std::vector<double> mean(kElements);
      const auto [first, count] = blocks_[block];
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        const auto at = static_cast<size_t>(rank);
        compress(first, first + count, values[at], worker_[at], [&](size_t i, double sent) {
          mean[i] += sent / ranks_;
        });
      }
      compress(
          first, first + count, mean, server_, [&](size_t i, double sent) { result[i] = sent; });
    }
    return result;
  }

 private:
  template <typename Send>
  void compress(int64_t begin,
                int64_t end,
                const std::vector<double>& values,
                std::vector<double>& error,
                const Send& send) const {
    double squares = 0;
    std::vector<size_t> living;
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      if (is_alive(i)) {
        error[at] += values[at];
        squares += error[at] * error[at];
        living.push_back(at);
      }
    }
    for (const size_t at : living) {
      const double sent =
          (error[at] >= 0 ? 1 : -1) * std::sqrt(squares / static_cast<double>(living.size()));
      error[at] -= sent;
      send(at, sent);
    }
  }

  bool is_alive(int64_t element) const {
    return alive_.empty() || ((alive_[static_cast<size_t>(element / 8)] >> (element % 8)) & 1) != 0;
  }

  int32_t ranks_;
  const SignBlocks& blocks_;
  std::vector<uint8_t> alive_;
  std::vector<std::vector<double>> worker_;
  std::vector<double> server_;
};

struct Case {
  int32_t ranks;
  int64_t staging;  // 0: the least
  bool has_dead;
};

// What one rank sees of some averages in a row.
struct Seen {
  std::vector<std::vector<float>> averages;
  int64_t sent_bytes = 0;
};

constexpr int64_t kRounds = 4;

std::vector<Seen> run_ranks(const Case& at, const SignBlocks& blocks, const uint8_t* alive) {
  std::vector<Seen> seen(static_cast<size_t>(at.ranks));
  run_local(at.ranks, [&](Group& group) {
    std::vector<std::byte> staging(
        static_cast<size_t>(std::max(at.staging, CompressedReduce::least_staging(group.size()))));
    CompressedReduce reduce(group, 3, staging);
    std::vector<float> values(kElements), worker(kElements), server(kElements + 4096);
    Seen& mine = seen[static_cast<size_t>(group.rank())];
    for (int64_t round = 0; round < kRounds; ++round) {
      for (int64_t i = 0; i < kElements; ++i) {
        values[static_cast<size_t>(i)] = value_of(group.rank(), round, i);
      }
      reduce.average(blocks, {values.data(), worker.data(), server.data(), alive}, words("a test"));
      mine.averages.push_back(values);
    }
    mine.sent_bytes = reduce.sent_bytes();
  });
  return seen;
}

void expect_reference(const Case& at) {
  const SignBlocks blocks(odd_tensors());
  std::vector<uint8_t> alive;
  if (at.has_dead) {
    alive.assign(kElements / 8, 0b11011110);
    std::fill_n(alive.begin() + 200, 300, 0);
  }
  const std::vector<Seen> seen = run_ranks(at, blocks, at.has_dead ? alive.data() : nullptr);
  Reference reference(at.ranks, blocks, alive);
  int64_t differences = 0;
  for (int64_t round = 0; round < kRounds; ++round) {
    std::vector<std::vector<double>> values;
    for (int32_t rank = 0; rank < at.ranks; ++rank) {
      values.emplace_back();
      for (int64_t i = 0; i < kElements; ++i) {
        values.back().push_back(static_cast<double>(value_of(rank, round, i)));
      }
    }
    const std::vector<double> expected = reference.average(values);
    const std::vector<float>& found = seen[0].averages[static_cast<size_t>(round)];
    for (int64_t block = 0; block < blocks.size(); ++block) {
      for (int64_t i = blocks[block].first; i < blocks[block].first + blocks[block].count; ++i) {
        const auto place = static_cast<size_t>(i);
        const double by = std::abs(static_cast<double>(found[place]) - expected[place]);
        differences += by > 1e-4 ? 1 : 0;
      }
    }
    for (int32_t rank = 1; rank < at.ranks; ++rank) {
      const std::vector<float>& other =
          seen[static_cast<size_t>(rank)].averages[static_cast<size_t>(round)];
      for (int64_t block = 0; block < blocks.size(); ++block) {
        const auto [first, count] = blocks[block];
        ASSERT_EQ(std::memcmp(&found[static_cast<size_t>(first)],
                              &other[static_cast<size_t>(first)],
                              static_cast<size_t>(count) * sizeof(float)),
                  0)
            << "rank " << rank << ", block " << block;
      }
    }
  }
  // A sign may go the other way where rounding decides.
  EXPECT_LE(differences, 8) << at.ranks << " ranks";
}

TEST(CompressedReduce, AveragesAsDefinedForAnyNumberOfRanks) {
  for (int32_t ranks = 2; ranks <= 9; ++ranks) {
    expect_reference({ranks, 1 << 20, false});
  }
}

TEST(CompressedReduce, LeavesOutTheDead) {
  for (const int32_t ranks : {2, 3, 5}) {
    expect_reference({ranks, 1 << 20, true});
  }
}

TEST(CompressedReduce, NeedsLittleMemoryAndGivesTheSameBitsWithIt) {
  const SignBlocks blocks(odd_tensors());
  for (const int32_t ranks : {2, 4}) {
    const std::vector<Seen> roomy = run_ranks({ranks, 1 << 20, false}, blocks, nullptr);
    for (const int64_t staging : {0, 3000}) {
      const std::vector<Seen> tight = run_ranks({ranks, staging, false}, blocks, nullptr);
      EXPECT_EQ(tight[0].averages, roomy[0].averages);
      EXPECT_EQ(tight[1].sent_bytes, roomy[1].sent_bytes);
    }
  }
}

TEST(CompressedReduce, SendsWhatTheFormulaSays) {
  const SignBlocks blocks(odd_tensors());
  for (int32_t ranks = 2; ranks <= 9; ++ranks) {
    const std::vector<Seen> seen = run_ranks({ranks, 1 << 20, false}, blocks, nullptr);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(seen[static_cast<size_t>(rank)].sent_bytes,
                kRounds * blocks.sent_bytes(rank, ranks))
          << rank << " of " << ranks;
    }
  }
}

TEST(SignBlocks, CostAFifteenthOfAHalfPrecisionAllReduce) {
  const int64_t count = int64_t{1} << 27;
  const SignBlocks blocks({{0, count}});
  for (const int32_t ranks : {2, 3, 8, 64}) {
    const double half = 2.0 * 2 * static_cast<double>(count) * (ranks - 1) / ranks;
    for (const int32_t rank : {0, ranks - 1}) {
      EXPECT_LT(static_cast<double>(blocks.sent_bytes(rank, ranks)), half / 15);
    }
  }
}

TEST(SignBlocks, HaveElementsOfOneTensorAndAreSharedOut) {
  const SignBlocks blocks(odd_tensors());
  ASSERT_EQ(blocks.size(), 1 + 2 + 1 + 10 + 1 + 20);
  EXPECT_EQ(blocks[2].first, 16 + 512);
  EXPECT_EQ(blocks[2].count, 1);
  int64_t done = 0;
  for (int32_t rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(blocks.of_rank(rank, 9).begin, done);
    done = blocks.of_rank(rank, 9).end;
  }
  EXPECT_EQ(done, blocks.size());
  EXPECT_EQ(blocks.message_bytes({1, 4}), 3 * 4 + 64 + 1 + 2);
  EXPECT_THROW(SignBlocks({{0, 9}, {8, 1}}), InternalError);
  EXPECT_THROW(SignBlocks({{3, 9}}), InternalError);
}

TEST(CompressedReduce, OfOneRankTakesTheErrorsAndSendsNothing) {
  const SignBlocks blocks(std::vector<Stretch>{{8, 600}});
  run_local(1, [&](Group& group) {
    std::vector<std::byte> staging(4096);
    CompressedReduce reduce(group, 0, staging);
    std::vector<float> values(608, 1), worker(608, 10), server(1024, 100);
    reduce.average(blocks, {values.data(), worker.data(), server.data(), nullptr}, words("alone"));
    EXPECT_EQ(values[7], 1);
    EXPECT_EQ(values[8], 111);
    EXPECT_EQ(values[607], 111);
    EXPECT_EQ(worker[607], 0);
    EXPECT_EQ(server[599], 0);
    EXPECT_EQ(reduce.sent_bytes(), 0);
  });
}

TEST(CompressedReduce, JoinsWhatRanksHaveShardsOf) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{4099}}) {
      run_local(ranks, [&](Group& group) {
        std::vector<std::byte> staging(static_cast<size_t>(CompressedReduce::least_staging(ranks)));
        CompressedReduce reduce(group, 0, staging);
        std::vector<std::byte> bytes(size), expected(size);
        for (size_t i = 0; i < size; ++i) {
          expected[i] = static_cast<std::byte>(i * 7 + 1);
          if (static_cast<int32_t>(i / 5) % ranks == group.rank()) {
            bytes[i] = expected[i];
          }
        }
        reduce.join(bytes, words("shards"));
        EXPECT_EQ(bytes, expected) << ranks << " ranks, " << size << " bytes";
      });
    }
  }
}

TEST(CompressedReduce, SaysWhenItHasTooLittleMemory) {
  EXPECT_THROW(run_local(2,
                         [](Group& group) {
                           std::vector<std::byte> staging(
                               static_cast<size_t>(CompressedReduce::least_staging(2) - 1));
                           CompressedReduce(group, 0, staging);
                         }),
               InternalError);
}

}  // namespace
}  // namespace penstock::comm
