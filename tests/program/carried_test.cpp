// Elements that are carried along the chain: how files write them, and what verify demands.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/verify.h"

#include "support/error_text.h"

namespace penstock::program {

namespace {

using test::error_text;

// A mask of the batch; an element that layer 0 makes, layers 1 and 3 and the loss read.
const std::string kOneRank = R"(penstock-program 2
micro-batches 1
layer 0 "a" modes=all+output
layer 1 "b" modes=all
layer 2 "c" modes=all
layer 3 "d" modes=all
carried 0 "mask" readers=1,2
carried 1 "memory" born=0 readers=1,3,4 gradient=yes
rank 0 limit=none
given x0.0:4 t.0:1 i0.0:3
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0:8,i1.0:5 frees=- on=compute seconds=1 working=13
forward layer=1 mb=0 keep=all reads=x1.0,i0.0,i1.0 makes=x2.0:8,s1.0:1 frees=- on=compute seconds=1 working=9
forward layer=2 mb=0 keep=all reads=x2.0,i0.0 makes=x3.0:8,s2.0:1 frees=- on=compute seconds=1 working=9
forward layer=3 mb=0 keep=all reads=x3.0,i1.0 makes=x4.0:8,s3.0:1 frees=- on=compute seconds=1 working=9
loss mb=0 reads=x4.0,t.0,i1.0 makes=d4.0:8,u1.0:5 frees=x4.0,t.0 on=compute seconds=1 working=13
backward layer=3 mb=0 reads=x3.0,s3.0,d4.0,i1.0 makes=d3.0:8 updates=u1.0 frees=x3.0,s3.0,d4.0 on=compute seconds=1 working=8
backward-input layer=2 mb=0 reads=x2.0,s2.0,d3.0,i0.0 makes=d2.0:8,w2.0:2 frees=x2.0,s2.0,d3.0 on=compute seconds=1 working=10
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0,i0.0,i1.0 makes=d1.0:8 updates=u1.0 frees=x1.0,s1.0,d2.0,i1.0 on=compute seconds=1 working=8
backward-weight layer=2 mb=0 reads=w2.0,i0.0 makes=- frees=w2.0,i0.0 on=compute seconds=1 working=0
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0#2:8,s0.0:1,i1.0#2:5 frees=- on=compute seconds=1 working=14
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,x1.0#2,i1.0#2,u1.0 makes=- frees=x0.0,s0.0,d1.0,x1.0#2,i1.0#2,u1.0 on=compute seconds=1 working=0
step on=compute seconds=1 working=0
)";

// The element goes past layer 1 to layer 2, on the other rank; its gradient comes back.
const std::string kTwoRanks = R"(penstock-program 2
micro-batches 1
mesh pipeline=2
layer 0 "a" modes=all
layer 1 "b" modes=all
layer 2 "c" modes=all
carried 0 "memory" born=0 readers=1,2 gradient=yes
rank 0 limit=none
given x0.0:4
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8,s0.0:1,i0.0:5 frees=- on=compute seconds=1 working=14
forward layer=1 mb=0 keep=all reads=x1.0,i0.0 makes=x2.0:8,s1.0:1 frees=- on=compute seconds=1 working=9
send layer=2 mb=0 reads=x2.0 on=link:1 seconds=1 working=0 sends=8
send element=0 mb=0 reads=i0.0 on=link:1 seconds=1 working=0 sends=5
receive layer=2 mb=0 makes=d2.0:8 frees=x2.0 on=inlet:1 working=8
receive element=0 mb=0 makes=u0.0:5 on=inlet:1 working=5
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0,i0.0 makes=d1.0:8 updates=u0.0 frees=x1.0,s1.0,d2.0,i0.0 on=compute seconds=1 working=8
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,u0.0 makes=- frees=x0.0,s0.0,d1.0,u0.0 on=compute seconds=1 working=0
step on=compute seconds=1 working=0
rank 1 limit=none
given t.0:1
receive layer=2 mb=0 makes=x2.0:8 on=inlet:0 working=8
receive element=0 mb=0 makes=i0.0:5 on=inlet:0 working=5
forward layer=2 mb=0 keep=all reads=x2.0,i0.0 makes=x3.0:8,s2.0:1 frees=- on=compute seconds=1 working=9
loss mb=0 reads=x3.0,t.0 makes=d3.0:8 frees=x3.0,t.0 on=compute seconds=1 working=8
backward layer=2 mb=0 reads=x2.0,s2.0,d3.0,i0.0 makes=d2.0:8,u0.0:5 frees=x2.0,s2.0,d3.0,i0.0 on=compute seconds=1 working=13
send layer=2 mb=0 reads=d2.0 on=link:0 seconds=1 working=0 sends=8
send element=0 mb=0 reads=u0.0 on=link:0 seconds=1 working=0 sends=5
drop frees=d2.0,u0.0
step on=compute seconds=1 working=0
)";

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

