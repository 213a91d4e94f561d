#include "penstock/model/parameters.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/llama/llama.h"
#include "penstock/model/module_layer.h"
#include "penstock/run/plain_step.h"

#include "support/random_tensor.h"

namespace penstock::model {

namespace {

constexpr Gpt2Shape kSmall{.layers = 2, .width = 48, .heads = 4, .context = 24, .vocabulary = 70};

int64_t count_of(int64_t layers, int64_t width, int64_t heads) {
  return make_gpt2({.layers = layers, .width = width, .heads = heads}).parameter_count();
}

}  // namespace

TEST(Parameters, Gpt2SizesHaveTheirPublishedCounts) {
  EXPECT_EQ(count_of(12, 768, 12), 124'439'808);
  EXPECT_EQ(count_of(24, 1024, 16), 354'823'168);
  EXPECT_EQ(count_of(36, 1280, 20), 774'030'080);
  EXPECT_EQ(count_of(48, 1600, 25), 1'557'611'200);
}

// The layers' own; llama_facts_test.cpp has those that are counted without layers.
TEST(Parameters, LlamaSizesHaveTheirPublishedCounts) {
  EXPECT_EQ(make_llama({.layers = 22, .width = 2048, .heads = 32, .kv_heads = 4, .hidden = 5632})
                .parameter_count(),
            1'100'048'384);  // TinyLlama
  EXPECT_EQ(make_llama({.layers = 16,
                        .width = 2048,
                        .heads = 32,
                        .kv_heads = 8,
                        .hidden = 8192,
                        .vocabulary = 128256,
                        .is_tied = true})
                .parameter_count(),
            1'235'814'400);  // Llama 3.2, 1B
  EXPECT_EQ(make_llama({.layers = 32, .width = 4096, .heads = 32, .kv_heads = 32, .hidden = 11008})
                .parameter_count(),
            6'738'415'616);  // Llama 2, 7B
  EXPECT_EQ(make_llama({.layers = 32,
                        .width = 4096,
                        .heads = 32,
                        .kv_heads = 8,
                        .hidden = 14336,
                        .vocabulary = 128256})
                .parameter_count(),
            8'030'261'248);  // Llama 3, 8B
}

TEST(Parameters, AreAlignedViewsOfTheFlatBuffers) {
  const Chain chain = make_gpt2(kSmall);
  const Parameters parameters(chain, at::kFloat, 1);
  for (const Parameter& parameter : parameters.all()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.weight.data_ptr()) % 64, 0u)
        << parameter.spec.name;
    EXPECT_TRUE(parameter.weight.is_alias_of(parameters.flat_weights()));
    EXPECT_TRUE(parameter.gradient.is_alias_of(parameters.flat_gradients()));
  }
}

TEST(Parameters, HeadAndEmbeddingShareOneTable) {
  const Chain chain = make_gpt2(kSmall);
  Parameters parameters(chain, at::kFloat, 1);
  const at::Tensor& embedding = parameters.weights_of(0)[0];
  const at::Tensor& head = parameters.weights_of(chain.size())[2];
  EXPECT_EQ(embedding.data_ptr(), head.data_ptr());
}

TEST(Parameters, OfAHeadOfItsOwnAreOneTableMore) {
  Gpt2Shape shape = kSmall;
  shape.is_tied = false;
  const Chain chain = make_gpt2(shape);
  EXPECT_EQ(chain.parameter_count(), make_gpt2(kSmall).parameter_count() + 70 * 48);
  Parameters parameters(chain, at::kFloat, 1);
  const Parameter* head = parameters.find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->spec.shape, (std::vector<int64_t>{70, 48}));
  EXPECT_TRUE(head->spec.has_weight_decay);
  EXPECT_EQ(parameters.weights_of(chain.size())[2].data_ptr(), head->weight.data_ptr());
  EXPECT_EQ(parameters.gradients_of(chain.size())[2].data_ptr(), head->gradient.data_ptr());
  const Parameter* embedding = parameters.find("transformer.wte.weight");
  EXPECT_EQ(parameters.weights_of(0)[0].data_ptr(), embedding->weight.data_ptr());
  // Drawn as the embedding is, by its own name.
  EXPECT_NEAR(head->weight.std().item<double>(), 0.02, 1e-3);
  EXPECT_FALSE(at::equal(head->weight, embedding->weight));
  const Parameters tied(make_gpt2(kSmall), at::kFloat, 1);
  EXPECT_EQ(tied.find("lm_head.weight"), nullptr);
  EXPECT_TRUE(at::equal(embedding->weight, tied.find("transformer.wte.weight")->weight));
}

TEST(Parameters, OfAHeadOfItsOwnGetNoGradientOfTheEmbedding) {
  Gpt2Shape shape = kSmall;
  shape.is_tied = false;
  const Chain chain = make_gpt2(shape);
  Parameters parameters(chain, at::kFloat, 1);
  parameters.gradients_of(0)[0].fill_(1);
  parameters.gradients_of(chain.size())[2].fill_(2);
  parameters.add_shares();
  const at::Tensor embedding = parameters.find("transformer.wte.weight")->gradient;
  const at::Tensor head = parameters.find("lm_head.weight")->gradient;
  EXPECT_TRUE(at::equal(embedding, at::full_like(embedding, 1)));
  EXPECT_TRUE(at::equal(head, at::full_like(head, 2)));
}

// The order in which ranks add that have embedding and head apart.
TEST(Parameters, SharesOfOneGradientAreAddedUpAtTheEnd) {
  const Chain chain = make_gpt2(kSmall);
  Parameters parameters(chain, at::kFloat, 1);
  const at::Tensor& embedding = parameters.gradients_of(0)[0];
  const at::Tensor& head = parameters.gradients_of(chain.size())[2];
  EXPECT_NE(embedding.data_ptr(), head.data_ptr());
  embedding.fill_(1);
  head.fill_(2);
  for (int again = 0; again < 2; ++again) {
    parameters.add_shares();
    EXPECT_TRUE(at::equal(parameters.find("transformer.wte.weight")->gradient,
                          at::full_like(embedding, 3)));
  }
  head.fill_(2);
  parameters.zero_gradients();
  parameters.add_shares();
  EXPECT_EQ(parameters.flat_gradients().abs().sum().item<double>(), 0);
}

namespace {

bool is_all(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

// Where `layer` adds its gradient of a parameter: the whole one, or a share of its own.
struct Target {
  int64_t layer = 0;
  std::string name;
  int32_t unit = 0;
  at::Tensor gradient;
};

std::vector<Target> all_targets(const Chain& chain, Parameters& parameters) {
  std::vector<Target> targets;
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    const std::vector<ParameterSpec>& specs =
        layer == chain.size() ? chain.loss().parameters() : chain.layer(layer).parameters();
    for (size_t i = 0; i < specs.size(); ++i) {
      int32_t number = 0;
      for (const plan::UnitSize& unit : parameters.inventory().sizes) {
        const bool has = std::any_of(
            unit.parameters.begin(), unit.parameters.end(), [&](const plan::ParameterSize& one) {
              return one.name == specs[i].name;
            });
        if (has) {
          targets.push_back({layer, specs[i].name, number, parameters.gradients_of(layer)[i]});
        }
        ++number;
      }
    }
  }
  return targets;
}

}  // namespace

// A unit may have other layers' parameters beside, and a parameter other layers' shares.
TEST(Parameters, BeginGradientsOfALayerInTheNamedUnitsAlone) {
  const Chain chain = make_gpt2(kSmall);
  const std::vector<int32_t> one_stage = {0, static_cast<int32_t>(chain.size())};
  const std::vector<Replication> cases{
      {},
      {.units = make_units(chain, one_stage, 1 << 30)},
      {program::Shard::None, 2, 1, make_units(chain, one_stage, 40'000)},
      {program::Shard::Optimizer, 2, 1, make_units(chain, one_stage, 1 << 30)}};
  for (const Replication& replication : cases) {
    Parameters parameters(chain, chain.whole(), at::kFloat, 1, device::open_cpu(), replication);
    const std::vector<Target> targets = all_targets(chain, parameters);
    ASSERT_EQ(targets.size(), parameters.all().size() + 1) << "the table has two";
    for (int64_t layer = 0; layer <= chain.size(); ++layer) {
      std::vector<std::vector<int32_t>> choices{{}};  // all units
      for (const int64_t unit : parameters.units_of(layer)) {
        choices.push_back({static_cast<int32_t>(unit)});
      }
      for (const std::vector<int32_t>& units : choices) {
        SCOPED_TRACE(cat(parameters.num_units(),
                         " units, layer ",
                         layer,
                         units.empty() ? std::string() : cat(", unit ", units[0])));
        for (const Target& target : targets) {
          at::Tensor(target.gradient).fill_(3);
        }
        const std::vector<uint8_t> fresh = parameters.begin_gradients(layer, units);
        EXPECT_EQ(fresh, std::vector<uint8_t>(parameters.weights_of(layer).size(), 0));
        int64_t zeroed = 0;
        for (const Target& target : targets) {
          const bool is_named =
              units.empty() || std::find(units.begin(), units.end(), target.unit) != units.end();
          const bool is_begun = target.layer == layer && is_named;
          zeroed += is_begun ? 1 : 0;
          EXPECT_TRUE(is_all(target.gradient, is_begun ? 0 : 3))
              << target.name << " of layer " << target.layer;
        }
        EXPECT_GT(zeroed, 0);
      }
    }
  }
}

// What it leaves is complete: gradients as after zero_gradients().
TEST(Parameters, BeginEveryGradientOverAllLayers) {
  const Chain chain = make_gpt2(kSmall);
  Parameters parameters(chain, at::kFloat, 1);
  for (const at::Tensor& buffer : parameters.gradient_buffers()) {
    at::Tensor(buffer).fill_(3);  // padding too
  }
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    parameters.begin_gradients(layer);
  }
  ASSERT_EQ(parameters.gradient_buffers().size(), 2U);
  for (const at::Tensor& buffer : parameters.gradient_buffers()) {
    EXPECT_TRUE(is_all(buffer, 0));
  }
}

namespace {

// Parameters alone: it computes nothing.
class Bare final : public Layer {
 public:
  Bare(std::string name, std::vector<ParameterSpec> specs)
      : name_(std::move(name)), specs_(std::move(specs)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<SaveMode>& save_modes() const override { return modes_; }
  Tensors forward(Weights, const Tensors& input, const Pass&, Saved*) const override {
    return input;
  }
  Tensors backward(Weights, Gradients, const Tensors&, Saved, const Tensors& gradient, const Pass&)
      const override {
    return gradient;
  }
  LayerSize size_for(const Shapes& inputs, at::ScalarType, int32_t) const override {
    return {inputs, 0};
  }

 private:
  std::string name_;
  std::vector<ParameterSpec> specs_;
  std::vector<SaveMode> modes_{{"all"}};
};

ParameterSpec overwritten(const std::string& name, std::vector<int64_t> shape) {
  ParameterSpec spec{.name = name, .shape = std::move(shape)};
  spec.is_gradient_overwritten = true;
  return spec;
}

}  // namespace

// What a layer writes by itself is not touched, and the layer is told which it is.
TEST(Parameters, AreFreshWhereTheLayerOverwritesTheirGradient) {
  Chain chain;
  chain.add(std::make_unique<Bare>(
      "first",
      std::vector<ParameterSpec>{
          overwritten("table", {5, 3}), {.name = "a", .shape = {7}}, overwritten("b", {4, 4})}));
  chain.add(std::make_unique<Bare>(
      "second",
      std::vector<ParameterSpec>{{.name = "c", .shape = {2, 9}}, overwritten("table", {5, 3})}));
  chain.end_with(
      function_loss("loss", [](const at::Tensor& out, const at::Tensor&) { return at::sum(out); }));
  Parameters parameters(chain, at::kFloat, 1);
  ASSERT_EQ(parameters.num_units(), 3);  // first, second, table
  const std::vector<Target> targets = all_targets(chain, parameters);
  ASSERT_EQ(targets.size(), 5U);
  using Flags = std::vector<uint8_t>;
  struct Row {
    int64_t layer;
    std::vector<int32_t> units;
    Flags fresh;
    std::vector<double> left;  // of the targets, in their order: table, a, b; c, table
  };
  const Row rows[] = {{0, {}, Flags{1, 0, 1}, {3, 0, 3, 3, 3}},
                      {0, {0}, Flags{0, 0, 1}, {3, 0, 3, 3, 3}},
                      {0, {2}, Flags{1, 0, 0}, {3, 3, 3, 3, 3}},
                      {0, {0, 2}, Flags{1, 0, 1}, {3, 0, 3, 3, 3}},
                      {1, {}, Flags{0, 1}, {3, 3, 3, 0, 3}},
                      {1, {1}, Flags{0, 0}, {3, 3, 3, 0, 3}},
                      {1, {2}, Flags{0, 1}, {3, 3, 3, 3, 3}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(cat("layer ", row.layer, ", ", row.units.size(), " units"));
    for (const Target& target : targets) {
      at::Tensor(target.gradient).fill_(3);
    }
    const Flags fresh = parameters.begin_gradients(row.layer, row.units);
    EXPECT_EQ(fresh, row.fresh);
    const Gradients gradients = parameters.gradients_of(row.layer, fresh);
    ASSERT_EQ(gradients.size(), row.fresh.size());
    for (size_t i = 0; i < row.fresh.size(); ++i) {
      EXPECT_EQ(gradients.is_fresh(i), row.fresh[i] != 0) << i;
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      EXPECT_TRUE(is_all(targets[i].gradient, row.left[i])) << targets[i].name;
    }
  }
  // Without flags nothing is.
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(parameters.gradients_of(0).is_fresh(i));
  }
}

TEST(Parameters, OfAPartAreThoseOfItsLayers) {
  const Chain chain = make_gpt2(kSmall);
  const Parameters whole(chain, at::kFloat, 1);
  const Part part{.layers = {1, 2}, .has_loss = false};
  const Parameters some(chain, part, at::kFloat, 1, device::open_cpu());
  EXPECT_EQ(some.flat_weights().numel(), Parameters::flat_elements(chain.parameters(part)));
  EXPECT_EQ(some.find("transformer.wte.weight"), nullptr);
  EXPECT_TRUE(some.weights_of(0).empty());
  EXPECT_FALSE(some.weights_of(1).empty());
  for (const Parameter& parameter : some.all()) {
    EXPECT_TRUE(at::equal(parameter.weight, whole.find(parameter.spec.name)->weight));
  }
}

TEST(Parameters, StartAsGpt2Does) {
  const Chain chain =
      make_gpt2({.layers = 8, .width = 128, .heads = 4, .context = 64, .vocabulary = 500});
  const Parameters parameters(chain, at::kFloat, 3);
  const auto deviation = [&](const char* name) {
    return parameters.find(name)->weight.std().item<double>();
  };
  EXPECT_NEAR(deviation("transformer.wte.weight"), 0.02, 4e-4);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_attn.weight"), 0.02, 4e-4);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.02 / 4, 1e-4);  // 1 / sqrt(2 * 8)
  EXPECT_NEAR(
      parameters.find("transformer.h.3.mlp.c_fc.weight")->weight.mean().item<double>(), 0, 4e-4);
  EXPECT_TRUE(parameters.find("transformer.ln_f.weight")->weight.eq(1).all().item<bool>());
  EXPECT_TRUE(parameters.find("transformer.h.0.mlp.c_fc.bias")->weight.eq(0).all().item<bool>());
}

// The value of an element depends on the seed, the name and the index, not on what else is there.
TEST(Parameters, InitialValuesDoNotDependOnTheRestOfTheModel) {
  Gpt2Shape deeper = kSmall;
  deeper.vocabulary = 90;
  const Parameters a(make_gpt2(kSmall), at::kFloat, 3), b(make_gpt2(deeper), at::kFloat, 3),
      c(make_gpt2(kSmall), at::kFloat, 4);
  const char* name = "transformer.h.1.attn.c_attn.weight";
  EXPECT_TRUE(at::equal(a.find(name)->weight, b.find(name)->weight));
  EXPECT_FALSE(at::equal(a.find(name)->weight, c.find(name)->weight));
  EXPECT_TRUE(at::equal(a.find("transformer.wte.weight")->weight,
                        b.find("transformer.wte.weight")->weight.narrow(0, 0, 70)));
}

TEST(Parameters, ComputeCopyFollowsTheWeights) {
  const Chain chain = make_gpt2(kSmall);
  Parameters parameters(chain, at::kBFloat16, 1);
  const Parameter& parameter = *parameters.find("transformer.h.0.mlp.c_fc.weight");
  EXPECT_EQ(parameter.compute.scalar_type(), at::kBFloat16);
  at::Tensor(parameter.weight).fill_(1.2345);
  parameters.refresh_compute();
  EXPECT_TRUE(at::equal(parameter.compute, parameter.weight.to(at::kBFloat16)));
  // Norms are handed to layers in float32.
  EXPECT_EQ(parameters.weights_of(1)[0].scalar_type(), at::kFloat);
  EXPECT_EQ(parameters.weights_of(1)[2].scalar_type(), at::kBFloat16);
}

// Dropout is keyed by sample: the gradient of a batch does not depend on how it is cut.
TEST(PlainStep, MicroBatchesDrawTheSameDropout) {
  Gpt2Shape shape = kSmall;
  shape.dropout = 0.3;
  const Chain chain = make_gpt2(shape);
  const at::Tensor inputs = test::random_tokens({8, 24}, 70, 1),
                   targets = test::random_tokens({8, 24}, 70, 2);
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;
  for (const int64_t micro_batches : {1, 2, 8}) {
    Parameters parameters(chain, at::kFloat, 1);
    losses.push_back(run::accumulate_gradients(chain,
                                               parameters,
                                               {.batch = {{"inputs", inputs}, {"targets", targets}},
                                                .first_sample = 40,
                                                .micro_batches = micro_batches,
                                                .seed = 9,
                                                .step = 3}));
    gradients.push_back(parameters.flat_gradients());
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i] / losses[0], 1, 1e-6);
    EXPECT_LT(test::relative_error(gradients[i], gradients[0]), 1e-5);
  }
}

TEST(PlainStep, RefusesWhatTheKernelsWouldMisread) {
  const Chain chain = make_gpt2(kSmall);
  Parameters parameters(chain, at::kFloat, 1);
  const at::Tensor good = test::random_tokens({2, 24}, 70, 1);
  const at::Tensor wide = test::random_tokens({2, 25}, 70, 1);
  const at::Tensor beyond = at::full({2, 24}, 70, at::kLong);
  for (const auto& [inputs, targets] : {std::pair{wide.narrow(1, 0, 24), good},
                                        std::pair{good, wide.narrow(1, 1, 24)},
                                        std::pair{beyond, good},
                                        std::pair{good, beyond}}) {
    const run::StepInput input{.batch = {{"inputs", inputs}, {"targets", targets}}};
    EXPECT_THROW(run::accumulate_gradients(chain, parameters, input), InternalError);
  }
}

// Loss and gradient are means over targets that count, wherever those lie.
TEST(PlainStep, MicroBatchesWeighByTheirTargets) {
  const Chain chain = make_gpt2(kSmall);
  const at::Tensor inputs = test::random_tokens({4, 24}, 70, 1);
  at::Tensor targets = test::random_tokens({4, 24}, 70, 2);
  targets.narrow(0, 0, 1).fill_(-1);
  targets[1].narrow(0, 5, 19).fill_(-1);
  Parameters whole(chain, at::kFloat, 1), cut(chain, at::kFloat, 1);
  run::StepInput input{.batch = {{"inputs", inputs}, {"targets", targets}}};
  const double a = run::accumulate_gradients(chain, whole, input);
  input.micro_batches = 4;
  const double b = run::accumulate_gradients(chain, cut, input);
  EXPECT_NEAR(a / b, 1, 1e-6);
  EXPECT_LT(test::relative_error(cut.flat_gradients(), whole.flat_gradients()), 1e-5);
}

}  // namespace penstock::model
