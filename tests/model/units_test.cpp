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
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/optim/optimizer_size.h"

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

std::vector<std::string> names_of(const plan::UnitSize& unit) {
  std::vector<std::string> names;
  for (const plan::ParameterSize& parameter : unit.parameters) {
    names.push_back(parameter.name);
  }
  return names;
}

// "block 0 attention: 1; ...": a unit and the layers that use it.
std::string list_of(const std::vector<plan::UnitSize>& units) {
  std::vector<std::string> words;
  for (const plan::UnitSize& unit : units) {
    std::vector<std::string> layers;
    for (const int32_t layer : unit.unit.layers) {
      layers.push_back(cat(layer));
    }
    words.push_back(cat(unit.unit.name, ": ", join(layers, " ")));
  }
  return join(words, "; ");
}

int64_t float32_bytes(const plan::UnitSize& unit) {
  int64_t bytes = 0;
  for (const plan::ParameterSize& parameter : unit.parameters) {
    bytes += 4 * parameter.count;
  }
  return bytes;
}

}  // namespace

TEST(Units, AreLayersAndASharedTable) {
  const std::vector<plan::UnitSize> units = make_units(small_chain(), kOneStage, 0);
  EXPECT_EQ(list_of(units),
            "embedding: 0; block 0 attention: 1; block 0 mlp: 2; block 1 attention: 3; "
            "block 1 mlp: 4; head: 5; transformer.wte.weight: 0 5");
  EXPECT_EQ(names_of(units[0]), std::vector<std::string>{"transformer.wpe.weight"});
  EXPECT_EQ(names_of(units[5]),
            (std::vector<std::string>{"transformer.ln_f.weight", "transformer.ln_f.bias"}));
  EXPECT_EQ(names_of(units[6]), std::vector<std::string>{kTable});
  for (const plan::UnitSize& unit : units) {
    EXPECT_EQ(unit.unit.is_shared, unit.unit.name == kTable) << unit.unit.name;
  }
  // The embedding's backward needs tokens alone.
  EXPECT_EQ(units[0].unit.forward_only, std::vector<int32_t>{0});
  EXPECT_TRUE(units[1].unit.forward_only.empty());
  EXPECT_EQ(units[6].unit.forward_only, std::vector<int32_t>{0});
}

// Layer "a" has a weight that learns and a bias that does not, "b" is frozen, "c" learns.
TEST(Units, OfWhatIsFrozenComeLast) {
  const auto sizes = [](const std::string& name, bool weight_is_frozen, bool bias_is_frozen) {
    return plan::LayerSizes{
        .name = name,
        .parameters = {
            {.name = name + ".bias", .count = 3, .flat = 16, .is_frozen = bias_is_frozen},
            {.name = name + ".weight", .count = 16, .flat = 16, .is_frozen = weight_is_frozen},
            {.name = "table", .count = 9, .flat = 16, .is_frozen = true}}};
  };
  plan::ModelSizes model{
      .layers = {sizes("a", false, true), sizes("b", true, true), sizes("c", false, false)}};
  EXPECT_EQ(model.num_parameters(), 3);
  const std::string frozen_table = "table (frozen): 0 1 2";
  EXPECT_EQ(list_of(plan::make_units(model.layers, {0, 2}, 0)),
            "a: 0; c: 2; a (frozen): 0; b (frozen): 1; " + frozen_table);
  // Each kind has buckets of its own.
  const std::vector<plan::UnitSize> units = plan::make_units(model.layers, {0, 2}, 1 << 20);
  EXPECT_EQ(list_of(units), "a to c: 0 2; a to b (frozen): 0 1; " + frozen_table);
  for (const plan::UnitSize& unit : units) {
    EXPECT_EQ(unit.unit.is_frozen, &unit != &units[0]);
  }
  const plan::Inventory inventory = plan::take_inventory(units, {.layers = {0, 1, 2}});
  const plan::UnitStock total = inventory.total();
  EXPECT_EQ(total.weights, (3 + 3 + 1) * 16);
  EXPECT_EQ(total.gradients, 3 * 16);
  EXPECT_EQ(total.state, 3 * 16);
  EXPECT_TRUE(total.shares.empty());
  EXPECT_EQ(inventory.state_elements({"", plan::StateSize::Layout::PerParameter}), 3);
  EXPECT_EQ(inventory.state_elements({"", plan::StateSize::Layout::Whole}), 3 * 16);
  EXPECT_EQ(inventory.state_elements({"", plan::StateSize::Layout::Largest}), 16);
}