std::string fault(const std::string& text) {
  const Verdict verdict = verify(parse_program(text, "p.txt"));
  return verdict.is_sound() ? "" : verdict.violation->text;
}
std::string fault_of_one(const std::string& part, const std::string& by) {
  return fault(replaced(kOneRank, part, by));
}
std::string fault_of_two(const std::string& part, const std::string& by) {
  return fault(replaced(kTwoRanks, part, by));
}
std::string form_error(const std::string& part, const std::string& by) {
  return error_text<ConfigError>([&] { parse_program(replaced(kTwoRanks, part, by), "p.txt"); });
}

}  // namespace

TEST(Carried, BothProgramsAreSoundAndReadBackInBothForms) {
  for (const std::string& text : {kOneRank, kTwoRanks}) {
    EXPECT_EQ(fault(text), "");
    const Program program = parse_program(text, "p.txt");
    EXPECT_EQ(format_program(program), text);
    EXPECT_EQ(parse_program_json(program_json(program), "p.json"), program);
  }
}

TEST(Carried, ReadersReadItAndTheirLayerMakesIt) {
  EXPECT_EQ(fault_of_one("reads=x2.0,i0.0 makes=x3", "reads=x2.0 makes=x3"),
            "instruction 2 (forward of c, micro-batch 0): does not read i0.0");
  EXPECT_EQ(fault_of_one("reads=x4.0,t.0,i1.0", "reads=x4.0,t.0"),
            "instruction 4 (loss, micro-batch 0): does not read i1.0");
  EXPECT_EQ(fault_of_one("s3.0,d4.0,i1.0 makes", "s3.0,d4.0 makes"),
            "instruction 5 (backward of d, micro-batch 0): does not read i1.0");
  EXPECT_EQ(fault_of_one("reads=x3.0,i1.0", "reads=x3.0,i1.0,i0.0"),
            "instruction 3 (forward of d, micro-batch 0): reads 3 values, not 2");
  // The other forward of layer 0 could not do for both: readers come before it.
  std::string text = replaced(kOneRank, "makes=x1.0:8,i1.0:5", "makes=x1.0:8");
  text = replaced(text, "i1.0#2:5", "i1.0:5");
  for (int i = 0; i < 2; ++i) {
    text = replaced(text, "i1.0#2", "i1.0");
  }
  EXPECT_EQ(fault(text), "instruction 0 (forward of a, micro-batch 0): does not make i1.0");
}

TEST(Carried, WhoNeedsTheOutputNeedsWhatTheSameForwardHasMade) {
  EXPECT_EQ(fault_of_one("x1.0#2,i1.0#2,u1.0 makes=- ", "x1.0#2,u1.0 makes=- "),
            "instruction 10 (backward of a, micro-batch 0): does not read i1.0");
  std::string text = replaced(kOneRank, "frees=x1.0,s1.0,d2.0,i1.0 ", "frees=x1.0,s1.0,d2.0 ");
  text = replaced(text, "x1.0#2,i1.0#2,u1.0 makes=- ", "x1.0#2,i1.0,u1.0 makes=- ");
  text = replaced(text, "x1.0#2,i1.0#2,u1.0 on", "x1.0#2,i1.0,i1.0#2,u1.0 on");
  EXPECT_EQ(fault(text),
            "instruction 10 (backward of a, micro-batch 0): reads i1.0, which another forward has "
            "made");
  // One that makes no output makes no element, where no output is needed.
  EXPECT_EQ(
      fault(replaced(replaced(replaced(kTwoRanks, "makes=x1.0:8,s0.0:1,i0.0:5", "makes=s0.0:1"),
                              "reads=x1.0,i0.0 makes",
                              "reads=x0.0,i0.0 makes"),
                     "x2.0:8,s1.0:1",
                     "x2.0:8,s1.0:1,x1.0:8,i0.0:5")),
      "rank 0, instruction 1 (forward of b, micro-batch 0): reads i0.0, which nothing has made "
      "yet");
}

TEST(Carried, TheWeightGradientReadsWhatTheInputGradientHasRead) {
  EXPECT_EQ(
      fault_of_one("reads=w2.0,i0.0 makes=- frees=w2.0,i0.0", "reads=w2.0 makes=- frees=w2.0,i0.0"),
      "instruction 8 (backward-weight of c, micro-batch 0): does not read i0.0, which its "
      "backward-input has read");
}

