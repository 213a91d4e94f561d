// Checkpoints between ranks that have the model in different ways: stages of a pipeline, replicas,
// and what the replicas divide among themselves.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/philox.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/weights.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mesh.h"
#include "penstock/model/family.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/stages.h"

#include "support/error_text.h"
#include "support/small_disk.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

const model::StoredNames kNames = model::find_family("gpt2").stored_names();

namespace fs = std::filesystem;
using program::Shard;
using test::TempFolder;

struct Layout {
  int32_t stages = 1;
  int32_t replicas = 1;
  Shard shard = Shard::None;
  at::ScalarType compute = at::kFloat;

  comm::Mesh mesh() const { return {.data = replicas, .pipeline = stages}; }
  int32_t ranks() const { return mesh().ranks(); }
  std::string text() const {
    return cat("pipeline ",
               stages,
               ", data ",
               replicas,
               ", shard ",
               program::shard_name(shard),
               compute == at::kFloat ? "" : ", bfloat16");
  }
};

const std::vector<Layout> kLayouts{{1, 1, Shard::None},
                                   {2, 2, Shard::Parameters},
                                   {1, 3, Shard::Gradients},
                                   {4, 1, Shard::None},
                                   {2, 2, Shard::None},
                                   {1, 4, Shard::Optimizer},
                                   {2, 3, Shard::Parameters, at::kBFloat16},
                                   {1, 2, Shard::Optimizer, at::kBFloat16}};

// Wide enough that every replica has a shard of something, and none of something else.
config::Recipe test_recipe(const fs::path& out) {
  config::Recipe recipe;
  recipe.model = {
      .layers = 2, .width = 64, .heads = 4, .context = 16, .vocabulary = 257, .dropout = 0};
  recipe.run.out = out.string();
  return recipe;
}

model::Chain test_chain(const config::Recipe& recipe) {
  return model::make_gpt2({.layers = recipe.model.layers,
                           .width = recipe.model.width,
                           .heads = recipe.model.heads,
                           .context = recipe.model.context,
                           .vocabulary = recipe.model.vocabulary});
}

// The values of a stored tensor's elements.
class Values {
 public:
  explicit Values(const std::string& tensor) : key_(philox_key(/*seed=*/5, hash_name(tensor))) {}

  float operator[](int64_t element) const {
    const PhiloxBlock bits = philox(key_, {static_cast<uint32_t>(element), 0, 0, 0});
    return static_cast<float>(static_cast<int32_t>(bits[0])) / 65536.0F;
  }

 private:
  PhiloxKey key_;
};

// Of buffers.
enum class Sorts { Plain, OfReplicas, All };

class TestOptimizer : public optim::Optimizer {
 public:
  TestOptimizer(const model::Parameters& parameters, Sorts sorts) {
    int64_t all = 0;
    for (const model::Parameter& parameter : parameters.all()) {
      all = std::max(all, parameter.offset + parameter.spec.count());
    }
    state_.push_back({"first", at::zeros({parameters.state_elements()})});
    state_.push_back({"second", at::zeros({parameters.state_elements()})});
    if (sorts == Sorts::Plain) {
      return;
    }
    state_.push_back({.name = "own", .flat = at::zeros({all}), .is_per_replica = true});
    if (sorts == Sorts::OfReplicas) {
      return;
    }
    state_.push_back({.name = "whole", .flat = at::zeros({all}), .is_whole = true});
    const auto parameter_count = static_cast<int64_t>(parameters.all().size());
    state_.push_back(
        {.name = "scale", .flat = at::zeros({parameter_count}), .is_per_parameter = true});
    state_.push_back({.name = "cut", .stretches = cut(parameters)});
    state_.back().flat = at::zeros({cut_elements_});
  }

  void step(model::Parameters&, const optim::Rate&, double) override {}

 private:
  // Each parameter in as many stretches as there are replicas, the last replica first.
  std::vector<model::Segment> cut(const model::Parameters& parameters) {
    std::vector<model::Segment> stretches;
    const int64_t part = parameters.replicas() - 1 - parameters.replica();
    for (size_t i = 0; i < parameters.all().size(); ++i) {
      const int64_t count = parameters.all()[i].spec.count();
      const int64_t begin = count * part / parameters.replicas();
      const int64_t end = count * (part + 1) / parameters.replicas();
      stretches.push_back({i, begin, end - begin, cut_elements_});
      cut_elements_ += end - begin;
    }
    return stretches;
  }

  int64_t cut_elements_ = 0;
};

