#include "penstock/comm/mesh.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/comm/sub_group.h"

#include "comm/traffic.h"

namespace penstock::comm {
namespace {

using Ranks = std::vector<int32_t>;

std::string text(const Mesh& mesh) {
  return cat("data ",
             mesh.data,
             ", pipeline ",
             mesh.pipeline,
             ", tensor ",
             mesh.tensor,
             ", context ",
             mesh.context);
}

// Every mesh of up to three coordinates on each axis.
template <typename Visit>
void for_small_meshes(const Visit& visit) {
  for (int32_t i = 0; i < 3 * 3 * 3 * 3; ++i) {
    const Mesh mesh{.data = 1 + i % 3,
                    .pipeline = 1 + i / 3 % 3,
                    .tensor = 1 + i / 9 % 3,
                    .context = 1 + i / 27};
    SCOPED_TRACE(text(mesh));
    visit(mesh);
  }
}

std::vector<AxisSet> all_axis_sets() {
  std::vector<AxisSet> sets{AxisSet{}};
  for (const Axis axis : kAxes) {
    for (size_t i = 0, count = sets.size(); i < count; ++i) {
      sets.push_back(sets[i] | axis);
    }
  }
  return sets;
}

// What members() must give, from the coordinates alone.
Ranks members_by_search(const Mesh& mesh, const RankGroup& group, int32_t rank) {
  const auto belongs = [&](int32_t one) {
    const int32_t stage = mesh.coordinates(one).pipeline;
    return group.stages.empty() ||
           std::find(group.stages.begin(), group.stages.end(), stage) != group.stages.end();
  };
  Ranks ranks;
  for (int32_t one = 0; belongs(rank) && one < mesh.ranks(); ++one) {
    const bool is_with = std::all_of(kAxes.begin(), kAxes.end(), [&](Axis axis) {
      return group.axes.contains(axis) || mesh.coordinate(one, axis) == mesh.coordinate(rank, axis);
    });
    if (is_with && belongs(one)) {
      ranks.push_back(one);
    }
  }
  return ranks;
}

TEST(Mesh, IsOneRankByDefault) {
  EXPECT_EQ(Mesh{}.ranks(), 1);
  EXPECT_EQ(Mesh{}.coordinates(0), Coordinates{});
  EXPECT_EQ(members({}, all(), 0), Ranks{0});
  EXPECT_EQ((Mesh{.data = 2}), (Mesh{.data = 2}));
  EXPECT_NE((Mesh{.data = 2}), (Mesh{.pipeline = 2}));
}

TEST(Mesh, NamesItsAxes) {
  std::vector<std::string> names;
  for (const Axis axis : kAxes) {
    names.emplace_back(axis_name(axis));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"data", "pipeline", "tensor", "context"}));
}

TEST(Mesh, RanksAndCoordinatesAreABijection) {
  for_small_meshes([](const Mesh& mesh) {
    EXPECT_EQ(mesh.ranks(), mesh.data * mesh.pipeline * mesh.tensor * mesh.context);
    std::set<std::vector<int32_t>> seen;
    for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
      const Coordinates at = mesh.coordinates(rank);
      EXPECT_EQ(mesh.rank_at(at), rank);
      EXPECT_TRUE(seen.insert({at.data, at.pipeline, at.tensor, at.context}).second);
      EXPECT_EQ(mesh.coordinate(rank, Axis::Data), at.data);
      EXPECT_EQ(mesh.coordinate(rank, Axis::Pipeline), at.pipeline);
      EXPECT_EQ(mesh.coordinate(rank, Axis::Tensor), at.tensor);
      EXPECT_EQ(mesh.coordinate(rank, Axis::Context), at.context);
      for (const Axis axis : kAxes) {
        EXPECT_GE(mesh.coordinate(rank, axis), 0);
        EXPECT_LT(mesh.coordinate(rank, axis), mesh.degree(axis));
      }
    }
  });
}

TEST(Mesh, WithChangesOneCoordinateAlone) {
  for_small_meshes([](const Mesh& mesh) {
    for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
      for (const Axis axis : kAxes) {
        for (int32_t i = 0; i < mesh.degree(axis); ++i) {
          const int32_t other = mesh.with(rank, axis, i);
          EXPECT_EQ(mesh.coordinate(other, axis), i);
          EXPECT_EQ(mesh.with(other, axis, mesh.coordinate(rank, axis)), rank);
          for (const Axis kept : kAxes) {
            EXPECT_TRUE(kept == axis ||
                        mesh.coordinate(other, kept) == mesh.coordinate(rank, kept));
          }
        }
      }
    }
  });
}

