#include "penstock/checkpoint/weights.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/model_config.h"
#include "penstock/checkpoint/safetensors_writer.h"
#include "penstock/model/family.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

#include "support/random_tensor.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {

namespace {

namespace fs = std::filesystem;
using test::TempFolder;

const model::StoredNames kNames = model::find_family("gpt2").stored_names();

config::Recipe small_recipe(const fs::path& out) {
  config::Recipe recipe;
  recipe.model = {
      .layers = 2, .width = 32, .heads = 4, .context = 16, .vocabulary = 256, .dropout = 0};
  recipe.run.out = out.string();
  return recipe;
}

config::Recipe untied_recipe(const fs::path& out) {
  config::Recipe recipe = small_recipe(out);
  recipe.model.tied = false;
  return recipe;
}

model::Chain chain_of(const config::Recipe& recipe) {
  return model::make_gpt2({.layers = recipe.model.layers,
                           .width = recipe.model.width,
                           .heads = recipe.model.heads,
                           .context = recipe.model.context,
                           .vocabulary = recipe.model.vocabulary,
                           .is_tied = recipe.model.tied});
}

// Everything a checkpoint holds, filled with numbers of its own.
struct TestRun {
  explicit TestRun(const config::Recipe& the_recipe, uint64_t seed)
      : recipe(the_recipe),
        chain(chain_of(recipe)),
        parameters(chain, at::kFloat, seed),
        optimizer(optim::make_optimizer(recipe.train, parameters)) {
    for (const optim::StateBuffer& buffer : optimizer->state()) {
      for (const model::Parameter& parameter : parameters.all()) {
        at::Tensor(buffer.flat)
            .narrow(0, parameter.offset, parameter.spec.count())
            .copy_(test::random_tensor({parameter.spec.count()}, ++seed));
      }
    }
  }

  config::Recipe recipe;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
};

std::string failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

// A weights file as the model's own, with each tensor passed through `change` on the way.
struct StoredTensor {
  std::string name;
  at::Tensor value;
  Dtype dtype = Dtype::F32;
};
fs::path write_file(const fs::path& file,
                    const model::Parameters& parameters,
                    const std::function<StoredTensor(StoredTensor)>& change,
                    const std::vector<StoredTensor>& more = {}) {
  std::vector<StoredTensor> tensors;
  for (const model::Parameter& parameter : parameters.all()) {
    tensors.push_back(change({parameter.spec.name, parameter.weight}));
  }
  tensors.insert(tensors.end(), more.begin(), more.end());
  std::vector<TensorSpec> specs;
  for (const StoredTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.value.sizes().vec()});
  }
  const SafetensorsLayout layout(specs);
  create_safetensors(file, layout);
  SafetensorsWriter writer(file, layout);
  for (const StoredTensor& tensor : tensors) {
    writer.write(layout.find(tensor.name), 0, tensor.value.const_data_ptr(), tensor.value.nbytes());
  }
  writer.finish();
  return file;
}

}  // namespace

TEST(Checkpoint, LoadsWhatWasSaved) {
  const TempFolder folder;
  TestRun saved(small_recipe(folder.path()), 1), loaded(small_recipe(folder.path()), 2);
  saved.optimizer->set_steps_done(7);
  const fs::path place = save(saved.recipe,
                              saved.chain,
                              saved.parameters,
                              *saved.optimizer,
                              {.step = 7, .samples_seen = 56});
  EXPECT_EQ(place.filename(), "step-00000007");
  const TrainState state = load(place, loaded.recipe, loaded.parameters, *loaded.optimizer);
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.samples_seen, 56);
  EXPECT_EQ(loaded.optimizer->steps_done(), 7);
  EXPECT_TRUE(at::equal(saved.parameters.flat_weights(), loaded.parameters.flat_weights()));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(saved.optimizer->state()[i].flat, loaded.optimizer->state()[i].flat));
  }
}

TEST(Checkpoint, RefusesAnotherModelAndAnotherOptimizer) {
  const TempFolder folder;
  TestRun saved(small_recipe(folder.path()), 1);
  const fs::path place = save(saved.recipe, saved.chain, saved.parameters, *saved.optimizer, {});
  config::Recipe other = saved.recipe;
  other.model.heads = 2;
  TestRun heads(other, 1);
  const std::string text =
      failure([&] { load(place, heads.recipe, heads.parameters, *heads.optimizer); });
  EXPECT_NE(text.find("model.heads = 4"), std::string::npos) << text;
  other = saved.recipe;
  other.train.optimizer = "sgd";
  TestRun sgd(other, 1);
  EXPECT_NE(failure([&] {
              load(place, sgd.recipe, sgd.parameters, *sgd.optimizer);
            }).find("train.optimizer"),
            std::string::npos);
}