// What one rank of a layout has.
struct Rank {
  Rank(const Layout& its_layout, const config::Recipe& its_recipe, int32_t rank, Sorts sorts)
      : layout(its_layout), recipe(its_recipe), chain(test_chain(recipe)) {
    run::Stages stages;
    for (int32_t stage = 0; stage <= layout.stages; ++stage) {
      stages.cuts.push_back(static_cast<int32_t>(chain.size()) * stage / layout.stages);
      stages.rank_of.push_back(stage);
    }
    stages.rank_of.pop_back();
    parts = run::parts_of(stages, layout.stages);
    const comm::Coordinates at = layout.mesh().coordinates(rank);
    const model::Replication replication{.shard = layout.shard,
                                         .replicas = layout.replicas,
                                         .replica = at.data,
                                         .units = layout.replicas > 1
                                                      ? model::make_units(chain, stages.cuts, 0)
                                                      : std::vector<plan::UnitSize>{}};
    parameters = std::make_unique<model::Parameters>(chain,
                                                     parts[static_cast<size_t>(at.pipeline)],
                                                     layout.compute,
                                                     /*seed=*/static_cast<uint64_t>(rank),
                                                     device::open_cpu(),
                                                     replication);
    optimizer = std::make_unique<TestOptimizer>(*parameters, sorts);
  }

  // Visits all that the rank has: the stored tensor, an element of it, and where those from there
  // on are.
  template <typename Visit>
  void visit_weights(const Visit& visit) {
    for (const model::Segment& segment : parameters->segments()) {
      visit_flat(parameters->all()[segment.parameter].spec.name,
                 segment.first,
                 parameters->own_weights(segment),
                 visit);
    }
  }
  template <typename Visit>
  void visit_state(const Visit& visit) {
    for (const optim::StateBuffer& buffer : optimizer->state()) {
      for (size_t i = 0; i < parameters->all().size(); ++i) {
        const model::Parameter& parameter = parameters->all()[i];
        const std::string name = parameter.spec.name + "." + buffer.name;
        const auto at = static_cast<int64_t>(i);
        if (buffer.is_per_replica || buffer.is_whole) {
          visit_flat(
              name, 0, buffer.flat.narrow(0, parameter.offset, parameter.spec.count()), visit);
        } else if (buffer.is_per_parameter) {
          visit_flat(name, 0, buffer.flat.narrow(0, at, 1), visit);
        }
      }
      if (!buffer.is_per_replica && !buffer.is_whole && !buffer.is_per_parameter) {
        for (const model::Segment& segment :
             buffer.stretches ? *buffer.stretches : parameters->segments()) {
          visit_flat(parameters->all()[segment.parameter].spec.name + "." + buffer.name,
                     segment.first,
                     buffer.flat.narrow(0, segment.offset, segment.count),
                     visit);
        }
      }
    }
  }

  void fill() {
    visit_weights([](const std::string& tensor, int64_t first, std::span<float> places) {
      const Values values(tensor);
      for (float& place : places) {
        place = values[first++];
      }
    });
    visit_state([&](const std::string& tensor, int64_t first, std::span<float> places) {
      const Values values(tensor);
      const int32_t more = tensor.ends_with(".own") ? parameters->replica() : 0;
      for (float& place : places) {
        place = values[first++] + static_cast<float>(more);
      }
    });
  }

  // Elements that are not what was filled in; of state, by so many replicas.
  int64_t wrong_weights() {
    int64_t wrong = 0;
    visit_weights([&](const std::string& tensor, int64_t first, std::span<float> places) {
      const Values values(tensor);
      for (const float place : places) {
        wrong += place != values[first++];
      }
    });
    return wrong;
  }
  int64_t wrong_state(int32_t stored_replicas) {
    int64_t wrong = 0;
    visit_state([&](const std::string& tensor, int64_t first, std::span<float> places) {
      const Values values(tensor);
      const bool is_mean = tensor.ends_with(".own") && stored_replicas != layout.replicas;
      const int32_t more = tensor.ends_with(".own") ? parameters->replica() : 0;
      const float mean = static_cast<float>(stored_replicas - 1) / 2;
      for (const float place : places) {
        const float value = values[first++];
        // Values are up to 32768.
        wrong += is_mean ? std::abs(place - (value + mean)) > 0.02F
                         : place != value + static_cast<float>(more);
      }
    });
    return wrong;
  }

  fs::path save(const TrainState& state, comm::Group& group) const {
    return checkpoint::save(
        recipe, chain, parts, layout.mesh(), *parameters, *optimizer, state, group);
  }
  TrainState load(const fs::path& folder, comm::Group& group) {
    return checkpoint::load(folder, recipe, *parameters, *optimizer, group);
  }

  Layout layout;
  config::Recipe recipe;
  model::Chain chain;
  std::vector<model::Part> parts;
  std::unique_ptr<model::Parameters> parameters;
  std::unique_ptr<TestOptimizer> optimizer;

