#include "penstock/model/units.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/account.h"
#include "penstock/model/gpt2.h"
#include "penstock/model/parameters.h"

namespace penstock::model {

namespace {

using program::Shard;

constexpr Shard kShards[] = {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters};
const std::vector<int32_t> kOneStage = {0, 5};
const std::vector<int32_t> kTwoStages = {0, 3, 5};
const char* const kTable = "transformer.wte.weight";

// An embedding, two blocks of two layers, the head. Matrices are cut in the middle; sizes are no
// multiples of what they are rounded up to.
Chain small_chain(bool is_tied = true) {
  return make_gpt2(
      {.layers = 2, .width = 60, .heads = 4, .context = 24, .vocabulary = 131, .is_tied = is_tied});
}

std::vector<std::string> names_of(const UnitSpec& unit) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : unit.parameters) {
    names.push_back(spec.name);
  }
  return names;
}

// "block 0 attention: 1; ...": a unit and the layers that use it.
std::string list_of(const std::vector<UnitSpec>& units) {
  std::vector<std::string> words;
  for (const UnitSpec& unit : units) {
    std::vector<std::string> layers;
    for (const int64_t layer : unit.layers) {
      layers.push_back(cat(layer));
    }
    words.push_back(cat(unit.name, ": ", join(layers, " ")));
  }
  return join(words, "; ");
}

int64_t float32_bytes(const UnitSpec& unit) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : unit.parameters) {
    bytes += 4 * spec.count();
  }
  return bytes;
}

}  // namespace

TEST(Units, AreLayersAndASharedTable) {
  const std::vector<UnitSpec> units = make_units(small_chain(), kOneStage, 0);
  EXPECT_EQ(list_of(units),
            "embedding: 0; block 0 attention: 1; block 0 mlp: 2; block 1 attention: 3; "
            "block 1 mlp: 4; head: 5; transformer.wte.weight: 0 5");
  EXPECT_EQ(names_of(units[0]), std::vector<std::string>{"transformer.wpe.weight"});
  EXPECT_EQ(names_of(units[5]),
            (std::vector<std::string>{"transformer.ln_f.weight", "transformer.ln_f.bias"}));
  EXPECT_EQ(names_of(units[6]), std::vector<std::string>{kTable});
  // The embedding's backward needs tokens alone.
  EXPECT_EQ(units[0].forward_only, std::vector<int64_t>{0});
  EXPECT_TRUE(units[1].forward_only.empty());
  EXPECT_EQ(units[6].forward_only, std::vector<int64_t>{0});
}

TEST(Units, HaveWhatStaysFloat32Last) {
  const std::vector<UnitSpec> units = make_units(small_chain(), kOneStage, 0);
  const std::string prefix = "transformer.h.0.";
  EXPECT_EQ(names_of(units[2]),
            (std::vector<std::string>{prefix + "mlp.c_fc.weight",
                                      prefix + "mlp.c_fc.bias",
                                      prefix + "mlp.c_proj.weight",
                                      prefix + "mlp.c_proj.bias",
                                      prefix + "ln_2.weight",
                                      prefix + "ln_2.bias"}));
}

TEST(Units, OfATableOfItsOwnAreLayersAlone) {
  const std::vector<UnitSpec> units = make_units(small_chain(false), kOneStage, 0);
  EXPECT_EQ(list_of(units),
            "embedding: 0; block 0 attention: 1; block 0 mlp: 2; block 1 attention: 3; "
            "block 1 mlp: 4; head: 5");
  EXPECT_EQ(names_of(units[0]), (std::vector<std::string>{kTable, "transformer.wpe.weight"}));
  EXPECT_EQ(names_of(units[5]),
            (std::vector<std::string>{
                "lm_head.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"}));
}

TEST(Units, TakeLayersUntilTheyAreLargeEnough) {
  const Chain chain = small_chain();
  const std::vector<UnitSpec> layers = make_units(chain, kOneStage, 0);
  const int64_t of_two = float32_bytes(layers[0]) + float32_bytes(layers[1]);
  EXPECT_EQ(list_of(make_units(chain, kOneStage, of_two)),
            "embedding to block 0 attention: 0 1; block 0 mlp: 2; "
            "block 1 attention to block 1 mlp: 3 4; head: 5; transformer.wte.weight: 0 5");
  EXPECT_EQ(list_of(make_units(chain, kOneStage, of_two + 1)),
            "embedding to block 0 mlp: 0 1 2; block 1 attention to block 1 mlp: 3 4; head: 5; "
            "transformer.wte.weight: 0 5");
}

