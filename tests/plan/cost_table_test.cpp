// Cost tables as files: what is read, what is filled in, and one clear line for everything else.
#include "penstock/plan/cost_table.h"

#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"

#include "plan/random_chains.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::plan {

namespace {

using test::error_text;

std::string error_of(const std::string& json) {
  return error_text<ConfigError>([&] { parse_costs(json, "costs.json"); });
}

// A table of one layer called "mlp", with `fields` in place of or beside the usual ones.
std::string layer_error(const std::string& fields) {
  return error_of(R"({"layers": [{"name": "mlp", )" + fields + "}]}");
}

const std::string kSizes = R"("input_bytes": 4, "output_bytes": 8, "saved_bytes": 9)";
const std::string kTimes = R"("forward_s": 1, "backward_s": 2)";
const std::string kUsual = kSizes + ", " + kTimes;

// A good layer and then `rest` of the table.
std::string table_error(const std::string& rest) {
  return error_of(R"({"layers": [{)" + kUsual + "}], " + rest + "}");
}

void expect_same(const SaveModeCost& a, const SaveModeCost& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.forward_s, b.forward_s);
  EXPECT_EQ(a.backward_s, b.backward_s);
  EXPECT_EQ(a.saved_bytes, b.saved_bytes);
  EXPECT_EQ(a.forward_extra_bytes, b.forward_extra_bytes);
  EXPECT_EQ(a.backward_extra_bytes, b.backward_extra_bytes);
  EXPECT_EQ(a.needs_output, b.needs_output);
  EXPECT_EQ(a.recompute_s, b.recompute_s);
  EXPECT_EQ(a.recompute_extra_bytes, b.recompute_extra_bytes);
}

void expect_same(const LayerCost& a, const LayerCost& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.input_bytes, b.input_bytes);
  EXPECT_EQ(a.output_bytes, b.output_bytes);
  EXPECT_EQ(a.input_gradient_bytes, b.input_gradient_bytes);
  EXPECT_EQ(a.output_gradient_bytes, b.output_gradient_bytes);
  EXPECT_EQ(a.forward_s, b.forward_s);
  EXPECT_EQ(a.forward_extra_bytes, b.forward_extra_bytes);
  EXPECT_EQ(a.parameter_bytes, b.parameter_bytes);
  EXPECT_EQ(a.gradient_bytes, b.gradient_bytes);
  EXPECT_EQ(a.optimizer_bytes, b.optimizer_bytes);
  EXPECT_EQ(a.backward_input_s, b.backward_input_s);
  EXPECT_EQ(a.backward_weight_s, b.backward_weight_s);
  EXPECT_EQ(a.weight_state_bytes, b.weight_state_bytes);
  ASSERT_EQ(a.modes.size(), b.modes.size());
  for (size_t i = 0; i < a.modes.size(); ++i) {
    expect_same(a.modes[i], b.modes[i]);
  }
}

void expect_same(const CostTable& a, const CostTable& b) {
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.loss.name, b.loss.name);
  EXPECT_EQ(a.loss.seconds, b.loss.seconds);
  EXPECT_EQ(a.loss.extra_bytes, b.loss.extra_bytes);
  EXPECT_EQ(a.loss.parameter_bytes, b.loss.parameter_bytes);
  EXPECT_EQ(a.loss.gradient_bytes, b.loss.gradient_bytes);
  EXPECT_EQ(a.loss.optimizer_bytes, b.loss.optimizer_bytes);
  EXPECT_EQ(a.target_bytes, b.target_bytes);
  EXPECT_EQ(a.held, b.held);
  EXPECT_EQ(a.clear_s, b.clear_s);
  EXPECT_EQ(a.step_s, b.step_s);
  EXPECT_EQ(a.step_extra_bytes, b.step_extra_bytes);
  EXPECT_EQ(a.link, b.link);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    expect_same(a.layers[i], b.layers[i]);
  }
}

}  // namespace

