#include "penstock/report/value_legend.h"

#include <set>

#include <gtest/gtest.h>

#include "report/pipeline_example.h"

namespace penstock::report {
namespace {

using program::ValueKind;

TEST(ValueLegend, EachKindHasAnExampleOfItsLetterAndAMeaning) {
  program::Program program;
  program.ranks.resize(1);
  for (size_t kind = 0; kind < program::kNumValueKinds; ++kind) {
    program.ranks[0].values.push_back({.kind = static_cast<ValueKind>(kind)});
  }
  const std::vector<NameMeaning> all = name_meanings(program, false);
  ASSERT_EQ(all.size(), program::kNumValueKinds + 1);
  std::set<std::string> names;
  for (size_t kind = 0; kind < program::kNumValueKinds; ++kind) {
    const NameMeaning& one = all[kind + 1];
    EXPECT_EQ(one.name[0], program::kValueKinds[kind].letter);
    EXPECT_FALSE(one.meaning.empty());
    EXPECT_LE(one.meaning.size(), 48u) << one.meaning;  // the width of a column
    EXPECT_FALSE(value_noun(static_cast<ValueKind>(kind)).empty());
    names.insert(one.name);
  }
  EXPECT_EQ(names.size(), program::kNumValueKinds);
  for (const char* name : {"x3.0", "t.0", "v.2", "m3", "b3.7", "A3", "k0", "q.0", "i3.0"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(ValueLegend, HasTheKindsOfTheProgramAlone) {
  const auto names_of = [](bool has_bytes) {
    std::string names;
    for (const NameMeaning& one : name_meanings(pipeline_program(2), has_bytes)) {
      names += one.name + " ";
    }
    return names;
  };
  EXPECT_EQ(names_of(false), "3.0 x3.0 s3.0 d3.0 t.0 w3.0 k0 q.0 z.0 n.0 ");
  EXPECT_EQ(names_of(true), "3.0 x3.0 s3.0 d3.0 t.0 w3.0 k0 ");
}

TEST(ValueLegend, ANumberInABarIsALayerOrAUnit) {
  program::Program program;
  EXPECT_EQ(name_meanings(program, false)[0].name, "3");
  EXPECT_EQ(name_meanings(program, false)[0].meaning, "in a bar: layer 3");
  program.units.resize(1);
  EXPECT_EQ(name_meanings(program, false)[0].meaning, "in a bar: layer 3 (or unit 3)");
}

}  // namespace
}  // namespace penstock::report