TEST(Units, NeverSpanStages) {
  constexpr int64_t kAll = int64_t{1} << 40;
  EXPECT_EQ(list_of(make_units(small_chain(), kOneStage, kAll)),
            "embedding to head: 0 1 2 3 4 5; transformer.wte.weight: 0 5");
  EXPECT_EQ(list_of(make_units(small_chain(), kTwoStages, kAll)),
            "embedding to block 0 mlp: 0 1 2; block 1 attention to head: 3 4 5; "
            "transformer.wte.weight: 0 5");
  EXPECT_EQ(list_of(make_units(small_chain(), {0, 1, 2, 3, 4, 5}, kAll)),
            "embedding: 0; block 0 attention: 1; block 0 mlp: 2; block 1 attention: 3; "
            "block 1 mlp to head: 4 5; transformer.wte.weight: 0 5");
}

TEST(Units, HaveEveryParameterOnce) {
  for (const bool is_tied : {true, false}) {
    const Chain chain = small_chain(is_tied);
    std::multiset<std::string> expected;
    for (const ParameterSpec& spec : chain.parameters()) {
      expected.insert(spec.name);
    }
    for (const std::vector<int32_t>& cuts : {kOneStage, kTwoStages}) {
      for (const int64_t least_bytes : {0, 10'000, 70'000, 150'000, 100'000'000}) {
        std::multiset<std::string> found;
        for (const UnitSpec& unit : make_units(chain, cuts, least_bytes)) {
          const std::vector<std::string> names = names_of(unit);
          found.insert(names.begin(), names.end());
        }
        EXPECT_EQ(found, expected);
      }
    }
  }
}

namespace {

// A piece may begin here: with one of the parameters, or some grains after its beginning.
bool may_begin(const UnitSpec& unit, const UnitLayout& layout, int64_t element) {
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const int64_t begin = layout.offsets[i];
    const int64_t end = i + 1 < layout.offsets.size() ? layout.offsets[i + 1] : layout.elements;
    if (begin <= element && element < end) {
      return (element - begin) % kPieceGrain == 0;
    }
  }
  return element == layout.elements;
}

void check_pieces(const UnitSpec& unit, const UnitLayout& layout, int32_t replicas) {
  int64_t elements = 0;
  for (const UnitRange& range : layout.ranges) {
    EXPECT_EQ(range.first, elements);
    elements += range.count;
    ASSERT_EQ(range.cuts.size(), static_cast<size_t>(replicas) + 1);
    EXPECT_EQ(range.cuts.front(), 0);
    EXPECT_EQ(range.cuts.back(), range.count);
    int64_t pieces = 0;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      const int64_t first = range.piece_first(replica);
      EXPECT_EQ(first, pieces);  // right after the piece before
      EXPECT_TRUE(may_begin(unit, layout, range.first + first)) << first;
      EXPECT_LE(2 * std::abs(first - range.count * replica / replicas), kPieceGrain);
      EXPECT_GE(range.piece_count(replica), range.count > replicas * kPieceGrain ? 1 : 0);
      pieces += range.piece_count(replica);
    }
    EXPECT_EQ(pieces, range.count);
  }
  EXPECT_EQ(elements, layout.elements);
}

}  // namespace