TEST(CostTable, ReadsTheKeysOfEarlierVersions) {
  const std::string now = R"({"layers": [{"forward_s": 1, "backward_s": 2, "input_bytes": 1,
      "output_bytes": 1, "saved_bytes": 3, "save_mode": "flash",
      "other_save_modes": [{"name": "lean", "backward_s": 9, "saved_bytes": 2}]}]})";
  std::string before = now;
  before.replace(before.find("other_save_modes"), 16, "other_ways");
  before.replace(before.find("save_mode"), 9, "way");
  EXPECT_EQ(format_costs(parse_costs(before, "old")), format_costs(parse_costs(now, "new")));
  EXPECT_EQ(parse_costs(before, "old").layers[0].modes[1].name, "lean");
}

TEST(CostTable, ReadsTheFieldsThatAPersonWrites) {
  const CostTable table = parse_costs(R"({
    "layers": [
      {"name": "embedding", "forward_s": 0.5, "backward_s": 1.5, "input_bytes": 16,
       "output_bytes": 64, "saved_bytes": 80, "forward_extra_bytes": 3, "backward_extra_bytes": 5},
      {"name": "head", "forward_s": 2, "backward_s": 4e-3, "input_bytes": 64,
       "output_bytes": 32, "saved_bytes": 32, "forward_extra_bytes": 0, "backward_extra_bytes": -7}
    ],
    "loss": {"extra_bytes": 9}})",
                                      "costs.json");
  CostTable expected;
  expected.layers = {{.name = "embedding",
                      .input_bytes = 16,
                      .output_bytes = 64,
                      .forward_s = 0.5,
                      .forward_extra_bytes = 3,
                      .modes = {{.forward_s = 0.5,
                                 .backward_s = 1.5,
                                 .saved_bytes = 80,
                                 .forward_extra_bytes = 3,
                                 .backward_extra_bytes = 5,
                                 .recompute_s = 0.5,
                                 .recompute_extra_bytes = 3}}},
                     {.name = "head",
                      .input_bytes = 64,
                      .output_bytes = 32,
                      .forward_s = 2,
                      .modes = {{.forward_s = 2,
                                 .backward_s = 0.004,
                                 .saved_bytes = 32,
                                 .backward_extra_bytes = -7,
                                 .recompute_s = 2}}}};
  expected.loss.extra_bytes = 9;
  expect_same(table, expected);
}

TEST(CostTable, FillsInWhatIsLeftOut) {
  const CostTable table = parse_costs(R"({"layers": [{)" + kUsual + "}]}", "costs.json");
  ASSERT_EQ(table.layers.size(), 1u);
  const LayerCost& layer = table.layers[0];
  EXPECT_EQ(layer.name, "layer 0");
  EXPECT_EQ(layer.modes[0].name, "all");
  EXPECT_TRUE(layer.modes[0].needs_output);
  EXPECT_EQ(layer.modes[0].recompute_s, 1);
  EXPECT_EQ(table.loss.name, "loss");
  EXPECT_EQ(table.loss.extra_bytes, 0);
  EXPECT_EQ(table.target_bytes, 0);
  EXPECT_EQ(table.held_bytes(), 0);
}

TEST(CostTable, AKeepingForwardCanCostOtherThanAPlainOne) {
  const CostTable table = parse_costs(R"({"layers": [{)" + kUsual +
                                          R"(, "keeping_forward_s": 3, "forward_extra_bytes": 5,
                         "dropping_extra_bytes": 7, "needs_output": false, "recompute_s": 0.5,
                         "recompute_extra_bytes": 2, "save_mode": "flash",
                         "other_save_modes": [{"name": "lean", "backward_s": 9, "saved_bytes": 8}]}]})",
                                      "costs.json");
  const LayerCost& layer = table.layers[0];
  EXPECT_EQ(layer.forward_s, 1);
  EXPECT_EQ(layer.forward_extra_bytes, 7);
  ASSERT_EQ(layer.modes.size(), 2u);
  expect_same(layer.modes[0],
              {.name = "flash",
               .forward_s = 3,
               .backward_s = 2,
               .saved_bytes = 9,
               .forward_extra_bytes = 5,
               .needs_output = false,
               .recompute_s = 0.5,
               .recompute_extra_bytes = 2});
  // Another save mode is as fast as the plain forward where it does not say.
  expect_same(layer.modes[1],
              {.name = "lean",
               .forward_s = 1,
               .backward_s = 9,
               .saved_bytes = 8,
               .needs_output = true,
               .recompute_s = 1});
}

