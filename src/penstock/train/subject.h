// What is trained, and on what: the model of a recipe's family on the recipe's files, or a chain and a
// dataset of the user's own. Everything else in train/ asks here and knows neither.
#pragma once

#include <functional>

#include "penstock/config/recipe.h"
#include "penstock/data/dataset.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"

namespace penstock::train {

struct Subject {
  // For one rank. Ranks that are threads have a chain each.
  std::function<model::Chain(const config::Recipe& recipe, const device::Device& device)>
      make_chain;
  std::function<data::Split(const config::Recipe& recipe)> open_data;
  // A user's own: [model] and data.path say nothing, and files are for Penstock alone.
  bool is_own = false;
};

const Subject& family_subject();

// `make` makes the chain from scratch. It is called with LibTorch's generator seeded by train.seed, so
// every rank gets the same first weights.
using ChainMaker = std::function<model::Chain()>;
Subject own_subject(ChainMaker make, data::Split split);
// [model] has nothing to say; ConfigError where it says something.
config::Recipe own_recipe(config::Recipe recipe);
// The last `held_out` share of the samples is for validation.
data::Split split_samples(data::DatasetPtr dataset, double held_out);

}  // namespace penstock::train