TEST(UnitLayout, PiecesCoverEveryElementOnceAndBeginAtGrains) {
  for (const bool is_tied : {true, false}) {
    for (const int64_t least_bytes : {0, 70'000, 100'000'000}) {
      for (const UnitSpec& unit : make_units(small_chain(is_tied), kTwoStages, least_bytes)) {
        for (const bool is_float32 : {true, false}) {
          for (int32_t replicas = 1; replicas <= 7; ++replicas) {
            SCOPED_TRACE(cat(unit.name, ", float32 ", is_float32, ", replicas ", replicas));
            const UnitLayout layout = lay_out(unit, is_float32, replicas);
            EXPECT_EQ(layout.elements, Parameters::flat_elements(unit.parameters));
            ASSERT_NO_FATAL_FAILURE(check_pieces(unit, layout, replicas));
            int64_t pieces = 0;
            for (int32_t replica = 0; replica < replicas; ++replica) {
              pieces += layout.piece_count(replica);
            }
            EXPECT_EQ(pieces, layout.elements);
          }
        }
      }
    }
  }
}

TEST(UnitLayout, HasARangeForEachType) {
  const std::vector<UnitSpec> units = make_units(small_chain(), kOneStage, 0);
  for (const UnitSpec& unit : units) {
    const UnitLayout layout = lay_out(unit, /*compute_is_float32=*/true, 2);
    ASSERT_EQ(layout.ranges.size(), 1u) << unit.name;
    EXPECT_FALSE(layout.ranges[0].is_float32) << unit.name;
  }
  const auto types_of = [&](size_t unit) {
    std::string types;
    for (const UnitRange& range : lay_out(units[unit], /*compute_is_float32=*/false, 2).ranges) {
      types += range.is_float32 ? "f" : "b";
    }
    return types;
  };
  EXPECT_EQ(types_of(0), "b");
  EXPECT_EQ(types_of(1), "bf");
  EXPECT_EQ(types_of(2), "bf");
  EXPECT_EQ(types_of(5), "f");
  EXPECT_EQ(types_of(6), "b");
  // Weight and bias of a norm, 60 elements each, rounded up.
  EXPECT_EQ(lay_out(units[1], /*compute_is_float32=*/false, 2).ranges[1].count, 2 * 64);
}

TEST(UnitLayout, WantsWhatStaysFloat32Together) {
  UnitSpec unit = make_units(small_chain(), kOneStage, 0)[1];
  std::swap(unit.parameters.front(), unit.parameters.back());
  EXPECT_NO_THROW(lay_out(unit, /*compute_is_float32=*/true, 2));
  EXPECT_THROW(lay_out(unit, /*compute_is_float32=*/false, 2), InternalError);
}

namespace {

struct Case {
  Part part;
  at::ScalarType type;
  Replication replication;
};

// Every shard, type and replica of 2 and of 3, of one stage and of each of two.
std::vector<Case> all_cases(const Chain& chain) {
  std::vector<Case> cases;
  for (const Shard shard : kShards) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const int32_t replicas : {2, 3}) {
        for (int32_t replica = 0; replica < replicas; ++replica) {
          const auto add = [&](const Part& part, const std::vector<int32_t>& cuts, int64_t bytes) {
            cases.push_back(
                {part, type, {shard, replicas, replica, make_units(chain, cuts, bytes)}});
          };
          add(chain.whole(), kOneStage, 0);
          add(chain.whole(), kOneStage, 70'000);
          add({.layers = {0, 1, 2}, .has_loss = false}, kTwoStages, 0);
          add({.layers = {3, 4}, .has_loss = true}, kTwoStages, 0);
        }
      }
    }
  }
  return cases;
}

std::string describe(const Case& one) {
  return cat(shard_name(one.replication.shard),
             ", ",
             c10::toString(one.type),
             ", replica ",
             one.replication.replica,
             " of ",
             one.replication.replicas,
             ", ",
             one.part.layers.size(),
             " layers, ",
             one.replication.units.size(),
             " units");
}

}  // namespace

TEST(CountElements, IsWhatParametersAllocate) {
  for (const bool is_tied : {true, false}) {
    const Chain chain = small_chain(is_tied);
    for (const Case& one : all_cases(chain)) {
      SCOPED_TRACE(cat(is_tied ? "tied, " : "untied, ", describe(one)));
      const RankElements elements =
          count_elements(chain, one.part, one.type == at::kFloat, one.replication);
      const int64_t before = memory::usage().current_bytes;
      const Parameters parameters(
          chain, one.part, one.type, 1, device::open_cpu(), one.replication);
      EXPECT_EQ(memory::usage().current_bytes - before,
                4 * (elements.weights + elements.whole_float32 + elements.gradients +
                     elements.shared_gradients) +
                    2 * elements.compute);
      EXPECT_EQ(elements.state, parameters.state_elements());
    }
  }
}

