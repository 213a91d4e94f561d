// The state of layers in programs: what verify demands of it.
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/verify.h"

namespace penstock::program {

namespace {

// Layer 0 has state; its forward is recomputed. Both replicas do the same.
const std::string kHead = R"(penstock-program 2
micro-batches 1
mesh data=2
group 0 "data" axes=data
group 1 "all" axes=data,pipeline,tensor,context
group 2 "" axes=-
layer 0 "a" modes=all
layer 1 "b" modes=all
unit 0 "both" layers=0,1
)";
const std::string kHold = "hold m0:4 a0:4 o0:8 A0:6\n";
const std::string kMerge = "merge group=0 updates=A0 on=line:0 seconds=1 working=6 sends=3\n";
const std::string kAgain =
    "forward layer=0 mb=0 keep=all reads=x0.0,m0,A0 makes=x1.0#2:4,s0.0:1 frees=- on=compute "
    "seconds=1 working=5\n";
const std::string kStep =
    "step units=0 reads=a0,n.0 updates=m0,o0,A0 frees=n.0 on=compute seconds=1 working=0\n";
const std::string kList =
    "given x0.0:4 t.0:1\n"
    "forward layer=0 mb=0 keep=nothing reads=x0.0,m0 makes=x1.0:4 updates=A0 frees=- on=compute "
    "seconds=1 working=4\n"
    "forward layer=1 mb=0 keep=all reads=x1.0,m0 makes=x2.0:4,s1.0:1 frees=- on=compute seconds=1 "
    "working=5\n"
    "loss mb=0 reads=x2.0,t.0 makes=d2.0:4 frees=x2.0,t.0 on=compute seconds=1 working=4\n"
    "backward layer=1 mb=0 reads=x1.0,s1.0,d2.0,m0 makes=d1.0:4 sets=a0 frees=x1.0,s1.0,d2.0 "
    "on=compute seconds=1 working=4\n" +
    kAgain +
    "backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,m0 makes=- sets=a0 frees=x0.0,s0.0,d1.0,x1.0#2 "
    "on=compute seconds=1 working=0\n"
    "reduce units=0 group=0 to=all updates=a0 on=line:0 seconds=1 working=0 sends=4\n" +
    kMerge +
    "squares reads=a0 makes=q.0:0 on=compute seconds=1 working=0\n"
    "gather group=1 reads=q.0 makes=z.0:0 frees=q.0 on=compute seconds=1 working=0 sends=16\n"
    "decide reads=z.0 makes=n.0:0 frees=z.0 on=compute seconds=1 working=0\n" +
    kStep;

std::string rank_text(int rank, const std::string& list) {
  return cat("rank ", rank, " limit=none\n", kHold, list);
}

std::string fault(const std::string& text) {
  const Verdict verdict = verify(parse_program(text, "p.txt"));
  return verdict.is_sound() ? "" : verdict.violation->text;
}

// Of both ranks, with one part of the list replaced.
std::string fault_with(const std::string& part, const std::string& other) {
  std::string list = kHold + kList;
  const size_t at = list.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  list.replace(at, part.size(), other);
  return fault(cat(kHead, "rank 0 limit=none\n", list, "rank 1 limit=none\n", list));
}

void expect_refused(const std::string& part, const std::string& other, const std::string& why) {
  const std::string text = fault_with(part, other);
  EXPECT_TRUE(text.ends_with(why)) << text;
}

}  // namespace

TEST(LayerState, IsUpdatedByTheFirstForwardMergedAndTakenOver) {
  const std::string text = cat(kHead, rank_text(0, kList), rank_text(1, kList));
  EXPECT_EQ(fault(text), "");
  const Program program = parse_program(text, "p.txt");
  EXPECT_EQ(format_program(program), text);
  EXPECT_EQ(parse_program_json(program_json(program), "p.json"), program);
  // In the loss: what is held; x0, t, x1, x2 and s1; and the gradient that it makes.
  EXPECT_EQ(verify(program).peaks[0].bytes, 4 + 4 + 8 + 6 + (4 + 1 + 4 + 4 + 1) + 4);
  EXPECT_EQ(held_by_name(program.ranks[0], Tier::Device).back().name, "state of layers");
}

TEST(LayerState, IsRefusedWhereForwardsLeaveOtherTraces) {
  expect_refused("makes=x1.0:4 updates=A0", "makes=x1.0:4", "does not update A0");
  expect_refused("reads=x0.0,m0,A0 makes=x1.0#2", "reads=x0.0,m0 makes=x1.0#2", "does not read A0");
  expect_refused("reads=x0.0,m0,A0 makes=x1.0#2:4,s0.0:1",
                 "reads=x0.0,m0 makes=x1.0#2:4,s0.0:1 updates=A0",
                 "does not read A0");
  expect_refused(
      "reads=x1.0,m0 makes=x2.0", "reads=x1.0,m0,A0 makes=x2.0", "reads 3 values, not 2");
}

TEST(LayerState, IsRefusedWhereReplicasDoNotMergeItOnce) {
  expect_refused(kMerge, "", "replicas have not merged A0");
  expect_refused(kMerge, kMerge + kMerge, "merges the state of layers a second time");
  expect_refused("merge group=0 updates=A0", "merge group=0", "does not update A0");
  expect_refused(
      "merge group=0 updates=A0", "merge group=0 reads=a0 updates=A0", "reads 1 values, not 0");
  expect_refused("merge group=0 updates=A0 on=line:0",
                 "merge group=2 updates=A0 on=line:2",
                 "it takes the ranks of data");
  expect_refused("given x0.0:4 t.0:1\n",
                 "given x0.0:4 t.0:1\n" + kMerge,
                 "changes A0 after replicas have merged it");
  expect_refused(kStep, kStep + kMerge, "comes after the step");
}

TEST(LayerState, IsRefusedWhereAStepDoesNotTakeItOver) {
  expect_refused("updates=m0,o0,A0", "updates=m0,o0", "does not update A0");
}

TEST(LayerState, IsRefusedWhereTheRankHasNoSuchLayer) {
  expect_refused("A0:6", "A0:6 A1:6", "does not update A1");
  expect_refused("A0:6", "A0:6 A2:6", "the rank holds the state of layer 2, which is not there");
  const std::string grouped = cat(
      "penstock-program 2\nmicro-batches 1\ngroup 0 \"data\" axes=data\nlayer 0 \"a\" modes=all\n"
      "rank 0 limit=none\nhold A0:6\n",
      kMerge);
  EXPECT_TRUE(fault(grouped).ends_with("there are no replicas")) << fault(grouped);
}

TEST(LayerState, IsRefusedWhereReplicasHoldOthers) {
  std::string other = kHold + kList;
  other.replace(other.find("A0:6"), 4, "A0:7");
  const std::string text = cat(kHead, rank_text(0, kList), "rank 1 limit=none\n", other);
  EXPECT_NE(fault(text).find("is of 7 bytes where"), std::string::npos) << fault(text);
}

}  // namespace penstock::program