TEST(Units, HaveWhatStaysFloat32Last) {
  const std::vector<plan::UnitSize> units = make_units(small_chain(), kOneStage, 0);
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
  const std::vector<plan::UnitSize> units = make_units(small_chain(false), kOneStage, 0);
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
  const std::vector<plan::UnitSize> layers = make_units(chain, kOneStage, 0);
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
        for (const plan::UnitSize& unit : make_units(chain, cuts, least_bytes)) {
          const std::vector<std::string> names = names_of(unit);
          found.insert(names.begin(), names.end());
        }
        EXPECT_EQ(found, expected);
      }
    }
  }
}

namespace {

// In flat buffers, by the chain's own specs.
int64_t flat_elements(const Chain& chain, const plan::UnitSize& unit) {
  const std::vector<std::string> names = names_of(unit);
  std::vector<ParameterSpec> specs;
  for (const ParameterSpec& spec : chain.parameters()) {
    if (std::find(names.begin(), names.end(), spec.name) != names.end()) {
      specs.push_back(spec);
    }
  }
  EXPECT_EQ(specs.size(), names.size());
  return Parameters::flat_elements(specs);
}

// A slice may begin here: with one of the parameters, or some grains after its beginning.
bool may_begin(const plan::UnitSize& unit, const plan::UnitLayout& layout, int64_t element) {
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const int64_t begin = layout.offsets[i];
    const int64_t end = i + 1 < layout.offsets.size() ? layout.offsets[i + 1] : layout.elements;
    if (begin <= element && element < end) {
      return (element - begin) % plan::kSliceGrain == 0;
    }
  }
  return element == layout.elements;
}

void check_slices(const plan::UnitSize& unit, const plan::UnitLayout& layout, int32_t replicas) {
  int64_t elements = 0;
  for (const plan::UnitRange& range : layout.ranges) {
    EXPECT_EQ(range.first, elements);
    elements += range.count;
    ASSERT_EQ(range.cuts.size(), static_cast<size_t>(replicas) + 1);
    EXPECT_EQ(range.cuts.front(), 0);
    EXPECT_EQ(range.cuts.back(), range.count);
    int64_t slices = 0;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      const int64_t first = range.slice_first(replica);
      EXPECT_EQ(first, slices);  // right after the slice before
      EXPECT_TRUE(may_begin(unit, layout, range.first + first)) << first;
      EXPECT_LE(2 * std::abs(first - range.count * replica / replicas), plan::kSliceGrain);
      EXPECT_GE(range.slice_count(replica), range.count > replicas * plan::kSliceGrain ? 1 : 0);
      slices += range.slice_count(replica);
    }
    EXPECT_EQ(slices, range.count);
  }
  EXPECT_EQ(elements, layout.elements);
}

}  // namespace