 private:
  template <typename Visit>
  static void visit_flat(const std::string& tensor,
                         int64_t first,
                         const at::Tensor& flat,
                         const Visit& visit) {
    visit(
        tensor, first, std::span<float>(flat.data_ptr<float>(), static_cast<size_t>(flat.numel())));
  }
};

fs::path save_from(const Layout& layout, const config::Recipe& recipe, int64_t step, Sorts sorts) {
  fs::path folder;
  comm::run_local(layout.ranks(), [&](comm::Group& group) {
    Rank rank(layout, recipe, group.rank(), sorts);
    rank.fill();
    rank.optimizer->set_steps_done(step + 1);
    const fs::path answer = rank.save({.step = step, .samples_seen = 8 * step}, group);
    if (group.rank() == 0) {
      folder = answer;
    } else {
      EXPECT_EQ(answer, "");
    }
  });
  return folder;
}

// What each rank throws, with its sort.
std::vector<std::string> failures(const Layout& layout,
                                  const config::Recipe& recipe,
                                  Sorts sorts,
                                  const std::function<void(Rank&, comm::Group&)>& work) {
  std::vector<std::string> all(static_cast<size_t>(layout.ranks()));
  comm::run_local(layout.ranks(), [&](comm::Group& group) {
    std::string& own = all[static_cast<size_t>(group.rank())];
    Rank rank(layout, recipe, group.rank(), sorts);
    try {
      work(rank, group);
    } catch (const FileError& error) {
      own = cat("file: ", error.what());
    } catch (const CheckpointError& error) {
      own = cat("checkpoint: ", error.what());
    }
  });
  return all;
}

void expect_all_say(const std::vector<std::string>& said, const std::string& part) {
  EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
  EXPECT_EQ(said, std::vector<std::string>(said.size(), said[0]));
}

TEST(CheckpointLayouts, TheFilesAreTheSameWhoeverWritesThem) {
  const TempFolder folder;
  std::string weights, state;
  for (const Layout& layout : kLayouts) {
    const fs::path saved = save_from(layout, test_recipe(folder.path()), /*step=*/3, Sorts::Plain);
    EXPECT_EQ(saved.filename(), "step-00000003");
    verified_recipe(saved);  // the checksums are those of the files
    if (weights.empty()) {
      weights = read_text_file(saved / "model.safetensors");
      state = read_text_file(saved / "optimizer.safetensors");
    }
    EXPECT_TRUE(read_text_file(saved / "model.safetensors") == weights) << layout.text();
    EXPECT_TRUE(read_text_file(saved / "optimizer.safetensors") == state) << layout.text();
  }
}

TEST(CheckpointLayouts, OneRankAloneWritesTheSame) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path of_two = save_from({2, 1, Shard::None}, recipe, 1, Sorts::Plain);
  Rank alone({}, recipe, 0, Sorts::Plain);
  alone.fill();
  alone.optimizer->set_steps_done(3);
  const fs::path of_one =
      checkpoint::save(recipe, alone.chain, *alone.parameters, *alone.optimizer, {.step = 2});
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "recipe.toml"}) {
    EXPECT_TRUE(read_text_file(of_one / name) == read_text_file(of_two / name)) << name;
  }
}

TEST(CheckpointLayouts, EachLoadsWhatAnyOtherSaved) {
  const TempFolder folder;
  config::Recipe recipe = test_recipe(folder.path());
  recipe.run.keep = 0;
  for (size_t from = 0; from < kLayouts.size(); ++from) {
    const fs::path saved =
        save_from(kLayouts[from], recipe, static_cast<int64_t>(from), Sorts::All);
    for (const Layout& to : kLayouts) {
      comm::run_local(to.ranks(), [&](comm::Group& group) {
        Rank rank(to, recipe, group.rank(), Sorts::All);
        const TrainState state = rank.load(saved, group);
        const std::string which =
            cat(kLayouts[from].text(), " to ", to.text(), ", rank ", group.rank());
        EXPECT_EQ(state.step, static_cast<int64_t>(from)) << which;
        EXPECT_EQ(state.samples_seen, 8 * state.step) << which;
        EXPECT_EQ(rank.optimizer->steps_done(), state.step + 1) << which;
        EXPECT_EQ(rank.wrong_weights(), 0) << which;
        EXPECT_EQ(rank.wrong_state(kLayouts[from].replicas), 0) << which;
      });
    }
  }
}

TEST(CheckpointLayouts, WhatLayersSeeIsUpToDateAfterALoad) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path saved = save_from({}, recipe, 1, Sorts::Plain);
  comm::run_local(2, [&](comm::Group& group) {
    Rank rank({1, 2, Shard::None, at::kBFloat16}, recipe, group.rank(), Sorts::Plain);
    rank.load(saved, group);
    EXPECT_TRUE(at::equal(rank.parameters->flat_compute(),
                          rank.parameters->flat_weights().to(at::kBFloat16)));
  });
}

