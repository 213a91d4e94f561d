#include <algorithm>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/family.h"
#include "penstock/report/table.h"
#include "penstock/train/setup.h"

#include "commands.h"

namespace penstock::app {

namespace {

struct Row {
  std::string name;
  std::string shape;
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t kept_bytes = 0;
};

std::string shape_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) {
    text += cat(text.empty() ? "" : " x ", size);
  }
  return text;
}

int64_t count_parameters(const std::vector<model::ParameterSpec>& specs) {
  int64_t count = 0;
  for (const model::ParameterSpec& spec : specs) {
    count += spec.count();
  }
  return count;
}

std::vector<Row> describe_chain(const config::Recipe& recipe, const model::Chain& chain) {
  const at::ScalarType type = train::compute_type(recipe.train);
  const int64_t samples = recipe.micro_batch_size();
  const model::ChainShapes shapes =
      chain.shapes_for(model::shapes_of(chain.example(samples)), samples, type);
  std::vector<Row> rows;
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const model::LayerSize size = layer.size_for(shapes.inputs_of(chain.edges(), i), type);
    const int64_t parameters = count_parameters(layer.parameters());
    rows.push_back({layer.name(),
                    shape_text(size.outputs[0].sizes),
                    parameters,
                    4 * parameters,
                    size.kept_bytes});
  }
  // The head's table is the embedding's and already counted.
  int64_t own = chain.parameter_count();
  for (const Row& row : rows) {
    own -= row.parameters;
  }
  rows.push_back({chain.loss().name() + " and loss", "1", own, 4 * own, 0});
  return rows;
}

void print_text(const config::Recipe& recipe, const std::vector<Row>& rows) {
  using report::Align;
  report::Table table({{"layer"},
                       {"output"},
                       {"parameters", Align::Right},
                       {"weights", Align::Right},
                       {"kept for backward", Align::Right}});
  Row total;
  for (const Row& row : rows) {
    table.add_row({row.name,
                   row.shape,
                   format_count(row.parameters),
                   format_bytes(row.parameter_bytes),
                   format_bytes(row.kept_bytes)});
    total.parameters += row.parameters;
    total.parameter_bytes += row.parameter_bytes;
    total.kept_bytes += row.kept_bytes;
  }
  table.add_rule();
  table.add_row({"all",
                 "",
                 format_count(total.parameters),
                 format_bytes(total.parameter_bytes),
                 format_bytes(total.kept_bytes)});
  std::printf("%s %s, micro-batches of %lld sequences of %lld tokens, computed in %s\n\n%s",
              recipe.model.family.c_str(),
              format_count(total.parameters).c_str(),
              static_cast<long long>(recipe.micro_batch_size()),
              static_cast<long long>(recipe.model.context),
              recipe.train.precision.c_str(),
              table.text().c_str());
}

// Of a rank, if the tensor axis had so many: of the one that has most.
int64_t tensor_parameters(const model::Chain& chain, int32_t ranks) {
  int64_t most = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int64_t own = 0;
    for (const model::ParameterSpec& spec : chain.parameters()) {
      own += model::tensor_count(spec.cut, spec.shape, rank, ranks);
    }
    most = std::max(most, own);
  }
  return most;
}

void print_json(const model::Chain& chain, const std::vector<Row>& rows) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  int64_t parameters = 0;
  int64_t kept = 0;
  for (const Row& row : rows) {
    layers.push_back({{"name", row.name},
                      {"output", row.shape},
                      {"parameters", row.parameters},
                      {"parameter_bytes", row.parameter_bytes},
                      {"kept_bytes", row.kept_bytes}});
    parameters += row.parameters;
    kept += row.kept_bytes;
  }
  nlohmann::ordered_json tensor = nlohmann::ordered_json::array();
  for (const int32_t ranks : {2, 4, 8}) {
    tensor.push_back({{"ranks", ranks}, {"parameters", tensor_parameters(chain, ranks)}});
  }
  const nlohmann::ordered_json json{{"parameters", parameters},
                                    {"kept_bytes", kept},
                                    {"layers", layers},
                                    {"tensor_split", tensor}};
  std::printf("%s\n", json.dump(2).c_str());
}

int describe(const RecipeArguments& arguments) {
  config::Recipe recipe = config::load_recipe(arguments.recipe, arguments.settings);
  train::prepare_process(recipe);
  const model::Chain chain = model::make_chain(recipe.model, device::open_cpu());
  const std::vector<Row> rows = describe_chain(recipe, chain);
  if (arguments.as_json) {
    print_json(chain, rows);
  } else {
    print_text(recipe, rows);
  }
  return 0;
}

}  // namespace

void add_describe_command(Command& app) {
  Command command =
      app.add_command("describe", "print the model as a chain: layer, shape, parameters, bytes");
  const auto arguments = std::make_shared<RecipeArguments>();
  add_recipe_arguments(command, *arguments).required();
  command.runs([arguments] { return describe(*arguments); });
}

}  // namespace penstock::app