TEST(CostTable, SplitBackwardsAreReadWhereTheyAreGiven) {
  const CostTable table = parse_costs(
      R"({"layers": [{"input_bytes": 4, "output_bytes": 8, "saved_bytes": 9, "forward_s": 1,
                      "backward_input_s": 0.5, "backward_weight_s": 0.25, "weight_state_bytes": 7,
                      "other_save_modes": [{"name": "lean", "saved_bytes": 8},
                                     {"name": "slow", "saved_bytes": 8, "backward_s": 5}]}]})",
      "costs.json");
  const LayerCost& layer = table.layers[0];
  EXPECT_EQ(layer.backward_input_s, 0.5);
  EXPECT_EQ(layer.backward_weight_s, 0.25);
  EXPECT_EQ(layer.weight_state_bytes, 7);
  EXPECT_EQ(layer.modes[0].backward_s, 0.75);
  EXPECT_EQ(layer.modes[1].backward_s, 0.75);
  EXPECT_EQ(layer.modes[2].backward_s, 5);
}

TEST(CostTable, SplitBackwardsThatAreNotKnownStayOutOfTheFile) {
  const CostTable table = parse_costs(R"({"layers": [{)" + kUsual + "}]}", "costs.json");
  EXPECT_LT(table.layers[0].backward_input_s, 0);
  EXPECT_LT(table.layers[0].backward_weight_s, 0);
  EXPECT_LT(table.layers[0].weight_state_bytes, 0);
  const std::string text = format_costs(table);
  EXPECT_EQ(text.find("backward_input_s"), std::string::npos);
  EXPECT_EQ(text.find("backward_weight_s"), std::string::npos);
  EXPECT_EQ(text.find("weight_state_bytes"), std::string::npos);
}

TEST(CostTable, RefusesSplitBackwardsThatCannotBe) {
  const std::string where = "costs.json: layer 0 (\"mlp\") ";
  EXPECT_EQ(layer_error(kUsual + R"(, "backward_input_s": -1)"),
            where + "backward_input_s = -1 is not a time in seconds, 0 or more");
  EXPECT_EQ(layer_error(kUsual + R"(, "backward_weight_s": "1")"),
            where + "backward_weight_s is not a number");
  EXPECT_EQ(layer_error(kUsual + R"(, "weight_state_bytes": -1)"),
            where + "weight_state_bytes = -1 is not a whole number of bytes, 0 or more");
  // The input gradient alone says nothing of the whole backward.
  EXPECT_EQ(layer_error(kSizes + R"(, "forward_s": 1, "backward_input_s": 1)"),
            where + "has no backward_s");
}