TEST(Mesh, NumbersStagesThenReplicas) {
  for (int32_t stages = 1; stages <= 4; ++stages) {
    for (int32_t replicas = 1; replicas <= 4; ++replicas) {
      const Mesh mesh{.data = replicas, .pipeline = stages};
      for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
        EXPECT_EQ(mesh.coordinate(rank, Axis::Pipeline), rank / replicas);
        EXPECT_EQ(mesh.coordinate(rank, Axis::Data), rank % replicas);
      }
    }
  }
}

// The picture of docs/mesh.md.
TEST(Mesh, KeepsTheAxisThatTalksMostInnermost) {
  const Mesh mesh{.data = 2, .pipeline = 2, .tensor = 2, .context = 2};
  EXPECT_EQ(members(mesh, along(Axis::Tensor), 0), (Ranks{0, 1}));
  EXPECT_EQ(members(mesh, along(Axis::Context), 0), (Ranks{0, 2}));
  EXPECT_EQ(members(mesh, along(Axis::Data), 0), (Ranks{0, 4}));
  EXPECT_EQ(members(mesh, along(Axis::Pipeline), 0), (Ranks{0, 8}));
  EXPECT_EQ(mesh.rank_at({.data = 1, .pipeline = 1, .tensor = 1, .context = 1}), 15);
  EXPECT_EQ(mesh.coordinates(13),
            (Coordinates{.data = 1, .pipeline = 1, .tensor = 1, .context = 0}));
}

TEST(Mesh, RefusesWhatIsOutOfRange) {
  const Mesh mesh{.data = 3, .pipeline = 2};
  EXPECT_THROW(mesh.coordinate(-1, Axis::Data), InternalError);
  EXPECT_THROW(mesh.coordinate(6, Axis::Data), InternalError);
  EXPECT_THROW(mesh.coordinates(6), InternalError);
  EXPECT_THROW(mesh.rank_at({.data = 3}), InternalError);
  EXPECT_THROW(mesh.rank_at({.pipeline = -1}), InternalError);
  EXPECT_THROW(mesh.rank_at({.tensor = 1}), InternalError);
  EXPECT_THROW(mesh.with(0, Axis::Context, 1), InternalError);
  EXPECT_THROW(mesh.with(6, Axis::Data, 0), InternalError);
  EXPECT_THROW(members(mesh, all(), 6), InternalError);
  EXPECT_THROW(colour(mesh, all(), -1), InternalError);
  EXPECT_THROW(describe(mesh, 6), InternalError);
  EXPECT_THROW(members(mesh, among_stages("table", {0, 2}), 0), InternalError);
  EXPECT_THROW(members(mesh, among_stages("table", {1, 0}), 0), InternalError);
  EXPECT_THROW(num_members(mesh, among_stages("table", {1, 1})), InternalError);
  EXPECT_THROW((Mesh{.data = 0}).ranks(), InternalError);
  EXPECT_THROW((Mesh{.tensor = -2}).coordinate(0, Axis::Data), InternalError);
  const int32_t most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Mesh{.pipeline = most}.ranks(), most);
  EXPECT_THROW((Mesh{.data = most, .pipeline = most, .tensor = most}).ranks(), InternalError);
}

TEST(RankGroups, AreNamedForTheirAxes) {
  EXPECT_EQ(along(Axis::Data).name, "data");
  EXPECT_EQ(along({Axis::Context, Axis::Data}).name, "data x context");
  EXPECT_EQ(along({Axis::Context, Axis::Data}), along({Axis::Data, Axis::Context}));
  EXPECT_EQ(all().name, "all");
  EXPECT_EQ(among_stages("table", {0, 1}).name, "table");
}

TEST(RankGroups, OfAnyAxesPartitionTheRanks) {
  const std::vector<AxisSet> sets = all_axis_sets();
  EXPECT_EQ(sets.size(), 16u);
  for_small_meshes([&](const Mesh& mesh) {
    for (const AxisSet& axes : sets) {
      const RankGroup group = along(axes);
      SCOPED_TRACE(group.name);
      int32_t size = 1;
      for (const Axis axis : kAxes) {
        size *= axes.contains(axis) ? mesh.degree(axis) : 1;
      }
      EXPECT_EQ(num_members(mesh, group), size);
      std::set<int32_t> colours;
      for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
        const Ranks ranks = members(mesh, group, rank);
        EXPECT_EQ(ranks, members_by_search(mesh, group, rank));
        EXPECT_EQ(static_cast<int32_t>(ranks.size()), size);
        EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
        EXPECT_TRUE(std::binary_search(ranks.begin(), ranks.end(), rank));
        for (const int32_t other : ranks) {
          EXPECT_EQ(members(mesh, group, other), ranks);
        }
        EXPECT_EQ(colour(mesh, group, rank), ranks.front());
        colours.insert(ranks.front());
      }
      EXPECT_EQ(static_cast<int32_t>(colours.size()) * size, mesh.ranks());
    }
  });
}