TEST(CheckpointLayouts, WeightsAloneComeToAnyLayout) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path saved = save_from({1, 2, Shard::None}, recipe, 1, Sorts::Plain);
  for (const Layout& layout : kLayouts) {
    comm::run_local(layout.ranks(), [&](comm::Group& group) {
      Rank rank(layout, recipe, group.rank(), Sorts::Plain);
      std::vector<std::string> others;
      for (const model::ParameterSpec& spec : rank.chain.parameters()) {
        if (rank.parameters->find(spec.name) == nullptr) {
          others.push_back(spec.name);
        }
      }
      import_weights(saved / "model.safetensors", *rank.parameters, kNames, others, group);
      EXPECT_EQ(rank.wrong_weights(), 0) << layout.text();
    });
  }
}

TEST(CheckpointLayouts, EveryRankSaysThatAByteIsDamaged) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path saved = save_from({1, 2, Shard::Optimizer}, recipe, 1, Sorts::Plain);
  const fs::path file = saved / "optimizer.safetensors";
  std::string bytes = read_text_file(file);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  write_text_file(file, bytes);
  const Layout layout{2, 2, Shard::Parameters};
  const std::string expected =
      cat("checkpoint: checkpoint ", saved.string(), " is damaged: optimizer.safetensors has ");
  expect_all_say(failures(layout,
                          recipe,
                          Sorts::Plain,
                          [&](Rank& rank, comm::Group& group) { rank.load(saved, group); }),
                 expected);
  expect_all_say(failures(layout,
                          recipe,
                          Sorts::Plain,
                          [&](Rank& rank, comm::Group& group) {
                            import_weights(
                                saved / "model.safetensors", *rank.parameters, kNames, {}, group);
                          }),
                 expected);
}

// State of the recipe's optimizer that the checkpoint does not have.
TEST(CheckpointLayouts, EveryRankSaysThatATensorIsMissing) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path saved = save_from({1, 2, Shard::Gradients}, recipe, 1, Sorts::Plain);
  const auto load = [&](Rank& rank, comm::Group& group) { rank.load(saved, group); };
  const auto missing = [&](const char* buffer) {
    return cat("checkpoint: ",
               (saved / "optimizer.safetensors").string(),
               " has no tensor transformer.wte.weight.",
               buffer,
               "; it is incomplete or of another model");
  };
  EXPECT_EQ(failures({1, 3, Shard::Parameters}, recipe, Sorts::All, load),
            std::vector<std::string>(3, missing("whole")));
  EXPECT_EQ(failures({1, 3, Shard::Parameters}, recipe, Sorts::OfReplicas, load),
            std::vector<std::string>(3, missing("own.0")));
}

TEST(CheckpointLayouts, ReplicasAreCountedWhereStateIsTheirs) {
  const TempFolder folder;
  const config::Recipe recipe = test_recipe(folder.path());
  const fs::path with = save_from({1, 3, Shard::Optimizer}, recipe, 1, Sorts::OfReplicas);
  const fs::path without = save_from({1, 3, Shard::Optimizer}, recipe, 2, Sorts::Plain);
  EXPECT_NE(read_text_file(with / "state.json").find("\"replicas\": 3"), std::string::npos);
  EXPECT_EQ(read_text_file(without / "state.json").find("replicas"), std::string::npos);
}

TEST(CheckpointLayouts, AFullDiskEndsTheSaveOnEveryRankAndLeavesTheCheckpointBefore) {
  const TempFolder folder;
  config::Recipe recipe = test_recipe(folder.path());
  const int64_t checkpoint_bytes = 3 * 4 * test_chain(recipe).parameter_count();
  const test::SmallDisk disk(folder.path(), checkpoint_bytes + checkpoint_bytes / 2);
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  for (const Layout& layout : {Layout{1, 3, Shard::None}, Layout{2, 2, Shard::Parameters}}) {
    const fs::path saved = save_from(layout, recipe, 1, Sorts::Plain);
    const std::vector<std::string> said =
        failures(layout, recipe, Sorts::Plain, [&](Rank& rank, comm::Group& group) {
          rank.save({.step = 2}, group);
        });
    expect_all_say(said, ".safetensors: No space left on device");
    EXPECT_EQ(said[0].find("file: cannot write "), 0u) << said[0];
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      names.insert(entry.path().filename().string());
    }
    EXPECT_EQ(names, (std::set<std::string>{"latest", "step-00000001"}));
    verified_recipe(resolve_checkpoint(folder.path()));
    fs::remove_all(saved);
  }
}

}  // namespace
}  // namespace penstock::checkpoint
