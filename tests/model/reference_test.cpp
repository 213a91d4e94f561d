// Against PyTorch: numbers committed in tests/golden, made by make_<family>_reference.py there.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/base/file.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/weights.h"
#include "penstock/config/options.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/plain_step.h"

#include "support/random_tensor.h"

namespace penstock {

namespace {

const std::filesystem::path kGolden = PENSTOCK_SOURCE_DIR "/tests/golden";

config::ModelOptions options_of(const nlohmann::json& model) {
  config::Recipe recipe;
  for (const auto& [key, value] : model.items()) {
    config::apply_setting(recipe, cat("model.", key, "=", value.dump()));
  }
  return recipe.model;
}

// A model as PyTorch had it; `name` is what its files begin with.
struct Reference {
  explicit Reference(const std::string& of) : name(of) {
    checkpoint::import_weights(file("_weights.safetensors"), parameters, family.stored_names());
    read_batches();
  }

  std::filesystem::path file(const char* rest) const { return kGolden / (name + rest); }

  const std::string name;
  const nlohmann::json json = nlohmann::json::parse(read_text_file(file("_reference.json")));
  const config::ModelOptions options = options_of(json["model"]);
  const model::Family& family = model::find_family(options.family);
  const model::Chain chain = family.make_chain(options, device::open_cpu());
  model::Parameters parameters{chain, at::kFloat, /*seed=*/0};
  at::Tensor batches;  // [steps, batch, context + 1]

  void read_batches() {
    const auto& all = json["batches"];
    std::vector<int64_t> flat;
    for (const auto& batch : all) {
      for (const auto& row : batch) {
        for (const auto& token : row) {
          flat.push_back(token);
        }
      }
    }
    const int64_t steps = static_cast<int64_t>(all.size());
    const int64_t rows = static_cast<int64_t>(all[0].size());
    batches = at::tensor(flat).view({steps, rows, -1});
  }

  run::StepInput batch(int64_t step, int64_t micro_batches = 1) const {
    const at::Tensor tokens = batches[step];
    const int64_t context = tokens.size(1) - 1;
    return {.batch = {{"inputs", tokens.narrow(1, 0, context).contiguous()},
                      {"targets", tokens.narrow(1, 1, context).contiguous()}},
            .micro_batches = micro_batches,
            .step = step};
  }

  double accumulate(int64_t step, int64_t micro_batches = 1) {
    return run::accumulate_gradients(chain, parameters, batch(step, micro_batches));
  }
};

void expect_reference_gradients(const Reference& reference) {
  std::vector<at::Tensor> expected;
  for (const model::Parameter& parameter : reference.parameters.all()) {
    expected.push_back(at::empty_like(parameter.weight));
  }
  std::vector<checkpoint::NamedTensor> named;
  for (size_t i = 0; i < expected.size(); ++i) {
    named.push_back({reference.parameters.all()[i].spec.name, &expected[i]});
  }
  checkpoint::load_tensors(reference.file("_gradients.safetensors"), named);
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& gradient = reference.parameters.all()[i].gradient;
    EXPECT_LT(test::relative_error(gradient, expected[i]), 1e-5) << named[i].name;
    EXPECT_LT(test::largest_error(gradient, expected[i]), 1e-5) << named[i].name;
  }
}

class References : public testing::TestWithParam<const char*> {};

}  // namespace

TEST_P(References, LossAndEveryGradientMatchPyTorch) {
  Reference reference(GetParam());
  const double loss = reference.accumulate(0);
  EXPECT_NEAR(loss / reference.json["loss"].get<double>(), 1, 1e-5);
  expect_reference_gradients(reference);
}

TEST_P(References, GradientsAccumulatedOverMicroBatchesMatchPyTorch) {
  Reference reference(GetParam());
  const double loss = reference.accumulate(0, /*micro_batches=*/3);
  EXPECT_NEAR(loss / reference.json["loss"].get<double>(), 1, 1e-5);
  expect_reference_gradients(reference);
}