// The table of docs/mesh.md.
TEST(RankGroups, AreThoseOfTheDocs) {
  const Mesh mesh{.data = 4, .pipeline = 2};
  EXPECT_EQ(members(mesh, along(Axis::Data), 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(members(mesh, along(Axis::Pipeline), 5), (Ranks{1, 5}));
  EXPECT_EQ(members(mesh, along({Axis::Data, Axis::Context}), 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(members(mesh, all(), 5), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(members(mesh, among_stages("wte", {0, 1}), 5), (Ranks{1, 5}));
}

TEST(RankGroups, OfNoAxisAreOfOneRankAndOfAllAxesOne) {
  const Mesh mesh{.data = 2, .pipeline = 3};
  EXPECT_EQ(members(mesh, along({}), 4), Ranks{4});
  EXPECT_EQ(members(mesh, all(), 4), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(members(mesh, along({Axis::Data, Axis::Pipeline}), 4), members(mesh, all(), 4));
}

TEST(RankGroups, AmongStagesLeaveOutTheOthers) {
  const Mesh mesh{.data = 2, .pipeline = 4};
  const RankGroup table = among_stages("table", {0, 3});
  EXPECT_EQ(members(mesh, table, 0), (Ranks{0, 6}));
  EXPECT_EQ(members(mesh, table, 7), (Ranks{1, 7}));
  EXPECT_EQ(members(mesh, table, 2), Ranks{});
  EXPECT_EQ(members(mesh, table, 5), Ranks{});
  EXPECT_EQ(num_members(mesh, table), 2);
}

TEST(RankGroups, OfSomeStagesMayBeOfAnyAxes) {
  for_small_meshes([](const Mesh& mesh) {
    for (const AxisSet& axes : all_axis_sets()) {
      for (const Ranks& stages : {Ranks{0}, Ranks{0, 2}, Ranks{1, 2}}) {
        if (stages.back() >= mesh.pipeline) {
          continue;
        }
        const RankGroup group{.name = "some", .axes = axes, .stages = stages};
        std::set<int32_t> colours;
        int32_t covered = 0;
        for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
          const Ranks ranks = members(mesh, group, rank);
          EXPECT_EQ(ranks, members_by_search(mesh, group, rank));
          EXPECT_EQ(colour(mesh, group, rank), ranks.empty() ? rank : ranks.front());
          if (!ranks.empty()) {
            EXPECT_EQ(static_cast<int32_t>(ranks.size()), num_members(mesh, group));
            covered += colours.insert(ranks.front()).second ? num_members(mesh, group) : 0;
          }
        }
        EXPECT_EQ(covered, mesh.ranks() / mesh.pipeline * static_cast<int32_t>(stages.size()));
      }
    }
  });
}

// Ranks that belong to no group are alone.
TEST(RankGroups, AreWhatSplitMakesByTheirColours) {
  const Mesh mesh{.data = 2, .pipeline = 3};
  for (const RankGroup& group :
       {along(Axis::Data), along(Axis::Pipeline), all(), among_stages("table", {0, 2})}) {
    SCOPED_TRACE(group.name);
    run_local(mesh.ranks(), [&](Group& job) {
      const auto part = split(job, colour(mesh, group, job.rank()), test::words(group.name));
      Ranks expected = members(mesh, group, job.rank());
      expected = expected.empty() ? Ranks{job.rank()} : expected;
      const double mine = job.rank();
      const std::vector<double> found = part->all_gather({&mine, 1}, test::words("ranks"));
      EXPECT_EQ(Ranks(found.begin(), found.end()), expected);
    });
  }
}

TEST(Mesh, DescribesARankByTheAxesThatMatter) {
  EXPECT_EQ(describe({}, 0), "rank 0");
  EXPECT_EQ(describe({.data = 2, .pipeline = 2}, 3), "rank 3 (stage 1, replica 1)");
  EXPECT_EQ(describe({.data = 4}, 2), "rank 2 (replica 2)");
  EXPECT_EQ(describe({.pipeline = 4}, 2), "rank 2 (stage 2)");
  EXPECT_EQ(describe({.data = 2, .pipeline = 2, .tensor = 2, .context = 2}, 13),
            "rank 13 (stage 1, replica 1, context 0, tensor 1)");
}

}  // namespace
}  // namespace penstock::comm