TEST(Checkpoint, AHeadOfItsOwnIsSavedAndLoadedAndATiedOneRefused) {
  const TempFolder folder;
  TestRun saved(untied_recipe(folder.path()), 1), loaded(untied_recipe(folder.path()), 2);
  const fs::path place =
      save(saved.recipe, saved.chain, saved.parameters, *saved.optimizer, {.step = 3});
  at::Tensor head = at::empty({256, 32});
  load_tensors(place / "model.safetensors", {{"lm_head.weight", &head}});
  EXPECT_TRUE(at::equal(head, saved.parameters.find("lm_head.weight")->weight));
  load(place, loaded.recipe, loaded.parameters, *loaded.optimizer);
  EXPECT_TRUE(at::equal(saved.parameters.flat_weights(), loaded.parameters.flat_weights()));
  TestRun tied(small_recipe(folder.path()), 1);
  const std::string text =
      failure([&] { load(place, tied.recipe, tied.parameters, *tied.optimizer); });
  EXPECT_NE(text.find("it has model.tied = false, the recipe true"), std::string::npos) << text;
}

TEST(ImportWeights, ReadsNamesWithoutPrefixAndPassesOverMasksAndTheTiedHead) {
  const TempFolder folder;
  TestRun source(small_recipe(folder.path()), 1), target(small_recipe(folder.path()), 2);
  const auto bare = [](StoredTensor tensor) {
    tensor.name = tensor.name.substr(std::string("transformer.").size());
    return tensor;
  };
  const fs::path file =
      write_file(folder.path() / "old.safetensors",
                 source.parameters,
                 bare,
                 {{"h.0.attn.bias", at::ones({1, 1, 4, 4})},
                  {"lm_head.weight", source.parameters.find("transformer.wte.weight")->weight}});
  import_weights(file, target.parameters, kNames);
  EXPECT_TRUE(at::equal(source.parameters.flat_weights(), target.parameters.flat_weights()));
}

TEST(ImportWeights, ReadsAHeadOfItsOwn) {
  const TempFolder folder;
  TestRun source(untied_recipe(folder.path()), 1), target(untied_recipe(folder.path()), 2);
  const auto bare = [](StoredTensor tensor) {
    if (tensor.name.starts_with("transformer.")) {
      tensor.name = tensor.name.substr(std::string("transformer.").size());
    }
    return tensor;
  };
  import_weights(write_file(folder.path() / "bare.safetensors", source.parameters, bare),
                 target.parameters,
                 kNames);
  EXPECT_TRUE(at::equal(source.parameters.flat_weights(), target.parameters.flat_weights()));
}

TEST(ImportWeights, SaysWhichHeadTheFileHas) {
  const TempFolder folder;
  TestRun tied(small_recipe(folder.path()), 1), untied(untied_recipe(folder.path()), 1);
  const auto same = [](StoredTensor tensor) { return tensor; };
  const fs::path of_tied = write_file(folder.path() / "tied", tied.parameters, same);
  const fs::path of_untied = write_file(folder.path() / "untied", untied.parameters, same);
  EXPECT_EQ(failure([&] { import_weights(of_tied, untied.parameters, kNames); }),
            of_tied.string() +
                " has no tensor lm_head.weight: its head is the token embedding; set model.tied = "
                "true");
  EXPECT_EQ(failure([&] { import_weights(of_untied, tied.parameters, kNames); }),
            of_untied.string() +
                ": lm_head.weight differs from the token embedding; set model.tied = false");
  // A rank without the head says so, too.
  const model::Part first{.layers = {0, 1}, .has_loss = false};
  model::Parameters part(untied.chain, first, at::kFloat, /*seed=*/1, device::open_cpu());
  std::vector<std::string> others;
  for (const model::ParameterSpec& spec : untied.chain.parameters()) {
    if (part.find(spec.name) == nullptr) {
      others.push_back(spec.name);
    }
  }
  EXPECT_EQ(failure([&] { import_weights(of_untied, part, kNames, others); }), "");
  EXPECT_NE(
      failure([&] { import_weights(of_tied, part, kNames, others); }).find("model.tied = true"),
      std::string::npos);
}

