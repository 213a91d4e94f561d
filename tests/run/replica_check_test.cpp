#include "penstock/run/replica_check.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>

#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mesh.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/parameters.h"
#include "penstock/model/units.h"

#include "run/small_models.h"

namespace penstock::run {
namespace {

using program::Shard;

std::vector<int32_t> ranks_from(int32_t first, size_t count) {
  std::vector<int32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// What find_drift() says of replicas, which must all say the same. `tensors` of each of `ranks`.
std::string drift_of(const std::vector<std::vector<ReplicatedTensor>>& tensors,
                     const std::vector<int32_t>& ranks) {
  std::vector<std::string> lines(tensors.size());
  comm::run_local(static_cast<int32_t>(tensors.size()), [&](comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    lines[rank] = find_drift(tensors[rank], group, ranks);
  });
  for (const std::string& line : lines) {
    EXPECT_EQ(line, lines[0]);
  }
  return lines[0];
}

// Of replicas that have two tensors, "first" of these values and "second" of no bytes.
std::string drift_of_values(const std::vector<int64_t>& values, const std::vector<int32_t>& ranks) {
  std::vector<std::vector<ReplicatedTensor>> tensors;
  for (const int64_t& value : values) {
    tensors.push_back({{"first", &value, sizeof(value)}, {"second", nullptr, 0}});
  }
  return drift_of(tensors, ranks);
}
std::string drift_of_values(const std::vector<int64_t>& values, int32_t first_rank) {
  return drift_of_values(values, ranks_from(first_rank, values.size()));
}

TEST(FindDrift, OfEqualReplicasIsNothing) {
  EXPECT_EQ(drift_of_values({5, 5}, 0), "");
  EXPECT_EQ(drift_of_values({5, 5, 5}, 3), "");
  EXPECT_EQ(drift_of_values({5, 5, 5, 5}, 0), "");
}

TEST(FindDrift, BelievesTheMajority) {
  EXPECT_EQ(drift_of_values({5, 5, 4}, 0), "first of rank 2 differs from that of ranks 0, 1");
  EXPECT_EQ(drift_of_values({4, 5, 5}, 3), "first of rank 3 differs from that of ranks 4, 5");
  EXPECT_EQ(drift_of_values({5, 5, 4, 5}, 4), "first of rank 6 differs from that of ranks 4, 5, 7");
  EXPECT_EQ(drift_of_values({1, 5, 2, 5}, 0),
            "first of ranks 0, 2 differs from that of ranks 1, 3");
}

TEST(FindDrift, BelievesTheFirstWhereThereIsNoMajority) {
  EXPECT_EQ(drift_of_values({4, 5}, 0), "first of rank 1 differs from that of rank 0");
  EXPECT_EQ(drift_of_values({5, 4}, 6), "first of rank 7 differs from that of rank 6");
  EXPECT_EQ(drift_of_values({5, 4, 4, 5}, 0),
            "first of ranks 1, 2 differs from that of ranks 0, 3");
  EXPECT_EQ(drift_of_values({4, 5, 5, 4}, 0),
            "first of ranks 1, 2 differs from that of ranks 0, 3");
  EXPECT_EQ(drift_of_values({3, 1, 2}, 0), "first of ranks 1, 2 differs from that of rank 0");
}

// Replicas are neighbours only where no axis lies inside theirs.
TEST(FindDrift, NamesRanksAsTheJobDoes) {
  const comm::Mesh mesh{.data = 3, .pipeline = 2, .tensor = 2};
  EXPECT_EQ(drift_of_values({5, 4, 5}, comm::members(mesh, comm::along(comm::Axis::Data), 7)),
            "first of rank 9 differs from that of ranks 7, 11");
}

// Replicas, of a small GPT-2 where nothing else is said, all alike at first.
class Replicas {
 public:
  Replicas(int32_t count,
           Shard shard,
           at::ScalarType type,
           model::Chain chain = test::small_gpt2(0, 1))
      : chain_(std::move(chain)) {
    const std::vector<int32_t> one_stage = {0, static_cast<int32_t>(chain_.size())};
    const std::vector<plan::UnitSize> units = model::make_units(chain_, one_stage, 0);
    for (int32_t replica = 0; replica < count; ++replica) {
      replicas_.push_back(
          std::make_unique<model::Parameters>(chain_,
                                              chain_.whole(),
                                              type,
                                              7,
                                              device::open_cpu(),
                                              model::Replication{shard, count, replica, units}));
    }
  }

  model::Parameters& of(int32_t replica) { return *replicas_[static_cast<size_t>(replica)]; }

  std::string drift(int32_t first_rank) const {
    std::vector<std::vector<ReplicatedTensor>> tensors;
    for (const auto& parameters : replicas_) {
      tensors.push_back(replicated_tensors(*parameters));
    }
    return drift_of(tensors, ranks_from(first_rank, tensors.size()));
  }

 private:
  model::Chain chain_;
  std::vector<std::unique_ptr<model::Parameters>> replicas_;
};

const std::string kMatrix = "transformer.h.0.mlp.c_fc.weight";
const std::string kNorm = "transformer.ln_f.bias";

void flip_last_bit(const at::Tensor& tensor) {
  ASSERT_TRUE(tensor.defined());
  static_cast<char*>(tensor.data_ptr())[tensor.nbytes() - 1] ^= 1;
}

TEST(ReplicaCheck, FindsOneBitOfWholeWeights) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    SCOPED_TRACE(shard_name(shard));
    for (int32_t count = 2; count <= 4; ++count) {
      Replicas replicas(count, shard, at::kFloat);
      EXPECT_EQ(replicas.drift(4), "");
      flip_last_bit(replicas.of(1).find(kMatrix)->weight);
      EXPECT_EQ(replicas.drift(4),
                cat(kMatrix,
                    " of rank 5 differs from that of ",
                    count == 2   ? "rank 4"
                    : count == 3 ? "ranks 4, 6"
                                 : "ranks 4, 6, 7"));
      flip_last_bit(replicas.of(1).find(kMatrix)->weight);
      EXPECT_EQ(replicas.drift(4), "");
    }
  }
}

TEST(ReplicaCheck, ComparesEachTensorOnce) {
  const auto count_of = [](Shard shard, at::ScalarType type) {
    return replicated_tensors(Replicas(2, shard, type).of(0)).size();
  };
  Replicas replicas(2, Shard::None, at::kFloat);
  const size_t all = replicas.of(0).all().size();
  EXPECT_EQ(count_of(Shard::None, at::kFloat), all);
  EXPECT_EQ(count_of(Shard::None, at::kBFloat16), 2 * all);
  // Copies of all, and float32 weights of three norms.
  EXPECT_EQ(count_of(Shard::Optimizer, at::kBFloat16), all + 6);
}

TEST(ReplicaCheck, ComparesTheCopyThatLayersSee) {
  Replicas replicas(3, Shard::None, at::kBFloat16);
  flip_last_bit(replicas.of(2).find(kMatrix)->compute);
  EXPECT_EQ(replicas.drift(0),
            kMatrix + " in the compute precision of rank 2 differs from that of ranks 0, 1");
}

TEST(ReplicaCheck, ComparesWhatIsWholeBesideShardedWeights) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    SCOPED_TRACE(shard_name(shard));
    Replicas replicas(3, shard, at::kBFloat16);
    EXPECT_EQ(replicas.drift(0), "");
    EXPECT_FALSE(replicas.of(0).find(kMatrix)->weight.defined());
    // Its own shards are nobody else's.
    const model::Parameters& first = replicas.of(0);
    flip_last_bit(first.own_weights(first.segments().front()));
    EXPECT_EQ(replicas.drift(0), "");
    flip_last_bit(replicas.of(1).find(kNorm)->weight);
    EXPECT_EQ(replicas.drift(3), kNorm + " of rank 4 differs from that of ranks 3, 5");
    flip_last_bit(replicas.of(0).find(kMatrix)->compute);
    EXPECT_EQ(replicas.drift(3),
              kMatrix + " in the compute precision of rank 3 differs from that of ranks 4, 5");
  }
}

TEST(ReplicaCheck, HasNothingToCompareWhereParametersAreSharded) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Replicas replicas(2, Shard::Parameters, type);
    EXPECT_TRUE(replicated_tensors(replicas.of(0)).empty());
    EXPECT_EQ(replicas.drift(0), "");
  }
}

TEST(ReplicaCheck, FindsOneBitOfALayersState) {
  for (const Shard shard : {Shard::None, Shard::Parameters}) {
    SCOPED_TRACE(shard_name(shard));
    model::Chain chain;
    chain.add(model::module_layer("norm", torch::nn::BatchNorm1d(3)));
    chain.end_with(model::function_loss(
        "loss", [](const at::Tensor& x, const at::Tensor&) { return x.sum(); }));
    Replicas replicas(3, shard, at::kFloat, std::move(chain));
    EXPECT_EQ(replicas.drift(0), "");
    flip_last_bit(replicas.of(2).states()[0].current[1]);
    EXPECT_EQ(replicas.drift(0), "norm.running_var of rank 2 differs from that of ranks 0, 1");
  }
}

}  // namespace
}  // namespace penstock::run