TEST_P(References, LogitsMatchPyTorch) {
  Reference reference(GetParam());
  const int64_t context = reference.batches.size(2) - 1;
  const at::Tensor tokens = reference.batches[0].narrow(0, 0, 1).narrow(1, 0, context).contiguous();
  at::Tensor expected = at::empty({context, reference.options.vocabulary});
  checkpoint::load_tensors(reference.file("_gradients.safetensors"), {{"logits", &expected}});
  const at::Tensor logits =
      run::predict(reference.chain, reference.parameters, {{"inputs", tokens}})[0];
  EXPECT_LT((logits - expected).abs().max().item<double>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         References,
                         testing::Values("gpt2", "llama", "llama_tied"),
                         [](const auto& row) { return std::string(row.param); });

// The same weights, and a head of its own: the embedding's rows, each a place further.
TEST(Gpt2Reference, AHeadOfItsOwnMatchesPyTorch) {
  const Reference tied("gpt2");
  config::ModelOptions options = tied.options;
  options.tied = false;
  const model::Chain chain = tied.family.make_chain(options, device::open_cpu());
  model::Parameters parameters(chain, at::kFloat, /*seed=*/0);
  const at::Tensor embedding = tied.parameters.find("transformer.wte.weight")->weight;
  for (const model::Parameter& parameter : parameters.all()) {
    const model::Parameter* same = tied.parameters.find(parameter.spec.name);
    at::Tensor(parameter.weight)
        .copy_(same == nullptr ? at::roll(embedding, {1}, {0}) : same->weight);
  }
  const run::StepInput batch = tied.batch(0);
  const double loss = run::accumulate_gradients(chain, parameters, batch);
  at::Tensor expected_loss = at::empty({}),
             logits = at::empty({options.context, options.vocabulary});
  std::vector<std::string> names{"lm_head.weight",
                                 "transformer.wte.weight",
                                 "transformer.wpe.weight",
                                 "transformer.ln_f.weight"};
  std::vector<at::Tensor> gradients;
  for (const std::string& name : names) {
    gradients.push_back(at::empty_like(parameters.find(name)->gradient));
  }
  std::vector<checkpoint::NamedTensor> named{{"loss", &expected_loss}, {"logits", &logits}};
  for (size_t i = 0; i < names.size(); ++i) {
    named.push_back({names[i], &gradients[i]});
  }
  checkpoint::load_tensors(kGolden / "gpt2_untied_gradients.safetensors", named);
  EXPECT_NEAR(loss / expected_loss.item<double>(), 1, 1e-5);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_LT(test::relative_error(parameters.find(names[i])->gradient, gradients[i]), 1e-5)
        << names[i];
  }
  const at::Tensor ours = run::predict(chain, parameters, run::rows_of(batch.batch, 0, 1))[0];
  EXPECT_LT((ours - logits).abs().max().item<double>(), 1e-4);
}

// Twenty steps with clipping, on twenty batches, by each optimizer.
struct Training {
  const char* reference;
  const char* optimizer;
};
class ReferenceTraining : public testing::TestWithParam<Training> {};

TEST_P(ReferenceTraining, TwentyStepsMatchPyTorch) {
  Reference reference(GetParam().reference);
  const std::string kind = GetParam().optimizer;
  const bool is_sgd = kind == "sgd" || kind == "nesterov";
  const config::TrainOptions train{.optimizer = is_sgd ? "sgd" : kind,
                                   .weight_decay = is_sgd ? 0.01 : 0.1,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .epsilon = kind == "lamb" ? 1e-6 : 1e-8,
                                   .momentum = 0.9,
                                   .nesterov = kind == "nesterov"};
  const optim::Rate rate{is_sgd ? 0.1 : 3e-3, {}};
  const auto optimizer = optim::make_optimizer(train, reference.parameters);
  const nlohmann::json& expected = reference.json["training"][kind];
  const int64_t steps = reference.batches.size(0);
  ASSERT_EQ(steps, 20);
  for (int64_t step = 0; step < steps; ++step) {
    reference.parameters.zero_gradients();
    const double loss = reference.accumulate(step);
    const double norm = optim::gradient_norm(reference.parameters);
    EXPECT_NEAR(loss / expected["losses"][static_cast<size_t>(step)].get<double>(), 1, 1e-4)
        << step;
    EXPECT_NEAR(norm / expected["norms"][static_cast<size_t>(step)].get<double>(), 1, 1e-3) << step;
    optimizer->step(reference.parameters, rate, optim::clip_scale(norm, 1.0));
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers,
                         ReferenceTraining,
                         testing::Values(Training{"gpt2", "adamw"},
                                         Training{"gpt2", "sgd"},
                                         Training{"gpt2", "nesterov"},
                                         Training{"gpt2", "lamb"},
                                         Training{"llama", "adamw"}),
                         [](const auto& row) {
                           return cat(row.param.reference, "_", row.param.optimizer);
                         });

}  // namespace penstock
