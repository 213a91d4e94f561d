// The ranks of a job as a grid with named axes, and the groups of ranks that exchange something.
// The only place that numbers ranks: all other code asks for coordinates and for members of groups.
// Plain numbers: no Group, no messages, no LibTorch.
//
// Ranks are numbered with the pipeline axis outermost, then data, then context, then tensor:
//
//   rank = ((pipeline * mesh.data + data) * mesh.context + context) * mesh.tensor + tensor
//
// The axis that talks most is innermost. A launcher fills one node before the next, so neighbours
// share a node and its fast links: tensor exchanges within every layer, context within every
// attention, data once or a few times a step for each unit of weights; stages of a pipeline only
// hand activations to the next.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::comm {

enum class Axis { Data, Pipeline, Tensor, Context };
inline constexpr std::array kAxes{Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Context};
// "data", "pipeline", "tensor", "context"
std::string_view axis_name(Axis axis);

// Where a rank is on each axis. On the data axis: its replica; on the pipeline axis: its stage.
struct Coordinates {
  int32_t data = 0;
  int32_t pipeline = 0;
  int32_t tensor = 0;
  int32_t context = 0;

  bool operator==(const Coordinates&) const = default;
};

// The degree of each axis. A mesh of one rank is an ordinary one.
struct Mesh {
  int32_t data = 1;
  int32_t pipeline = 1;
  int32_t tensor = 1;
  int32_t context = 1;

  bool operator==(const Mesh&) const = default;

  // A rank or a coordinate out of range is an InternalError, and so is a degree below 1.
  int32_t ranks() const;
  int32_t degree(Axis axis) const;
  int32_t coordinate(int32_t rank, Axis axis) const;
  Coordinates coordinates(int32_t rank) const;
  int32_t rank_at(const Coordinates& coordinates) const;
  // The rank that differs from `rank` in one coordinate alone.
  int32_t with(int32_t rank, Axis axis, int32_t coordinate) const;
};

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}  // NOLINT(google-explicit-constructor)
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) {
      bits_ |= bit(axis);
    }
  }

  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr AxisSet operator|(AxisSet other) const {
    other.bits_ |= bits_;
    return other;
  }
  bool operator==(const AxisSet&) const = default;

 private:
  static constexpr uint32_t bit(Axis axis) { return uint32_t{1} << static_cast<uint32_t>(axis); }

  uint32_t bits_ = 0;
};

// A way to divide the ranks of a mesh into groups. Members of one group differ on `axes` alone.
// Where `stages` names some, ascending, only ranks of those stages belong to a group at all.
struct RankGroup {
  std::string name;  // for people
  AxisSet axes;
  std::vector<int32_t> stages;

  bool operator==(const RankGroup&) const = default;
};

// along(Axis::Data), along({Axis::Data, Axis::Context}): named for the axes, "data x context".
RankGroup along(AxisSet axes);
RankGroup all();
// Those stages of each pipeline, as the two that have a tied table: among_stages("wte", {0, 3}).
RankGroup among_stages(std::string name, std::vector<int32_t> stages);

// The ranks of the group that `rank` belongs to, ascending; none where it belongs to no group.
std::vector<int32_t> members(const Mesh& mesh, const RankGroup& group, int32_t rank);
// How many each of the groups has.
int32_t num_members(const Mesh& mesh, const RankGroup& group);
// The same for the members of one group and for nobody else, as comm::split wants it: the first
// member. A rank that belongs to no group has its own number.
int32_t colour(const Mesh& mesh, const RankGroup& group, int32_t rank);

// "rank 3 (stage 1, replica 1)": the axes with more than one coordinate, outermost first.
std::string describe(const Mesh& mesh, int32_t rank);

}  // namespace penstock::comm