TEST(UnitLayout, SlicesCoverEveryElementOnceAndBeginAtGrains) {
  for (const bool is_tied : {true, false}) {
    const Chain chain = small_chain(is_tied);
    for (const int64_t least_bytes : {0, 70'000, 100'000'000}) {
      for (const plan::UnitSize& unit : make_units(chain, kTwoStages, least_bytes)) {
        for (const bool is_float32 : {true, false}) {
          for (int32_t replicas = 1; replicas <= 7; ++replicas) {
            SCOPED_TRACE(cat(unit.unit.name, ", float32 ", is_float32, ", replicas ", replicas));
            const plan::UnitLayout layout = plan::lay_out(unit, is_float32, replicas);
            EXPECT_EQ(layout.elements, flat_elements(chain, unit));
            EXPECT_EQ(layout.elements, unit.unit.elements);
            ASSERT_NO_FATAL_FAILURE(check_slices(unit, layout, replicas));
            int64_t slices = 0, in_list = 0;
            for (int32_t replica = 0; replica < replicas; ++replica) {
              slices += layout.slice_count(replica);
              for (const program::Slice& slice : layout.slices(replica)) {
                in_list += slice.count();
              }
            }
            EXPECT_EQ(slices, layout.elements);
            EXPECT_EQ(in_list, layout.elements);
          }
        }
      }
    }
  }
}

TEST(UnitLayout, HasARangeForEachType) {
  const std::vector<plan::UnitSize> units = make_units(small_chain(), kOneStage, 0);
  for (const plan::UnitSize& unit : units) {
    const plan::UnitLayout layout = plan::lay_out(unit, /*compute_is_float32=*/true, 2);
    ASSERT_EQ(layout.ranges.size(), 1u) << unit.unit.name;
    EXPECT_FALSE(layout.ranges[0].is_float32) << unit.unit.name;
  }
  const auto types_of = [&](size_t unit) {
    std::string types;
    for (const plan::UnitRange& range :
         plan::lay_out(units[unit], /*compute_is_float32=*/false, 2).ranges) {
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
  EXPECT_EQ(plan::lay_out(units[1], /*compute_is_float32=*/false, 2).ranges[1].count, 2 * 64);
}

TEST(UnitLayout, WantsWhatStaysFloat32Together) {
  plan::UnitSize unit = make_units(small_chain(), kOneStage, 0)[1];
  std::swap(unit.parameters.front(), unit.parameters.back());
  EXPECT_NO_THROW(plan::lay_out(unit, /*compute_is_float32=*/true, 2));
  EXPECT_THROW(plan::lay_out(unit, /*compute_is_float32=*/false, 2), InternalError);
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

// Likewise of one replica, which shards nothing.
std::vector<Case> cases_alone(const Chain& chain) {
  std::vector<Case> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    cases.push_back({chain.whole(), type, {}});
    cases.push_back({{.layers = {0, 1, 2}, .has_loss = false}, type, {}});
    cases.push_back({{.layers = {3, 4}, .has_loss = true}, type, {}});
    cases.push_back({{.layers = {0, 3}, .has_loss = true}, type, {}});  // both ends, as in a V
  }
  return cases;
}

struct OptimizerCase {
  std::string name;
  config::TrainOptions train;
};

// Those that may run where replicas divide things so.
std::vector<OptimizerCase> all_optimizers(Shard shard) {
  std::vector<OptimizerCase> cases{{"adamw", {.optimizer = "adamw"}},
                                   {"lamb", {.optimizer = "lamb"}},
                                   {"sgd", {.optimizer = "sgd"}},
                                   {"sgd without momentum", {.optimizer = "sgd", .momentum = 0}}};
  if (shard == Shard::None || shard == Shard::Optimizer) {
    for (const char* kind : {"onebit-adam", "zeroone-adam", "onebit-lamb"}) {
      cases.push_back({kind, {.optimizer = kind, .local_step_clipper = 1}});
    }
  }
  if (shard == Shard::None) {
    cases.push_back(
        {"zeroone-adam with local steps", {.optimizer = "zeroone-adam", .local_step_clipper = 4}});
  }
  return cases;
}

int64_t held_now() {
  return memory::usage().current_bytes;
}

// What the optimizer is counted with beside the parameters.
int64_t optimizer_bytes(const plan::OptimizerSize& size, const plan::Inventory& inventory) {
  int64_t bytes = 0;
  for (const plan::StateSize& state : size.state) {
    bytes += 4 * inventory.state_elements(state);
  }
  for (const auto& [name, working] : size.workspaces) {
    bytes += working;
  }
  return bytes;
}

void expect_optimizers_allocate(const Parameters& parameters,
                                const plan::Inventory& inventory,
                                int64_t parameter_bytes) {
  for (const OptimizerCase& one : all_optimizers(inventory.place.shard)) {
    SCOPED_TRACE(one.name);
    const plan::OptimizerSize size = optim::optimizer_size(one.train, inventory);
    const int64_t expected = optimizer_bytes(size, inventory);
    const int64_t before = held_now();
    const std::unique_ptr<optim::Optimizer> optimizer =
        optim::make_optimizer(one.train, parameters);
    EXPECT_EQ(held_now() - before, expected);
    ASSERT_EQ(optimizer->state().size(), size.state.size());
    for (size_t i = 0; i < size.state.size(); ++i) {
      EXPECT_EQ(optimizer->state()[i].name, size.state[i].name);
      EXPECT_EQ(optimizer->state()[i].flat.numel(), inventory.state_elements(size.state[i]));
    }
    // And as values of a program.
    const auto compute_bytes = static_cast<int64_t>(c10::elementSize(parameters.compute_type()));
    EXPECT_EQ(plan::holdings_of(inventory, size, compute_bytes).bytes(),
              parameter_bytes + expected);
  }
}

}  // namespace

TEST(Inventory, IsWhatParametersAndOptimizersAllocate) {
  for (const bool is_tied : {true, false}) {
    const Chain chain = small_chain(is_tied);
    std::vector<Case> cases = all_cases(chain);
    const std::vector<Case> alone = cases_alone(chain);
    cases.insert(cases.end(), alone.begin(), alone.end());
    for (const Case& one : cases) {
      SCOPED_TRACE(cat(is_tied ? "tied, " : "untied, ", describe(one)));
      const plan::Inventory inventory = take_inventory(
          chain, one.part, one.type == at::kFloat, /*keeps_shares=*/true, one.replication);
      const plan::UnitStock total = inventory.total();
      int64_t shares = 0;
      for (const auto& [layer, elements] : total.shares) {
        shares += elements;
      }
      const int64_t before = held_now();
      const Parameters parameters(
          chain, one.part, one.type, 1, device::open_cpu(), one.replication);
      const int64_t allocated = held_now() - before;
      EXPECT_EQ(
          allocated,
          4 * (total.weights + total.whole_float32 + total.gradients + shares) + 2 * total.compute);
      EXPECT_EQ(total.state, parameters.state_elements());
      const bool has_both_ends =
          one.part.has_loss && !one.part.layers.empty() && one.part.layers.front() == 0;
      EXPECT_EQ(total.shares.size(), is_tied && has_both_ends ? 1U : 0U);
      ASSERT_NO_FATAL_FAILURE(expect_optimizers_allocate(parameters, inventory, allocated));
    }
  }
}

// A GPU adds to one gradient.
TEST(Inventory, HasNoSharesWhereTheyAreNotKept) {
  const Chain chain = small_chain();
  const plan::UnitStock with =
      take_inventory(chain, chain.whole(), true, /*keeps_shares=*/true, {}).total();
  const plan::UnitStock without =
      take_inventory(chain, chain.whole(), true, /*keeps_shares=*/false, {}).total();
  EXPECT_EQ(with.shares, (std::vector<std::pair<int32_t, int64_t>>{{5, 131 * 60}}));
  EXPECT_TRUE(without.shares.empty());
  EXPECT_EQ(without.gradients, with.gradients);
}

// What a tied table's stages send each other, of all replicas together: each element once.
TEST(Inventory, KnowsWhatStagesThatShareAUnitExchange) {
  const Chain chain = small_chain();
  const Part part{.layers = {3, 4}, .has_loss = true};
  for (const Shard shard : kShards) {
    for (const bool is_float32 : {true, false}) {
      SCOPED_TRACE(cat(shard_name(shard), ", float32 ", is_float32));
      constexpr int32_t kReplicas = 3;
      int64_t sum = 0;
      for (int32_t replica = 0; replica < kReplicas; ++replica) {
        const plan::Inventory inventory =
            take_inventory(chain,
                           part,
                           is_float32,
                           /*keeps_shares=*/true,
                           {shard, kReplicas, replica, make_units(chain, kTwoStages, 0)});
        for (size_t unit = 0; unit < inventory.units.size(); ++unit) {
          const int64_t count = inventory.units[unit].shared_count;
          EXPECT_TRUE(count == 0 || inventory.sizes[unit].unit.name == kTable);
          sum += count;
        }
      }
      EXPECT_EQ(sum, (shard == Shard::None ? kReplicas : 1) * 131 * 60);
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

// What replicas gather: each has its own slices in place, and where only those are sharded that the
// step moves, all.
TEST(ShardedParameters, GiveWholeUnitsOutOfTheReplicasSlices) {
  constexpr int32_t kReplicas = 3;
  const Chain chain = small_chain();
  const std::vector<plan::UnitSize> units = make_units(chain, kOneStage, 0);
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
        const plan::UnitLayout& layout = replicas[0]->unit_layout(unit);
        gathered.emplace_back();
        for (size_t i = 0; i < layout.ranges.size(); ++i) {
          const plan::UnitRange& range = layout.ranges[i];
          Tensors slices;
          for (int32_t replica = 0; replica < kReplicas; ++replica) {
            const at::Tensor of_replica =
                replicas[static_cast<size_t>(replica)]->unit_weights(unit).at(i);
            EXPECT_EQ(of_replica.numel(), range.count);
            EXPECT_EQ(of_replica.scalar_type(), range.is_float32 ? at::kFloat : type);
            slices.push_back(
                of_replica.narrow(0, range.slice_first(replica), range.slice_count(replica)));
          }
          gathered.back().push_back(at::cat(slices));
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