TEST(CostTable, IsTheSameAfterWritingAndReading) {
  test::Dice dice(80);
  for (int i = 0; i < 100; ++i) {
    CostTable table = test::rich_chain(dice, dice.between(1, 6), {.most_size = 1'000'000'007});
    table.description = "gpt2, float32, \"2\" threads\n";
    for (LayerCost& layer : table.layers) {
      layer.kind = dice.chance(50) ? "block" : "";
      // Doubles come back as they were, whatever their digits.
      layer.forward_s = 1.0 / static_cast<double>(dice.between(3, 1'000'000));
      layer.modes[0].backward_s = layer.forward_s * 1e-9;
      layer.parameter_bytes = dice.between(0, 1000);
      layer.gradient_bytes = dice.between(0, 1000);
      layer.optimizer_bytes = dice.between(0, 1000);
      layer.backward_input_s = dice.chance(50) ? layer.forward_s / 3 : -1;
      layer.backward_weight_s = dice.chance(50) ? 0 : -1;
      layer.weight_state_bytes = dice.chance(50) ? dice.between(0, 1000) : -1;
    }
    table.loss.name = "cross entropy";
    table.loss.parameter_bytes = dice.between(0, 1000);
    table.loss.gradient_bytes = dice.between(0, 1000);
    table.loss.optimizer_bytes = dice.between(0, 1000);
    table.step_extra_bytes = dice.between(0, 1000);
    if (dice.chance(30)) {
      table.link = {1e-6 * static_cast<double>(dice.between(0, 99)), 1e9 / 7};
    }
    const std::string text = format_costs(table);
    const CostTable again = parse_costs(text, "costs.json");
    EXPECT_EQ(again.carried, table.carried);
    expect_same(again, table);
    EXPECT_EQ(format_costs(again), text);
  }
}

TEST(CostTable, ComesFromAFile) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder.path() / "costs.json";
  write_text_file(file, R"({"layers": [{)" + kUsual + "}]}");
  EXPECT_EQ(read_costs(file).layers.size(), 1u);
  write_text_file(file, "{}");
  EXPECT_EQ(error_text<ConfigError>([&] { read_costs(file); }), file.string() + ": has no layers");
  const std::string missing = (folder.path() / "none.json").string();
  EXPECT_NE(error_text<FileError>([&] { read_costs(missing); }).find(missing), std::string::npos);
}

TEST(CostTable, RefusesWhatIsNoStrictJson) {
  EXPECT_EQ(error_of("{"), "costs.json is not valid JSON near byte 2");
  EXPECT_EQ(error_of(R"({"layers": [], "layers": []})"), "costs.json repeats the key \"layers\"");
  EXPECT_EQ(error_of("[[[[[[[[[[]]]]]]]]]]"), "costs.json is nested deeper than 8 levels");
  EXPECT_EQ(error_of("\xff"), "costs.json is not valid UTF-8");
}

TEST(CostTable, RefusesWhatIsNoObject) {
  EXPECT_EQ(error_of("[]"), "costs.json: is not an object");
  EXPECT_EQ(error_of(R"({"layers": [3]})"), "costs.json: layer 0 is not an object");
  EXPECT_EQ(table_error(R"("loss": 3)"), "costs.json: loss is not an object");
  EXPECT_EQ(table_error(R"("residents": [3])"), "costs.json: resident 0 is not an object");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [3])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 0 is not an object");
}

TEST(CostTable, RefusesTooFewAndTooManyLayers) {
  EXPECT_EQ(error_of("{}"), "costs.json: has no layers");
  EXPECT_EQ(error_of(R"({"layers": 3})"), "costs.json: layers is not a list");
  EXPECT_EQ(error_of(R"({"layers": []})"), "costs.json: has 0 layers; 1 to 100000 are allowed");
  // Their number is checked before what they are.
  std::string many = "0";
  for (int i = 0; i < 100'000; ++i) {
    many += ",0";
  }
  EXPECT_EQ(error_of("{\"layers\": [" + many + "]}"),
            "costs.json: has 100001 layers; 1 to 100000 are allowed");
}

TEST(CostTable, NamesTheFieldThatIsMissing) {
  const std::string where = "costs.json: layer 0 (\"mlp\") ";
  EXPECT_EQ(layer_error(R"("forward_s": 1)"), where + "has no input_bytes");
  EXPECT_EQ(layer_error(R"("input_bytes": 1)"), where + "has no output_bytes");
  EXPECT_EQ(layer_error(kSizes), where + "has no forward_s");
  EXPECT_EQ(layer_error(kSizes + R"(, "forward_s": 1)"), where + "has no backward_s");
  EXPECT_EQ(layer_error(R"("input_bytes": 1, "output_bytes": 1, )" + kTimes),
            where + "has no saved_bytes");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [{"name": "b", "saved_bytes": 8}])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 0 has no backward_s");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [{"name": "b", "backward_s": 8}])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 0 has no saved_bytes");
  EXPECT_EQ(table_error(R"("residents": [{"name": "state"}])"),
            "costs.json: resident 0 has no bytes");
  // Without a name the layer goes by its number.
  EXPECT_EQ(error_of(R"({"layers": [{)" + kUsual + R"(}, {"output_bytes": 3}]})"),
            "costs.json: layer 1 has no input_bytes");
}

