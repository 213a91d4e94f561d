#include "penstock/comm/mesh.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock::comm {

namespace {

// The numbering of ranks, outermost first.
constexpr std::array kOutermostFirst{Axis::Pipeline, Axis::Data, Axis::Context, Axis::Tensor};

// The field of a Mesh or of Coordinates.
template <typename PerAxis>
auto& field(PerAxis& values, Axis axis) {
  switch (axis) {
    case Axis::Data:
      return values.data;
    case Axis::Pipeline:
      return values.pipeline;
    case Axis::Tensor:
      return values.tensor;
    case Axis::Context:
      return values.context;
  }
  throw InternalError(cat("no axis ", static_cast<int>(axis)));
}

// How far apart ranks are that are neighbours on the axis.
int32_t stride(const Mesh& mesh, Axis axis) {
  int32_t stride = 1;
  for (size_t i = kOutermostFirst.size(); kOutermostFirst[--i] != axis;) {
    stride *= field(mesh, kOutermostFirst[i]);
  }
  return stride;
}

void check_rank(const Mesh& mesh, int32_t rank) {
  PENSTOCK_CHECK(rank >= 0 && rank < mesh.ranks(), "rank ", rank, " of ", mesh.ranks());
}

void check_coordinate(const Mesh& mesh, Axis axis, int32_t coordinate) {
  PENSTOCK_CHECK(coordinate >= 0 && coordinate < field(mesh, axis),
                 "coordinate ",
                 coordinate,
                 " of ",
                 field(mesh, axis),
                 " on the axis ",
                 axis_name(axis));
}

void check_stages(const Mesh& mesh, const RankGroup& group) {
  const std::vector<int32_t>& stages = group.stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    check_coordinate(mesh, Axis::Pipeline, stages[i]);
    PENSTOCK_CHECK(i == 0 || stages[i - 1] < stages[i],
                   "the stages of group ",
                   group.name,
                   " are not ascending");
  }
}

bool has_stage(const RankGroup& group, int32_t stage) {
  return group.stages.empty() ||
         std::binary_search(group.stages.begin(), group.stages.end(), stage);
}

// What a rank's place on an axis is called.
std::string_view place_name(Axis axis) {
  switch (axis) {
    case Axis::Data:
      return "replica";
    case Axis::Pipeline:
      return "stage";
    default:
      return axis_name(axis);
  }
}

}  // namespace

std::string_view axis_name(Axis axis) {
  constexpr std::array<std::string_view, kAxes.size()> kNames{
      "data", "pipeline", "tensor", "context"};
  return kNames.at(static_cast<size_t>(axis));
}

int32_t Mesh::ranks() const {
  int64_t ranks = 1;
  for (const Axis axis : kAxes) {
    const int32_t count = degree(axis);
    PENSTOCK_CHECK(count > 0, "degree ", count, " of the axis ", axis_name(axis));
    ranks *= count;
    PENSTOCK_CHECK(ranks <= std::numeric_limits<int32_t>::max(), ranks, " ranks or more");
  }
  return static_cast<int32_t>(ranks);
}

int32_t Mesh::degree(Axis axis) const {
  return field(*this, axis);
}

int32_t Mesh::coordinate(int32_t rank, Axis axis) const {
  check_rank(*this, rank);
  return rank / stride(*this, axis) % degree(axis);
}

Coordinates Mesh::coordinates(int32_t rank) const {
  Coordinates all;
  for (const Axis axis : kAxes) {
    field(all, axis) = coordinate(rank, axis);
  }
  return all;
}

int32_t Mesh::rank_at(const Coordinates& coordinates) const {
  int32_t rank = 0;
  for (const Axis axis : kAxes) {
    rank = with(rank, axis, field(coordinates, axis));
  }
  return rank;
}

int32_t Mesh::with(int32_t rank, Axis axis, int32_t coordinate) const {
  check_coordinate(*this, axis, coordinate);
  return rank + (coordinate - this->coordinate(rank, axis)) * stride(*this, axis);
}

RankGroup along(AxisSet axes) {
  std::vector<std::string> names;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis)) {
      names.emplace_back(axis_name(axis));
    }
  }
  return {.name = join(names, " x "), .axes = axes};
}

RankGroup all() {
  return {.name = "all", .axes = {Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Context}};
}

RankGroup among_stages(std::string name, std::vector<int32_t> stages) {
  return {.name = std::move(name), .axes = Axis::Pipeline, .stages = std::move(stages)};
}

std::vector<int32_t> members(const Mesh& mesh, const RankGroup& group, int32_t rank) {
  check_stages(mesh, group);
  if (!has_stage(group, mesh.coordinate(rank, Axis::Pipeline))) {
    return {};
  }
  // From the outermost axis on: ranks that an inner one adds lie between those there are.
  std::vector<int32_t> ranks{rank};
  for (const Axis axis : kOutermostFirst) {
    if (!group.axes.contains(axis)) {
      continue;
    }
    std::vector<int32_t> more;
    for (const int32_t one : ranks) {
      for (int32_t i = 0; i < mesh.degree(axis); ++i) {
        if (axis != Axis::Pipeline || has_stage(group, i)) {
          more.push_back(mesh.with(one, axis, i));
        }
      }
    }
    ranks = std::move(more);
  }
  return ranks;
}

int32_t num_members(const Mesh& mesh, const RankGroup& group) {
  const int32_t stage = group.stages.empty() ? 0 : group.stages.front();
  return static_cast<int32_t>(members(mesh, group, mesh.rank_at({.pipeline = stage})).size());
}

int32_t colour(const Mesh& mesh, const RankGroup& group, int32_t rank) {
  const std::vector<int32_t> ranks = members(mesh, group, rank);
  return ranks.empty() ? rank : ranks.front();
}

std::string describe(const Mesh& mesh, int32_t rank) {
  check_rank(mesh, rank);
  std::vector<std::string> places;
  for (const Axis axis : kOutermostFirst) {
    if (mesh.degree(axis) > 1) {
      places.push_back(cat(place_name(axis), " ", mesh.coordinate(rank, axis)));
    }
  }
  return places.empty() ? cat("rank ", rank) : cat("rank ", rank, " (", join(places, ", "), ")");
}

}  // namespace penstock::comm
