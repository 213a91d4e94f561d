#include "penstock/comm/mpi_tags.h"

#include <set>

#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

int64_t channel_in(int64_t group, int64_t channel) {
  return group * (Group::kNumChannels + 1) + channel;
}

// A chain of 8000 layers, and hundreds of groups within the job, with the channels that they use.
TEST(MpiTags, WhatIsUsedHasTagsThatEveryLibraryHas) {
  std::set<int64_t> tags;
  const auto take = [&](int64_t channel) {
    const std::optional<int64_t> tag = tag_of(channel, kLeastMostTag);
    ASSERT_TRUE(tag.has_value()) << channel;
    EXPECT_GE(*tag, 0);
    EXPECT_LE(*tag, 32767);
    EXPECT_TRUE(tags.insert(*tag).second) << channel;
  };
  for (int64_t channel = 0; channel < 2 * 8000 + 100; ++channel) {
    take(channel);
  }
  take(channel_in(0, Group::kNumChannels));
  for (int64_t group = 1; group <= 1000; ++group) {
    for (int64_t channel = 0; channel < 15; ++channel) {
      take(channel_in(group, channel));
    }
    take(channel_in(group, Group::kNumChannels));
  }
}

TEST(MpiTags, NoTwoChannelsHaveTheSame) {
  constexpr int64_t kMany = int64_t{1} << 40;
  std::set<int64_t> tags;
  int64_t channels = 0;
  for (const int64_t group : {0, 1, 2, 1023, 1024, 1025, 5000}) {
    for (int64_t channel = 0; channel <= Group::kNumChannels;
         channel += channel < 20'000 || channel > Group::kNumChannels - 20 ? 1 : 7) {
      tags.insert(*tag_of(channel_in(group, channel), kMany));
      ++channels;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(tags.size()), channels);
}

TEST(MpiTags, BeyondTheLibrarysThereIsNone) {
  EXPECT_FALSE(tag_of(kPackedJobChannels, kLeastMostTag).has_value());
  EXPECT_TRUE(tag_of(kPackedJobChannels, 524287).has_value());
  EXPECT_FALSE(tag_of(channel_in(2, 1000), 524287).has_value());
}

}  // namespace
}  // namespace penstock::comm