TEST(CostTable, RefusesFieldsOfTheWrongSort) {
  const std::string where = "costs.json: layer 0 (\"mlp\") ";
  EXPECT_EQ(layer_error(R"("input_bytes": "4")"), where + "input_bytes is not a number");
  EXPECT_EQ(layer_error(kSizes + R"(, "forward_s": null)"), where + "forward_s is not a number");
  EXPECT_EQ(layer_error(kUsual + R"(, "kind": 3)"), where + "kind is not text");
  EXPECT_EQ(error_of(R"({"layers": [{"name": 3}]})"), "costs.json: layer 0 name is not text");
  EXPECT_EQ(layer_error(kUsual + R"(, "needs_output": 1)"),
            where + "needs_output is neither true nor false");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": {})"),
            where + "other_save_modes is not a list");
  EXPECT_EQ(table_error(R"("residents": 3)"), "costs.json: residents is not a list");
  EXPECT_EQ(table_error(R"("description": 3)"), "costs.json: description is not text");
  EXPECT_EQ(table_error(R"("loss": {"name": 3})"), "costs.json: loss name is not text");
}

TEST(CostTable, RefusesBytesThatAreNotWholeOrOutOfRange) {
  const std::string where = "costs.json: layer 0 (\"mlp\") ";
  const std::string whole = " is not a whole number of bytes, 0 or more";
  EXPECT_EQ(layer_error(R"("input_bytes": 4.5)"), where + "input_bytes = 4.5" + whole);
  EXPECT_EQ(layer_error(R"("input_bytes": -1)"), where + "input_bytes = -1" + whole);
  EXPECT_EQ(layer_error(R"("input_bytes": 1000000000000000001)"),
            where + "input_bytes = 1000000000000000001 is more than 1e15 bytes");
  EXPECT_EQ(layer_error(kUsual + R"(, "backward_extra_bytes": -0.5)"),
            where + "backward_extra_bytes = -0.5 is not a whole number of bytes");
  EXPECT_EQ(table_error(R"("loss": {"extra_bytes": -1})"),
            "costs.json: loss extra_bytes = -1" + whole);
  EXPECT_EQ(table_error(R"("target_bytes": -1)"), "costs.json: target_bytes = -1" + whole);
  EXPECT_EQ(table_error(R"("link_latency_s": -1)"),
            "costs.json: link_latency_s = -1 is not a time in seconds, 0 or more");
  EXPECT_EQ(table_error(R"("link_bytes_per_s": -1)"),
            "costs.json: link_bytes_per_s = -1 is not a number of bytes a second, 0 or more");
  EXPECT_EQ(table_error(R"("step_extra_bytes": 0.1)"),
            "costs.json: step_extra_bytes = 0.1" + whole);
  EXPECT_EQ(table_error(R"("residents": [{"bytes": -1}])"),
            "costs.json: resident 0 bytes = -1" + whole);
}

TEST(CostTable, RefusesTimesThatAreNegativeOrAbsurd) {
  const std::string where = "costs.json: layer 0 (\"mlp\") ";
  const std::string time = " is not a time in seconds, 0 or more";
  EXPECT_EQ(layer_error(kSizes + R"(, "forward_s": -1)"), where + "forward_s = -1" + time);
  EXPECT_EQ(layer_error(kSizes + R"(, "forward_s": 1e13)"),
            where + "forward_s = 10000000000000.0" + time);
  EXPECT_EQ(table_error(R"("clear_s": -1)"), "costs.json: clear_s = -1" + time);
  EXPECT_EQ(table_error(R"("loss": {"seconds": -1})"), "costs.json: loss seconds = -1" + time);
}

TEST(CostTable, RefusesAStateSmallerThanItsOutput) {
  EXPECT_EQ(layer_error(R"("input_bytes": 4, "output_bytes": 8, "saved_bytes": 7, )" + kTimes),
            "costs.json: layer 0 (\"mlp\") saved_bytes = 7 is less than output_bytes = 8; what is "
            "saved includes the output");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [
                {"name": "b", "backward_s": 1, "saved_bytes": 7}])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 0 saved_bytes = 7 is less than "
            "output_bytes = 8; what is saved includes the output");
}