TEST(ImportWeights, ReadsHalfPrecision) {
  const TempFolder folder;
  for (const auto& [dtype, type] :
       {std::pair{Dtype::BF16, at::kBFloat16}, std::pair{Dtype::F16, at::kHalf}}) {
    TestRun source(small_recipe(folder.path()), 1), target(small_recipe(folder.path()), 2);
    const auto narrow = [&](StoredTensor tensor) {
      return StoredTensor{tensor.name, tensor.value.to(type), dtype};
    };
    import_weights(write_file(folder.path() / "half.safetensors", source.parameters, narrow),
                   target.parameters,
                   kNames);
    EXPECT_TRUE(at::equal(source.parameters.flat_weights().to(type).to(at::kFloat),
                          target.parameters.flat_weights()));
  }
}

TEST(ImportWeights, SaysWhatDoesNotFit) {
  const TempFolder folder;
  TestRun run(small_recipe(folder.path()), 1);
  const auto same = [](StoredTensor tensor) { return tensor; };
  const auto import = [&](const fs::path& file) {
    return failure([&] { import_weights(find_weights_file(file), run.parameters, kNames); });
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };

  expect(import(folder.path() / "none"), "does not exist");
  expect(import(write_file(folder.path() / "a",
                           run.parameters,
                           [](StoredTensor tensor) {
                             if (tensor.name.ends_with("h.1.ln_2.bias")) {
                               tensor.name = "x";
                             }
                             return tensor;
                           })),
         "has no tensor transformer.h.1.ln_2.bias");
  expect(import(write_file(folder.path() / "b", run.parameters, same, {{"extra", at::ones({2})}})),
         "extra");
  expect(import(write_file(
             folder.path() / "c", run.parameters, same, {{"lm_head.weight", at::ones({256, 32})}})),
         "tied");
  expect(import(write_file(
             folder.path() / "d",
             run.parameters,
             [](StoredTensor tensor) {
               return StoredTensor{tensor.name, tensor.value.to(at::kDouble), Dtype::F64};
             })),
         "F64");
  config::Recipe wide = run.recipe;
  wide.model.width = 64;
  TestRun other(wide, 1);
  expect(import(write_file(folder.path() / "e", other.parameters, same)), "shape");
}

TEST(ModelConfig, ChecksWhatShapesDoNotShow) {
  const TempFolder folder;
  const config::Recipe recipe = small_recipe(folder.path());
  write_text_file(folder.path() / "config.json", hugging_face_config(recipe.model, "bytes"));
  EXPECT_EQ(failure([&] { require_same_model(folder.path(), recipe.model); }), "");
  config::ModelOptions other = recipe.model;
  other.heads = 8;
  const std::string text = failure([&] { require_same_model(folder.path(), other); });
  EXPECT_NE(text.find("n_head is 4"), std::string::npos) << text;
  const config::ModelOptions untied = untied_recipe(folder.path()).model;
  EXPECT_EQ(
      failure([&] { require_same_model(folder.path(), untied); }),
      (folder.path() / "config.json").string() +
          ": tie_word_embeddings is true, the recipe has model.tied = false; set model.tied = "
          "true");
  write_text_file(folder.path() / "config.json", hugging_face_config(untied, "bytes"));
  EXPECT_EQ(failure([&] { require_same_model(folder.path(), untied); }), "");
  EXPECT_EQ(
      failure([&] { require_same_model(folder.path(), recipe.model); }),
      (folder.path() / "config.json").string() +
          ": tie_word_embeddings is false, the recipe has model.tied = true; set model.tied = "
          "false");
  write_text_file(folder.path() / "config.json", "{\"model_type\": \"llama\"}");
  EXPECT_NE(failure([&] { require_same_model(folder.path(), other); }).find("model_type"),
            std::string::npos);
  for (const char* other_kind : {R"({"activation_function": "relu"})",
                                 R"({"layer_norm_epsilon": 1e-6})",
                                 R"({"tie_word_embeddings": false})",
                                 R"({"tie_word_embeddings": 1})",
                                 R"({"scale_attn_by_inverse_layer_idx": true})",
                                 R"({"model_type": 7})",
                                 "[]"}) {
    write_text_file(folder.path() / "config.json", other_kind);
    EXPECT_NE(failure([&] { require_same_model(folder.path(), recipe.model); }), "") << other_kind;
  }
  write_text_file(folder.path() / "config.json", "{");
  EXPECT_NE(failure([&] { require_same_model(folder.path(), other); }).find("config.json"),
            std::string::npos);
}

}  // namespace penstock::checkpoint