TEST(ShardedParameters, StartWithTheValuesOfWholeOnes) {
  const Chain chain = small_chain();
  const Parameters in_float32(chain, at::kFloat, 7), in_bfloat16(chain, at::kBFloat16, 7);
  for (const Case& one : all_cases(chain)) {
    SCOPED_TRACE(describe(one));
    const Parameters& whole = one.type == at::kFloat ? in_float32 : in_bfloat16;
    const Parameters sharded(chain, one.part, one.type, 7, device::open_cpu(), one.replication);
    for (const Segment& segment : sharded.segments()) {
      const std::string& name = sharded.all()[segment.parameter].spec.name;
      const at::Tensor expected =
          whole.find(name)->weight.view({-1}).narrow(0, segment.first, segment.count);
      EXPECT_TRUE(at::equal(sharded.own_weights(segment), expected)) << name;
    }
    if (one.replication.shard == Shard::Parameters) {
      continue;
    }
    for (const int64_t layer : one.part.layers) {
      const Weights seen = sharded.weights_of(layer), expected = whole.weights_of(layer);
      ASSERT_EQ(seen.size(), expected.size());
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].scalar_type(), expected[i].scalar_type());
        EXPECT_TRUE(at::equal(seen[i], expected[i])) << "layer " << layer << ", " << i;
      }
    }
  }
}

TEST(ShardedParameters, HaveSegmentsThatCoverEveryElementOnce) {
  const Chain chain = small_chain();
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      std::map<std::string, at::Tensor> times;
      for (const ParameterSpec& spec : chain.parameters()) {
        times[spec.name] = at::zeros({spec.count()});
      }
      for (int32_t replica = 0; replica < 3; ++replica) {
        const Parameters parameters(chain,
                                    chain.whole(),
                                    type,
                                    7,
                                    device::open_cpu(),
                                    {shard, 3, replica, make_units(chain, kOneStage, 0)});
        for (const Segment& segment : parameters.segments()) {
          EXPECT_LE(segment.offset + segment.count, parameters.state_elements());
          times[parameters.all()[segment.parameter].spec.name]
              .narrow(0, segment.first, segment.count)
              .add_(1);
        }
      }
      for (const auto& [name, counts] : times) {
        EXPECT_TRUE(counts.eq(1).all().item<bool>()) << name;
      }
    }
  }
}

// What replicas gather: each has its own pieces in place, and where only those are sharded that the
// step moves, all.
TEST(ShardedParameters, GiveWholeUnitsOutOfTheReplicasPieces) {
  constexpr int32_t kReplicas = 3;
  const Chain chain = small_chain();
  const std::vector<UnitSpec> units = make_units(chain, kOneStage, 0);
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(cat(shard_name(shard), ", ", c10::toString(type)));
      std::vector<std::unique_ptr<Parameters>> replicas;
      for (int32_t replica = 0; replica < kReplicas; ++replica) {
        replicas.push_back(
            std::make_unique<Parameters>(chain,
                                         chain.whole(),
                                         type,
                                         7,
                                         device::open_cpu(),
                                         Replication{shard, kReplicas, replica, units}));
      }
      std::vector<Tensors> gathered;
      for (int64_t unit = 0; unit < replicas[0]->num_units(); ++unit) {
        const UnitLayout& layout = replicas[0]->unit_layout(unit);
        gathered.emplace_back();
        for (size_t i = 0; i < layout.ranges.size(); ++i) {
          const UnitRange& range = layout.ranges[i];
          Tensors pieces;
          for (int32_t replica = 0; replica < kReplicas; ++replica) {
            const at::Tensor of_replica =
                replicas[static_cast<size_t>(replica)]->unit_weights(unit).at(i);
            EXPECT_EQ(of_replica.numel(), range.count);
            EXPECT_EQ(of_replica.scalar_type(), range.is_float32 ? at::kFloat : type);
            pieces.push_back(
                of_replica.narrow(0, range.piece_first(replica), range.piece_count(replica)));
          }
          gathered.back().push_back(at::cat(pieces));
        }
      }
      const Parameters whole(chain, type, 7);
      for (int64_t layer = 0; layer <= chain.size(); ++layer) {
        const Tensors found = replicas[0]->weights_in_units(
            layer, [&](int64_t unit) { return &gathered[static_cast<size_t>(unit)]; });
        const Weights expected = whole.weights_of(layer);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(at::equal(found[i], expected[i])) << "layer " << layer << ", " << i;
        }
      }
    }
  }
}

}  // namespace penstock::model