TEST(CostTable, RefusesABackwardThatHoldsLessThanNothing) {
  const std::string text = layer_error(kUsual + R"(, "backward_extra_bytes": -5)");
  EXPECT_EQ(
      text,
      "costs.json: layer 0 (\"mlp\") backward_extra_bytes = -5 is below -4, the most that can "
      "be free before the input's gradient is made");
}

TEST(CostTable, RefusesSaveModesWithoutANameOfTheirOwn) {
  const auto other = [](const std::string& name) {
    return layer_error(kUsual + R"(, "other_save_modes": [{"name": ")" + name + "\"}]");
  };
  const std::string where = "costs.json: layer 0 (\"mlp\"), other save mode 0 has the name ";
  const std::string rule =
      "; each save mode has a name of its own: up to 64 letters, digits, - and _, not \"nothing\"";
  EXPECT_EQ(other("all"), where + "\"all\"" + rule);
  EXPECT_EQ(other(""), where + "\"\"" + rule);
  EXPECT_EQ(other("two words"), where + "\"two words\"" + rule);
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [
                {"name": "b", "backward_s": 1, "saved_bytes": 8}, {"name": "b"}])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 1 has the name \"b\"" + rule);
  EXPECT_EQ(
      layer_error(kUsual + R"(, "save_mode": "a b")"),
      "costs.json: layer 0 (\"mlp\") save mode \"a b\" is not a name: up to 64 letters, digits, - "
      "and _, not \"nothing\"");
}

TEST(CostTable, RefusesSizesThatOverflow) {
  EXPECT_EQ(layer_error(R"("input_bytes": 4, "output_bytes": 8, "saved_bytes": 2e15, )" + kTimes),
            "costs.json: layer 0 (\"mlp\") saved_bytes = 2e+15 is more than 1e15 bytes");
  std::string layers;
  for (int i = 0; i < 1100; ++i) {
    layers +=
        (i == 0 ? "{" : ", {") +
        (R"("input_bytes": 1, "output_bytes": 1, "saved_bytes": 1000000000000000, )" + kTimes) +
        "}";
  }
  EXPECT_EQ(error_of("{\"layers\": [" + layers + "]}"),
            "costs.json: the sizes add up to more than 1e18 bytes");
  std::string gradients;
  for (int i = 0; i < 600; ++i) {
    gradients += (i == 0 ? "{" : ", {") +
                 (R"("input_bytes": 1, "output_bytes": 1, "saved_bytes": 1, "weight_state_bytes": 1,
                     "input_gradient_bytes": 1000000000000000,
                     "output_gradient_bytes": 1000000000000000, )" +
                  kTimes) +
                 "}";
  }
  EXPECT_EQ(error_of("{\"layers\": [" + gradients + "]}"),
            "costs.json: the sizes add up to more than 1e18 bytes");
}

TEST(CostTable, RefusesLayersThatDoNotJoin) {
  EXPECT_EQ(error_of(R"({"layers": [{)" + kUsual + R"(}, {"name": "head", )" + kUsual + "}]}"),
            "costs.json: layer 1 (\"head\") has input_bytes = 4, but layer 0 has output_bytes = 8");
  const std::string same = R"("input_bytes": 4, "output_bytes": 4, "saved_bytes": 9, )" + kTimes;
  EXPECT_EQ(error_of(R"({"layers": [{"output_gradient_bytes": 6, )" + same +
                     R"(}, {"name": "head", )" + same + "}]}"),
            "costs.json: layer 1 (\"head\") has input_gradient_bytes = 4, but layer 0 has "
            "output_gradient_bytes = 6");
}

TEST(CostTable, AGradientMayBeOfAnotherSizeThanItsTensor) {
  const CostTable table = parse_costs(
      R"({"layers": [{"input_gradient_bytes": 0, "output_gradient_bytes": 11, )" + kUsual + "}]}",
      "costs.json");
  const LayerCost& layer = table.layers[0];
  EXPECT_EQ(layer.input_gradient(), 0);
  EXPECT_EQ(layer.output_gradient(), 11);
  EXPECT_EQ(layer.weight_work_bytes(), 4 + 11);
  const CostTable usual = parse_costs(R"({"layers": [{)" + kUsual + "}]}", "costs.json");
  EXPECT_EQ(usual.layers[0].input_gradient(), 4);
  EXPECT_EQ(usual.layers[0].output_gradient(), 8);
}