TEST(Carried, GradientsAreAddedFromTheLastReaderToTheFirst) {
  EXPECT_EQ(fault(replaced(replaced(kOneRank, "makes=d4.0:8,u1.0:5", "makes=d4.0:8"),
                           "makes=d3.0:8 updates=u1.0",
                           "makes=d3.0:8,u1.0:5")),
            "instruction 4 (loss, micro-batch 0): does not make u1.0");
  EXPECT_EQ(fault_of_one("makes=d3.0:8 updates=u1.0", "makes=d3.0:8"),
            "instruction 5 (backward of d, micro-batch 0): does not update u1.0");
  EXPECT_EQ(fault_of_one("makes=d3.0:8 updates=u1.0", "makes=d3.0:8 sets=u1.0"),
            "instruction 5 (backward of d, micro-batch 0): does not update u1.0");
  EXPECT_EQ(fault_of_one("makes=d3.0:8 updates=u1.0", "makes=d3.0:8,u1.0#2:5 updates=u1.0"),
            "instruction 5 (backward of d, micro-batch 0): makes 2 values, not 1");
  EXPECT_EQ(fault_of_one("i1.0#2,u1.0 makes=-", "i1.0#2 makes=-"),
            "instruction 10 (backward of a, micro-batch 0): does not read u1.0");
  EXPECT_EQ(fault_of_one("working=13\nbackward layer=3", "working=3\nbackward layer=3"),
            "instruction 4 (loss, micro-batch 0): works with 3 bytes, less than what it leaves "
            "behind");
}

TEST(Carried, WhatIsWithoutGradientHasNone) {
  EXPECT_EQ(fault_of_one("readers=1,3,4 gradient=yes", "readers=1,3,4"),
            "the program: u1.0 is a gradient of memory, which has none");
}

TEST(Carried, TheTableHasRules) {
  const std::string mask = "the program: the carried element \"mask\" ";
  const std::string memory = "the program: the carried element \"memory\" ";
  EXPECT_EQ(fault_of_one("\"mask\" readers=1,2", "\"mask\" readers=0"),
            mask + "is read by no layer but the next");
  EXPECT_EQ(fault_of_one("\"mask\" readers=1,2", "\"mask\" readers=-"),
            mask + "is read by no layer but the next");
  EXPECT_EQ(fault_of_one("born=0 readers=1,3,4", "born=2 readers=3"),
            memory + "is read by no layer but the next");
  EXPECT_EQ(fault_of_one("\"mask\" readers=1,2", "\"mask\" readers=1,2 gradient=yes"),
            mask + "comes with the batch, and has a gradient");
  EXPECT_EQ(fault_of_one("\"mask\"", "\"memory\""), memory + "has no name of its own");
  EXPECT_EQ(fault_of_one("\"mask\"", "\"\""),
            "the program: the carried element \"\" has no name of its own");
  EXPECT_EQ(fault_of_one("born=0 readers=1,3,4", "born=1 readers=1,3,4"),
            memory + "has readers that are out of order or out of range");
  Program program = parse_program(kOneRank, "p.txt");
  program.carried[1].readers = {3, 1, 4};
  EXPECT_EQ(verify(program).violation->text,
            memory + "has readers that are out of order or out of range");
  program.carried[1].readers = {1, 3, 5};
  EXPECT_EQ(verify(program).violation->text,
            memory + "has readers that are out of order or out of range");
  program.carried[1].born = 4;
  EXPECT_EQ(verify(program).violation->text, memory + "is made by layer 4, which is not there");
}

TEST(Carried, OnlyWhatTheBatchBringsIsGivenAndThatIsNotSent) {
  EXPECT_EQ(fault_of_one("\"mask\" readers=1,2", "\"mask\" born=0 readers=1,2"),
            "the program: i0.0 is given; only inputs and targets are there when a step begins");
  std::string text = replaced(kTwoRanks, "born=0 readers=1,2 gradient=yes", "readers=1,2");
  text = replaced(text, "given x0.0:4", "given x0.0:4 i0.0:5");
  text = replaced(text, "s0.0:1,i0.0:5", "s0.0:1");
  text = replaced(text, "receive element=0 mb=0 makes=u0.0:5 on=inlet:1 working=5\n", "");
  text = replaced(text, "updates=u0.0 ", "");
  text = replaced(text, "d1.0,u0.0 makes", "d1.0 makes");
  text = replaced(text, "d1.0,u0.0 on", "d1.0 on");
  text = replaced(text, "d2.0:8,u0.0:5", "d2.0:8");
  text =
      replaced(text, "send element=0 mb=0 reads=u0.0 on=link:0 seconds=1 working=0 sends=5\n", "");
  text = replaced(text, "d2.0,u0.0\n", "d2.0\n");
  EXPECT_EQ(
      fault(text),
      "rank 0, instruction 3 (send of memory, micro-batch 0, to rank 1): moves i0.0, which the "
      "batch brings to every rank");
}

