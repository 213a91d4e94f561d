#include "penstock/train/subject.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"
#include "penstock/data/batch.h"
#include "penstock/data/token_dataset.h"
#include "penstock/model/family.h"
#include "penstock/model/module_random.h"
#include "penstock/optim/optimizer.h"
#include "penstock/train/batch_tensors.h"

namespace penstock::train {

namespace {

data::Split open_files(const config::Recipe& recipe) {
  if (recipe.data.path.empty()) {
    throw ConfigError("data.path is not set; name the files or folders to train on");
  }
  auto store = std::make_shared<data::TokenStore>(
      data::TokenStore::open({recipe.data.path, recipe.data.tokenizer, recipe.model.vocabulary}));
  return data::split_tokens(std::move(store), recipe.model.context, recipe.data.split);
}

// Samples [first, first + count) of another dataset.
class Samples final : public data::Dataset {
 public:
  Samples(data::DatasetPtr whole, int64_t first, int64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}

  int64_t samples() const override { return count_; }
  const std::vector<data::Field>& fields() const override { return whole_->fields(); }
  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override {
    return whole_->read(first_ + sample, field, into);
  }
  // Another of these has the other samples: one is enough to look through the whole.
  int64_t check(int64_t part, int64_t parts) const override {
    return first_ == 0 ? whole_->check(part, parts) : 0;
  }
  std::string fingerprint() const override {
    return cat(whole_->fingerprint(), ", samples ", first_, " to ", first_ + count_ - 1);
  }

 private:
  data::DatasetPtr whole_;
  int64_t first_, count_;
};

// The first samples, again and again where there are fewer.
model::Fields first_samples(const data::Dataset& dataset, int64_t count) {
  data::Batch all;
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(count - done, dataset.samples());
    data::Batch next = data::read_in_order(dataset, 0, part);
    next.first_sample = done;  // of those that are put together
    data::append(all, std::move(next));
    done += part;
  }
  model::Fields fields = as_tensors(all);
  for (auto& [name, tensor] : fields) {
    tensor = tensor.clone();  // the batch goes
  }
  return fields;
}

// Modules draw their first weights from LibTorch's one generator.
model::Chain make_seeded(const ChainMaker& make, uint64_t seed) {
  const model::RandomScope random(seed);
  return make();
}

}  // namespace

const Subject& family_subject() {
  static const Subject subject{.make_chain =
                                   [](const config::Recipe& recipe, const device::Device& device) {
                                     const model::RandomScope random(  // modules draw their weights
                                         static_cast<uint64_t>(recipe.train.seed));
                                     return model::make_chain(recipe.model, device);
                                   },
                               .open_data = open_files};
  return subject;
}

Subject own_subject(ChainMaker make, data::Split split) {
  if (!split.train || split.train->samples() < 1) {
    throw ConfigError("the dataset has no sample to train on");
  }
  const data::DatasetPtr train = split.train;
  return {
      .make_chain =
          [make = std::move(make), train](const config::Recipe& recipe,
                                          const device::Device& device) {
            if (device.is_gpu()) {
              throw ConfigError(
                  "run.device = \"cuda\": a chain of one's own runs on the CPU so far");
            }
            model::Chain chain = make_seeded(make, static_cast<uint64_t>(recipe.train.seed));
            chain.set_own();
            chain.edges();  // complete, or it says what is missing
            for (const model::ParameterSpec& spec : chain.parameters()) {
              optim::require_lr_scales(recipe.train, spec, device.is_gpu());
            }
            chain.set_example([train](int64_t samples) { return first_samples(*train, samples); });
            return chain;
          },
      .open_data = [split = std::move(split)](const config::Recipe&) { return split; },
      .is_own = true};
}

config::Recipe own_recipe(config::Recipe recipe) {
  const config::Recipe usual;
  for (const config::Option& option : config::option_table()) {
    const bool is_of_model = option.key.starts_with("model.") && option.key != "model.family";
    if (is_of_model && option.get(recipe) != option.get(usual)) {
      throw ConfigError(cat(option.key,
                            " = ",
                            config::format_value(option.get(recipe)),
                            " is for the models of families; a chain of one's own says it itself"));
    }
  }
  recipe.model.family = config::kOwnFamily;
  return recipe;
}

data::Split split_samples(data::DatasetPtr dataset, double held_out) {
  const int64_t all = dataset->samples();
  const int64_t validation = std::llround(held_out * static_cast<double>(all));
  if (validation <= 0) {
    return {std::move(dataset), nullptr};
  }
  if (validation >= all) {
    throw ConfigError(cat(
        "data.split = ", format_number(held_out), " leaves none of ", all, " samples to train on"));
  }
  return {std::make_shared<Samples>(dataset, 0, all - validation),
          std::make_shared<Samples>(dataset, all - validation, validation)};
}

}  // namespace penstock::train