TEST(CostTable, RefusesCarriedElementsThatCannotBe) {
  const auto carried_error = [](const std::string& fields) {
    return error_of(R"({"layers": [{"input_bytes": 4, "output_bytes": 4, "saved_bytes": 9, )" +
                    kTimes + R"(}, {"input_bytes": 4, "output_bytes": 4, "saved_bytes": 9, )" +
                    kTimes + R"(}], "carried": [)" + fields + "]}");
  };
  const std::string where = "costs.json: carried element 0 ";
  EXPECT_EQ(carried_error("4"), where + "is not an object");
  EXPECT_EQ(carried_error(R"({"readers": [1]})"), where + "has no bytes");
  EXPECT_EQ(carried_error(R"({"bytes": 4})"), where + "has no readers");
  EXPECT_EQ(carried_error(R"({"bytes": -4, "readers": [1]})"),
            where + "bytes = -4 is not a whole number of bytes, 0 or more");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": [0]})"),
            where + "is read by no layer but the next; that is part of the layer's output");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "born": 0, "readers": [1]})"),
            where + "is read by no layer but the next; that is part of the layer's output");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": []})"),
            where + "is read by no layer but the next; that is part of the layer's output");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": [3]})"),
            where + "a reader = 3 is not the number of a layer, 0 to 2");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": ["loss"]})"),
            where + "a reader = \"loss\" is not the number of a layer, 0 to 2");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "born": 2, "readers": [1]})"),
            where + "born = 2 is not the number of a layer, 0 to 1");
  EXPECT_EQ(
      carried_error(R"({"bytes": 4, "born": 0, "readers": [2, 1]})"),
      where +
          "has the reader 1 after layer 2; readers come after the layer that makes it, and rise");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": [1], "gradient_bytes": 4})"),
            where + "comes with the batch (it has no born) and has gradient_bytes");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": [1], "gradientbytes": 4})"),
            where + "has the unknown key \"gradientbytes\"; did you mean gradient_bytes?");
  EXPECT_EQ(carried_error(R"({"bytes": 4, "readers": [1]}, {"name": "element 0"})"),
            "costs.json: carried element 1 has the name \"element 0\"; each has a name of its own");
}

TEST(CostTable, PointsOutAKeyThatItDoesNotKnow) {
  EXPECT_EQ(layer_error(kUsual + R"(, "saved_byts": 3)"),
            "costs.json: layer 0 (\"mlp\") has the unknown key \"saved_byts\"; did you mean "
            "saved_bytes?");
  EXPECT_EQ(table_error(R"("loss": {"colour": 3})"),
            "costs.json: loss has the unknown key \"colour\"; there is name, seconds, extra_bytes, "
            "parameter_bytes, gradient_bytes, optimizer_bytes");
  EXPECT_EQ(table_error(R"("residents": [{"bytes": 3, "byte": 3}])"),
            "costs.json: resident 0 has the unknown key \"byte\"; did you mean bytes?");
  EXPECT_EQ(layer_error(kUsual + R"(, "other_save_modes": [
                {"name": "b", "backward_s": 1, "saved_bytes": 8, "backwards": 1}])"),
            "costs.json: layer 0 (\"mlp\"), other save mode 0 has the unknown key \"backwards\"; "
            "did you mean backward_s?");
  const std::string text = table_error(R"("steps": 3)");
  EXPECT_EQ(text, "costs.json: has the unknown key \"steps\"; did you mean step_s?");
}

TEST(CostTable, KeepsErrorsToOneLineWhateverTheNames) {
  const std::string text = error_of(R"({"layers": [{"name": "two\nlines", "input_bytes": -1}]})");
  EXPECT_NE(text.find("layer 0 (\"two?lines\")"), std::string::npos) << text;
}

}  // namespace penstock::plan