TEST(Carried, MessagesHaveThePartsThatTheirReaderWants) {
  // The gradient goes out before its reader here has added to it.
  std::string text = kTwoRanks;
  text = replaced(text, "readers=1,2 gradient=yes", "readers=1,2,3 gradient=yes");
  text = replaced(text, "reads=x3.0,t.0 makes=d3.0:8 ", "reads=x3.0,t.0,i0.0 makes=d3.0:8,u0.0:5 ");
  text = replaced(
      text, "seconds=1 working=8\nbackward layer=2", "seconds=1 working=13\nbackward layer=2");
  text = replaced(text, "makes=d2.0:8,u0.0:5 frees", "makes=d2.0:8 updates=u0.0 frees");
  EXPECT_EQ(fault(text), "");
  const std::string send = "send element=0 mb=0 reads=u0.0 on=link:0 seconds=1 working=0 sends=5\n";
  text = replaced(text, send, "");
  text = replaced(text, "backward layer=2", send + "backward layer=2");
  EXPECT_EQ(
      fault(text),
      "rank 0, instruction 5 (receive of memory, micro-batch 0, from rank 1): what rank 1 sends "
      "has other parts than its reader here wants");
}

TEST(Carried, NobodySendsAGradientOnThatIsNotItsOwn) {
  EXPECT_EQ(
      fault_of_two("backward layer=1 mb=0",
                   "send element=0 mb=0 reads=u0.0 on=link:1 seconds=1 working=0 sends=5\n"
                   "backward layer=1 mb=0"),
      "rank 0, instruction 6 (send of memory, micro-batch 0, to rank 1): sends u0.0, which it has "
      "received and not added to");
}

TEST(Carried, MessagesNameALayerOrAnElement) {
  EXPECT_EQ(fault_of_two("send element=0 mb=0 reads=i0.0", "send layer=1 mb=0 reads=i0.0"),
            "rank 0, instruction 3 (send of b, micro-batch 0, to rank 1): moves i0.0, which is of "
            "another layer, element or micro-batch");
  const std::string neither = ": send needs the field layer, or element where the value is carried";
  EXPECT_EQ(form_error("send element=0 mb=0", "send mb=0"), "p.txt:13" + neither);
  EXPECT_EQ(form_error("send element=0 mb=0", "send element=0 layer=1 mb=0"), "p.txt:13" + neither);
}

TEST(Carried, ErrorsOfFilesNameThePlace) {
  EXPECT_EQ(form_error("send element=0", "send element=1"),
            "p.txt:13: element 1 is out of range; the program has 1");
  EXPECT_EQ(form_error("i0.0:5", "i1.0:5"),
            "p.txt:10: element 1 is out of range; the program has 1");
  EXPECT_EQ(form_error("carried 0", "carried 1"),
            "p.txt:7: carried \"1\" is out of order; the next is 0");
  EXPECT_EQ(form_error("born=0", "born=3"), "p.txt:7: layer 3 is out of range; the program has 3");
  EXPECT_EQ(form_error("born=0", "born=-1"),
            "p.txt:7: born \"-1\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(form_error("readers=1,2", "readers=2,1"),
            "p.txt:7: layer 1 comes after 2; the readers of an element count up");
  EXPECT_EQ(form_error("readers=1,2", "readers=1,4"),
            "p.txt:7: layer 4 is out of range; the program has 3");
  EXPECT_EQ(form_error("gradient=yes", "gradient=no"),
            "p.txt:7: unknown gradient \"no\" (known: yes)");
  const std::string example =
      " is not written as it should be; an example: carried 0 \"name\" born=0 readers=1,3 "
      "gradient=yes";
  EXPECT_EQ(form_error("readers=1,2 ", ""), "p.txt:7: readers" + example);
  EXPECT_EQ(form_error("gradient=yes", "bytes=5"), "p.txt:7: carried" + example);
  EXPECT_EQ(form_error("carried 0 \"memory\"", "carried 0 memory"), "p.txt:7: carried" + example);
  const std::string json = program_json(parse_program(kTwoRanks, "p.txt"));
  const auto json_error = [&](const std::string& part, const std::string& by) {
    return error_text<ConfigError>([&] { parse_program_json(replaced(json, part, by), "p.json"); });
  };
  EXPECT_EQ(
      json_error("\"born\":0", "\"birth\":0"),
      "p.json: carried element 0: unknown key of a carried element \"birth\" (known: name, born, "
      "readers, gradient)");
  EXPECT_EQ(json_error("\"readers\":[1,2]", "\"readers\":1"),
            "p.json: carried element 0: readers is a JSON number; it should be an array");
  EXPECT_EQ(json_error("\"gradient\":true", "\"gradient\":1"),
            "p.json: carried element 0: gradient is a JSON number; it should be true or false");
}

}  // namespace penstock::program
