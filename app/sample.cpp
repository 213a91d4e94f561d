#include <cstdio>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/data/tokenizer.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/run/generate.h"
#include "penstock/train/setup.h"

#include "commands.h"

namespace penstock::app {

namespace {

struct SampleArguments {
  std::string checkpoint;
  std::string prompt = "\n";
  run::GenerateOptions options;
  int64_t threads = 0;
  bool as_json = false;
};

int write_sample(const SampleArguments& arguments) {
  install_interrupt_handler();
  const std::filesystem::path folder = checkpoint::resolve_checkpoint(arguments.checkpoint);
  config::Recipe recipe = checkpoint::verified_recipe(folder);
  if (recipe.data.tokenizer != "bytes") {
    throw ConfigError(
        cat(folder.string(),
            " was trained on token files; sample writes text only for data.tokenizer = \"bytes\""));
  }
  recipe.run.threads = arguments.threads;
  // On the CPU, wherever it was trained; there are no float16 kernels for it.
  if (recipe.train.precision != "bfloat16") {
    recipe.train.precision = "float32";
  }
  train::prepare_process(recipe);
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  model::Parameters parameters(chain, train::compute_type(recipe.train), /*seed=*/0);
  checkpoint::load_weights(folder, parameters);

  run::GenerateOptions options = arguments.options;
  options.context = recipe.model.context;
  options.stop_token = data::kEndOfDocument;
  const auto show = [&](int64_t token) {
    if (!arguments.as_json) {
      std::fputs(data::decode(std::vector<int64_t>{token}).c_str(), stdout);
      std::fflush(stdout);
    }
    return !was_interrupted();
  };
  if (!arguments.as_json) {
    std::fputs(arguments.prompt.c_str(), stdout);
  }
  const std::vector<int64_t> made =
      run::generate(chain, parameters, data::encode(arguments.prompt), options, show);
  if (arguments.as_json) {
    const nlohmann::ordered_json json{
        {"prompt", arguments.prompt}, {"text", data::decode(made)}, {"tokens", made}};
    std::printf("%s\n",
                json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::fputs("\n", stdout);
  }
  return 0;
}

}  // namespace

void add_sample_command(Command& app) {
  Command command = app.add_command("sample", "write text with a trained model");
  const auto arguments = std::make_shared<SampleArguments>();
  run::GenerateOptions& options = arguments->options;
  command.add("CHECKPOINT", arguments->checkpoint, "a checkpoint, or a run's folder").required();
  command.add("--prompt", arguments->prompt, "what the text starts with").named("TEXT");
  command.add("--tokens", options.tokens, "how many tokens to write")
      .in_range(int64_t{0}, int64_t{10'000'000})
      .shows_default();
  command
      .add("--temperature",
           options.temperature,
           "0: always the likeliest token; 1: as the model predicts")
      .in_range(0.0, 100.0)
      .shows_default();
  command.add("--top-k", options.top_k, "draw among the k likeliest tokens; 0: among all")
      .in_range(int64_t{0}, int64_t{100'000'000})
      .shows_default();
  command.add("--seed", options.seed, "another seed, another text").shows_default();
  command.add("--threads", arguments->threads, "threads for computing; 0: one per core")
      .in_range(int64_t{0}, int64_t{4096})
      .shows_default();
  command.add_flag("--json", arguments->as_json, "write the result to standard output as JSON");
  command.runs([arguments] { return write_sample(*arguments); });
}

}  // namespace penstock::app
