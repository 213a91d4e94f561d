#include "penstock/model/edges.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

#include "support/error_text.h"

namespace penstock::model {

namespace {

using Strings = std::vector<std::string>;

// Layers are called first, second and so on, the loss is called loss.
Edges edges_of(std::vector<Names> layers, Names loss = {}, const Strings& targets = {"targets"}) {
  const Strings numbers{"first", "second", "third", "fourth"};
  Strings names(numbers.begin(), numbers.begin() + static_cast<int64_t>(layers.size()));
  names.push_back("loss");
  layers.push_back(std::move(loss));
  return make_edges(layers, targets, names);
}

std::string refusal(const std::vector<Names>& layers, const Names& loss = {}) {
  return test::error_text<ConfigError>([&] { edges_of(layers, loss); });
}

Place in_tuple(int32_t position) {
  return {.position = position};
}
Place beside(int32_t carried) {
  return {.carried = carried};
}

using Places = std::vector<Place>;

void expect_carried(const CarriedName& found, const CarriedName& expected) {
  EXPECT_EQ(found.name, expected.name);
  EXPECT_EQ(found.born, expected.born) << found.name;
  EXPECT_EQ(found.output, expected.output) << found.name;
  EXPECT_EQ(found.readers, expected.readers) << found.name;
}

// A mask for all layers and the loss, tokens for the first alone, a skip from the first to the third.
Edges with_everything() {
  return edges_of({{.reads = {"tokens", "mask"}, .writes = {"x", "skip"}},
                   {.reads = {"mask", "x"}, .writes = {"x"}},
                   {.reads = {"x", "skip", "mask"}, .writes = {"logits"}}},
                  {.reads = {"logits", "mask"}},
                  {"labels", "weights"});
}

}  // namespace

TEST(Edges, WithoutNamesAreOneTensorFromLayerToLayer) {
  const Edges edges = edges_of({{}, {}, {}});
  const std::vector<Places> inputs(4, {in_tuple(0)}), outputs(3, {in_tuple(0)});
  EXPECT_EQ(edges.inputs, inputs);
  EXPECT_EQ(edges.outputs, outputs);
  EXPECT_TRUE(edges.carried.empty());
  EXPECT_EQ(edges.first_fields, Strings{"inputs"});
  EXPECT_EQ(edges.target_fields, Strings{"targets"});
  EXPECT_EQ(edges.widths, (std::vector<int32_t>{1, 1, 1, 1}));
}

TEST(Edges, WithoutNamesALayerReadsAllThatTheOneBeforeMakes) {
  const Edges edges =
      edges_of({{.reads = {"a", "b"}, .writes = {"c", "d"}}, {.writes = {"e", "f"}}});
  EXPECT_EQ(edges.inputs[1], (Places{in_tuple(0), in_tuple(1)}));
  EXPECT_EQ(edges.inputs[2], (Places{in_tuple(0), in_tuple(1)})) << "the loss";
  EXPECT_EQ(edges.first_fields, (Strings{"a", "b"}));
  EXPECT_EQ(edges.widths, (std::vector<int32_t>{2, 2, 2}));
  EXPECT_TRUE(edges.carried.empty());
}

// The tuple has the order in which things are made; a layer takes them in its own.
TEST(Edges, LayersTakeATupleInTheirOwnOrder) {
  const Edges edges = edges_of({{.writes = {"a", "b", "c"}}, {.reads = {"c", "a", "b"}}});
  EXPECT_EQ(edges.outputs[0], (Places{in_tuple(0), in_tuple(1), in_tuple(2)}));
  EXPECT_EQ(edges.inputs[1], (Places{in_tuple(2), in_tuple(0), in_tuple(1)}));
}

TEST(Edges, CarryWhatMoreThanTheNextLayerReads) {
  const Edges edges = with_everything();
  ASSERT_EQ(edges.carried.size(), 2U);
  expect_carried(edges.carried[0], {"mask", -1, -1, {0, 1, 2, 3}});
  expect_carried(edges.carried[1], {"skip", 0, 1, {2}});
  EXPECT_EQ(edges.inputs,
            (std::vector<Places>{{in_tuple(0), beside(0)},
                                 {beside(0), in_tuple(0)},
                                 {in_tuple(0), beside(1), beside(0)},
                                 {in_tuple(0), beside(0)}}));
  EXPECT_EQ(edges.outputs,
            (std::vector<Places>{{in_tuple(0), beside(1)}, {in_tuple(0)}, {in_tuple(0)}}));
  EXPECT_EQ(edges.first_fields, Strings{"tokens"});
  EXPECT_EQ(edges.target_fields, (Strings{"labels", "weights"}));
  EXPECT_EQ(edges.widths, (std::vector<int32_t>{1, 1, 1, 1}));
}

// Not the first layer: a tuple between two layers has what the former makes, and a field nobody makes.
TEST(Edges, CarryAFieldThatAnotherThanTheFirstLayerReads) {
  const Edges edges = edges_of({{}, {.reads = {"x", "mask"}}});
  ASSERT_EQ(edges.carried.size(), 1U);
  expect_carried(edges.carried[0], {"mask", -1, -1, {1}});
  EXPECT_EQ(edges.inputs[1], (Places{in_tuple(0), beside(0)}));
}

TEST(Edges, ATupleMayBeEmpty) {
  const Edges edges =
      edges_of({{.writes = {"a"}}, {.reads = {"field"}, .writes = {"b"}}, {.reads = {"b", "a"}}});
  EXPECT_EQ(edges.widths, (std::vector<int32_t>{1, 0, 1, 1}));
  ASSERT_EQ(edges.carried.size(), 2U);
  expect_carried(edges.carried[0], {"a", 0, 0, {2}});
  expect_carried(edges.carried[1], {"field", -1, -1, {1}});
}

TEST(Edges, ReadTheNewestOfAName) {
  const Edges edges = edges_of({{.reads = {"inputs"}, .writes = {"x"}},
                                {.reads = {"x"}, .writes = {"inputs", "y"}},
                                {.reads = {"inputs", "y"}}});
  EXPECT_TRUE(edges.carried.empty()) << "each of the two inputs is read by one layer, the next";
  EXPECT_EQ(edges.first_fields, Strings{"inputs"});
  EXPECT_EQ(edges.widths, (std::vector<int32_t>{1, 1, 2, 1}));

  // Made again while the old one is carried: they are two.
  const Edges two = edges_of({{.writes = {"a"}},
                              {.reads = {"a"}, .writes = {"b"}},
                              {.reads = {"a", "b"}, .writes = {"a"}},
                              {.reads = {"a"}}});
  ASSERT_EQ(two.carried.size(), 1U);
  expect_carried(two.carried[0], {"a", 0, 0, {1, 2}});
  EXPECT_EQ(two.inputs[3], Places{in_tuple(0)});
}

TEST(Edges, TargetsAreFieldsWhateverLayersMake) {
  const Edges edges = edges_of({{}, {}}, {}, {"x", "inputs"});
  EXPECT_EQ(edges.target_fields, (Strings{"x", "inputs"}));
  EXPECT_TRUE(edges.carried.empty());
}

TEST(Edges, SayWhichFieldsARankHasToLoad) {
  const Edges edges = with_everything();
  EXPECT_EQ(edges.fields_of({0, 1, 2}, true), (Strings{"tokens", "mask", "labels", "weights"}));
  EXPECT_EQ(edges.fields_of({0}, false), (Strings{"tokens", "mask"}));
  EXPECT_EQ(edges.fields_of({1, 2}, false), Strings{"mask"});
  EXPECT_EQ(edges.fields_of({2}, true), (Strings{"mask", "labels", "weights"}));
  EXPECT_EQ(edges.fields_of({}, true), (Strings{"mask", "labels", "weights"})) << "the loss alone";
  EXPECT_EQ(edges.fields_of({}, false), Strings{});

  const Edges plain = edges_of({{}, {}, {}});
  EXPECT_EQ(plain.fields_of({0, 2}, false), Strings{"inputs"});
  EXPECT_EQ(plain.fields_of({1}, false), Strings{}) << "nothing to load";
  EXPECT_EQ(plain.fields_of({1, 2}, true), Strings{"targets"});
}

TEST(Edges, LoadAFieldOnceThatIsInputAndTarget) {
  const Edges edges = edges_of({{}, {.reads = {"x", "mask"}}}, {}, {"inputs", "mask"});
  EXPECT_EQ(edges.fields_of({0, 1}, true), (Strings{"inputs", "mask"}));
  EXPECT_EQ(edges.fields_of({1}, true), (Strings{"mask", "inputs"}));
}

TEST(Edges, HaveGradientsOfWhatLayersMakeAndNoneOfFields) {
  const Edges edges = with_everything();
  EXPECT_FALSE(edges.has_gradient(0, 0)) << "tokens";
  EXPECT_FALSE(edges.has_gradient(0, 1)) << "mask";
  EXPECT_FALSE(edges.has_gradient(1, 0)) << "mask";
  EXPECT_TRUE(edges.has_gradient(1, 1)) << "x";
  EXPECT_TRUE(edges.has_gradient(2, 0)) << "x";
  EXPECT_TRUE(edges.has_gradient(2, 1)) << "skip";
  EXPECT_FALSE(edges.has_gradient(2, 2)) << "mask";
  EXPECT_TRUE(edges.has_gradient(3, 0)) << "logits, for the loss";
  EXPECT_FALSE(edges.has_gradient(3, 1)) << "mask, for the loss";
}

TEST(Edges, RefuseANameThatIsReadTwice) {
  EXPECT_EQ(refusal({{}, {.reads = {"x", "x"}}}), "layer second reads \"x\" twice");
  EXPECT_EQ(refusal({{}}, {.reads = {"x", "x"}}), "layer loss reads \"x\" twice");
}

TEST(Edges, RefuseANameThatIsMadeTwice) {
  EXPECT_EQ(refusal({{.writes = {"a", "b", "a"}}, {}}), "layer first makes \"a\" twice");
}

TEST(Edges, RefuseWhatIsMadeOnlyLater) {
  EXPECT_EQ(refusal({{.reads = {"late"}}, {}, {.writes = {"late"}}}),
            "layer first reads \"late\", which is made only by layer third, after it");
  EXPECT_EQ(refusal({{.reads = {"x"}, .writes = {"first"}}, {.reads = {"first"}}}),
            "layer first reads \"x\", which is made only by layer second, after it");
}

TEST(Edges, RefuseWhatNobodyReads) {
  EXPECT_EQ(refusal({{.writes = {"x", "spare"}}, {.reads = {"x"}}}),
            "layer first makes \"spare\", which neither a later layer nor the loss reads: let one "
            "read it, or return fewer");
  // Made again before anybody has read it.
  EXPECT_EQ(refusal({{}, {.reads = {"inputs"}}}),
            "layer first makes \"x\", which neither a later layer nor the loss reads: let one read "
            "it, or return fewer; without "
            ".writes a layer makes \"x\"");
  EXPECT_EQ(refusal({{}, {.writes = {"logits"}}}, {.reads = {"field"}}),
            "layer second makes \"logits\", which neither a later layer nor the loss reads: let "
            "one read it, or return fewer");
}

}  // namespace penstock::model
