// Every refusal of the text form, with its words.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/program/program_text.h"

#include "program/asynchronous_program.h"
#include "program/everything_program.h"
#include "program/replicated_program.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::program {
namespace {

std::string text_error(std::string_view text) {
  return test::error_text<ConfigError>([&] { parse_program(text, "p.txt"); });
}

// The error of a text with one part put in place of another.
std::string error_with(std::string text, const std::string& part, const std::string& replacement) {
  EXPECT_NE(text.find(part), std::string::npos) << part;
  text.replace(text.find(part), part.size(), replacement);
  return text_error(text);
}

const std::string kStart = "penstock-program 2\nmicro-batches 2\n";
const std::string kHead = kStart +
                          "layer 0 \"a\" modes=all,few+output\n"
                          "layer 1 \"b\" modes=all\n"
                          "rank 0 limit=none\n";
const std::string kStep = "step on=compute seconds=0 working=0\n";

// The error of one more line, the sixth.
std::string line_error(const std::string& line) {
  return text_error(kHead + line + "\n");
}

// A well-formed forward with one word put in place of another.
std::string forward_error(const std::string& word, const std::string& replacement) {
  return error_with(kHead + "given x0.0:4\n" +
                        "forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8 frees=- on=compute "
                        "seconds=1 working=9\n",
                    word,
                    replacement);
}

// Likewise of a program with units and groups: the tenth line, or another.
std::string unit_error(const std::string& part, const std::string& replacement) {
  return error_with(
      kStart +
          "mesh data=2\n"
          "shard optimizer\n"
          "group 0 \"data\" axes=data\n"
          "layer 0 \"a\" modes=all\n"
          "unit 0 \"a\" layers=0,1 elements=8\n"
          "rank 0 limit=none\n"
          "hold m0:4 a0:4 o0:8@0-4\n"
          "reduce units=0 group=0 to=scatter updates=a0 on=line:0 seconds=1 working=0\n"
          "rank 1 limit=none\n",
      part,
      replacement);
}

const std::string kForm = " is not written as it should be; an example: ";
const std::string kPlace =
    " is out of place; the order is penstock-program, micro-batches, updates (of an asynchronous "
    "pipeline), mesh (of several ranks), shard, groups, layers, carried elements, units, and "
    "for each rank: rank, held values, given values, instructions";

TEST(ProgramTextError, FileBeginsWithItsVersion) {
  const char* no_program =
      "p.txt:2: the file does not begin with penstock-program 2; it is no program";
  EXPECT_EQ(text_error("\nforward layer=0\n"), no_program);
  EXPECT_EQ(text_error("\nELF\n"), no_program);
  // What an older Penstock wrote is refused by its version, whatever it says.
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 1\nresident 5 \"weights\"\n"),
            "p.txt:1: version \"1\"; this Penstock reads version 2");
  EXPECT_EQ(text_error("penstock-program 3\n"),
            "p.txt:1: version \"3\"; this Penstock reads version 2");
  EXPECT_EQ(text_error("penstock-program\n"),
            "p.txt:1: penstock-program" + kForm + "penstock-program 2");
}

TEST(ProgramTextError, FileThatEndsEarly) {
  const char* rest =
      "the program ends here; it begins with the lines penstock-program 2 and micro-batches N";
  EXPECT_EQ(text_error(""), cat("p.txt:1: ", rest));
  EXPECT_EQ(text_error("penstock-program 2\n"), cat("p.txt:2: ", rest));
}

TEST(ProgramTextError, UnknownWordsComeWithTheNearestOne) {
  const std::string known =
      " (known: micro-batches, updates, mesh, shard, group, layer, carried, unit, rank, hold, "
      "given, "
      "forward, "
      "loss, backward, backward-input, backward-weight, send, receive, drop, stash, gather, "
      "reduce, "
      "add, sketch, squares, decide, prepare, exchange, merge, step)";
  EXPECT_EQ(line_error("fordward layer=0"),
            "p.txt:6: unknown word \"fordward\"; did you mean forward?" + known);
  EXPECT_EQ(line_error("hld m0:5"), "p.txt:6: unknown word \"hld\"; did you mean hold?" + known);
  EXPECT_EQ(line_error("clear on=compute seconds=0 working=0"),
            "p.txt:6: unknown word \"clear\"" + known);
  EXPECT_EQ(line_error(std::string(1000, 'f')),
            cat("p.txt:6: unknown word \"", std::string(100, 'f'), "...\"", known));
  EXPECT_EQ(line_error("\"forward\" layer=0"),
            "p.txt:6: unknown word \"\"forward\"\"; did you mean forward?" + known);
}

TEST(ProgramTextError, UnknownFieldsComeWithTheNearestOne) {
  const auto unknown =
      [](const std::string& op, const std::string& name, const std::string& known) {
        return cat("p.txt:6: unknown field of ", op, " \"", name, "\"", " (known: ", known, ")");
      };
  EXPECT_EQ(
      forward_error("layer=", "lyer="),
      "p.txt:7: unknown field of forward \"lyer\"; did you mean layer? (known: layer, mb, keep, "
      "reads, makes, sets, updates, frees, on, seconds, working)");
  EXPECT_EQ(
      line_error("squares layer=0 on=compute seconds=0 working=0"),
      unknown("squares", "layer", "reads, makes, sets, updates, frees, on, seconds, working"));
  EXPECT_EQ(
      line_error("loss keep=all"),
      unknown("loss", "keep", "mb, reads, makes, sets, updates, frees, on, seconds, working"));
  EXPECT_EQ(line_error("gather to=all"),
            unknown("gather",
                    "to",
                    "units, mb, group, reads, makes, sets, updates, frees, on, seconds, working, "
                    "sends"));
  EXPECT_EQ(
      line_error("reduce layer=0"),
      unknown("reduce",
              "layer",
              "units, mb, group, to, reads, makes, sets, updates, frees, on, seconds, working, "
              "sends"));
  EXPECT_EQ(
      line_error("add mb=0"),
      unknown(
          "add", "mb", "layer, units, reads, makes, sets, updates, frees, on, seconds, working"));
  EXPECT_EQ(
      line_error("step group=0"),
      unknown("step", "group", "units, reads, makes, sets, updates, frees, on, seconds, working"));
  EXPECT_EQ(
      line_error("send makes=x1.0:4"),
      unknown("send", "makes", "layer, element, mb, reads, frees, on, seconds, working, sends"));
  EXPECT_EQ(line_error("receive sends=4"),
            unknown("receive", "sends", "layer, element, mb, makes, frees, on, working"));
  EXPECT_EQ(line_error("drop x0.0"), "p.txt:6: word 2 is no field; fields are written name=value");
  EXPECT_EQ(line_error("drop \"frees=x0.0\""),
            "p.txt:6: word 2 is no field; fields are written name=value");
}

TEST(ProgramTextError, FieldsStandOnce) {
  EXPECT_EQ(forward_error("mb=0 ", ""), "p.txt:7: field mb is missing; forward needs it");
  EXPECT_EQ(forward_error("reads=x0.0 ", ""), "p.txt:7: field reads is missing; forward needs it");
  EXPECT_EQ(line_error("drop"), "p.txt:6: field frees is missing; drop needs it");
  EXPECT_EQ(line_error("step on=compute working=0"),
            "p.txt:6: field seconds is missing; step needs it");
  EXPECT_EQ(line_error("squares on=compute seconds=0"),
            "p.txt:6: field working is missing; squares needs it");
  EXPECT_EQ(line_error("decide seconds=0 working=0"),
            "p.txt:6: field on is missing; decide needs it");
  EXPECT_EQ(line_error("gather on=compute seconds=0 working=0"),
            "p.txt:6: field group is missing; gather needs it");
  EXPECT_EQ(unit_error("units=0 ", ""), "p.txt:10: field units is missing; reduce needs it");
  EXPECT_EQ(unit_error("to=scatter ", ""), "p.txt:10: field to is missing; reduce needs it");
  EXPECT_EQ(line_error("add units=0"), "p.txt:6: field layer is missing; add needs it");
  EXPECT_EQ(line_error("add layer=0"), "p.txt:6: field units is missing; add needs it");
  EXPECT_EQ(line_error("stash on=compute"), "p.txt:6: field makes is missing; stash needs it");
  EXPECT_EQ(forward_error("mb=0", "layer=0"),
            "p.txt:7: field layer is repeated; it is allowed once");
}

TEST(ProgramTextError, NumbersOutOfRange) {
  const std::string bytes = " is no whole number from 0 to 9223372036854775807";
  const std::string count = " is no whole number from 0 to 2147483647";
  EXPECT_EQ(forward_error("working=9", "working=-9"), "p.txt:7: working \"-9\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working=9223372036854775808"),
            "p.txt:7: working \"9223372036854775808\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working=1.5"), "p.txt:7: working \"1.5\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working="), "p.txt:7: working \"\"" + bytes);
  EXPECT_EQ(unit_error("working=0", "working=0 sends=-1"), "p.txt:10: sends \"-1\"" + bytes);
  EXPECT_EQ(forward_error("x1.0:8", "x1.0:-8"), "p.txt:7: bytes of x1.0 \"-8\"" + bytes);
  EXPECT_EQ(forward_error("x1.0:8", "x1.0:8kB"), "p.txt:7: bytes of x1.0 \"8kB\"" + bytes);
  EXPECT_EQ(line_error("hold k0:-1 \"a\""), "p.txt:6: bytes of k0 \"-1\"" + bytes);
  EXPECT_EQ(unit_error("elements=8", "elements=-8"), "p.txt:7: elements \"-8\"" + bytes);
  EXPECT_EQ(forward_error("layer=0", "layer=-1"), "p.txt:7: layer \"-1\"" + count);
  EXPECT_EQ(forward_error("mb=0", "mb=one"), "p.txt:7: mb \"one\"" + count);
  EXPECT_EQ(forward_error("mb=0", "mb=4294967296"), "p.txt:7: mb \"4294967296\"" + count);
  EXPECT_EQ(unit_error("units=0 ", "units=a "), "p.txt:10: unit \"a\"" + count);
  EXPECT_EQ(unit_error("group=0 ", "group=-1 "), "p.txt:10: group \"-1\"" + count);
  const std::string from_one = " is no whole number from 1 to 9223372036854775807";
  EXPECT_EQ(line_error("rank 1 limit=0"), "p.txt:6: limit \"0\"" + from_one);
  EXPECT_EQ(line_error("rank 1 limit=none host=0"), "p.txt:6: host \"0\"" + from_one);
  EXPECT_EQ(line_error("rank 1 limit=none disk=-5"), "p.txt:6: disk \"-5\"" + from_one);
  EXPECT_EQ(text_error("penstock-program 2\nmicro-batches 0\n"),
            "p.txt:2: micro-batches \"0\" is no whole number from 1 to 2147483647");
}

TEST(ProgramTextError, SecondsAreFiniteAndNotNegative) {
  for (const std::string seconds :
       {"-1", "nan", "inf", "-inf", "1e999", "1e-999", "0x1", "", "1s"}) {
    EXPECT_EQ(forward_error("seconds=1", "seconds=" + seconds),
              cat("p.txt:7: seconds \"", seconds, "\" is no number from 0 to 1e300"));
  }
}

TEST(ProgramTextError, BytesOfARankFitIntoOneNumber) {
  const std::string message = "the bytes of this rank add up to more than 9223372036854775807";
  const std::string half = "4611686018427387904";
  EXPECT_EQ(line_error("given x0.0:" + half + " x0.1:" + half), "p.txt:6: " + message);
  EXPECT_EQ(line_error("hold k0:" + half + " \"a\"\ngiven x0.1:" + half + "/host"),
            "p.txt:7: " + message);
  EXPECT_EQ(line_error("given x0.0:" + half + "\nstep on=compute seconds=0 working=" + half),
            "p.txt:7: " + message);
  const std::string reduce = "reduce units=0 group=0 to=scatter updates=a0 on=line:0 seconds=1 ";
  EXPECT_EQ(unit_error("working=0\n",
                       cat("working=0 sends=", half, "\n", reduce, "working=0 sends=", half, "\n")),
            "p.txt:11: the bytes that this rank sends add up to more than 9223372036854775807");
}

TEST(ProgramTextError, LayersUnitsAndMicroBatchesOutOfRange) {
  const std::string has_two = " is out of range; the program has 2";
  EXPECT_EQ(forward_error("layer=0", "layer=2"), "p.txt:7: layer 2" + has_two);
  EXPECT_EQ(forward_error("x1.0:8", "x3.0:8"), "p.txt:7: layer 3" + has_two);
  EXPECT_EQ(forward_error("x1.0:8", "d3.0:8"), "p.txt:7: layer 3" + has_two);
  EXPECT_EQ(forward_error("x1.0:8", "s2.0:8"), "p.txt:7: layer 2" + has_two);
  EXPECT_EQ(forward_error("x1.0:8", "w2.0:8"), "p.txt:7: layer 2" + has_two);
  EXPECT_EQ(forward_error("mb=0", "mb=2"), "p.txt:7: micro-batch 2" + has_two);
  EXPECT_EQ(line_error("given t.2:8"), "p.txt:6: micro-batch 2" + has_two);
  const std::string has_one = " is out of range; the program has 1";
  EXPECT_EQ(unit_error("m0:4", "m1:4"), "p.txt:9: unit 1" + has_one);
  EXPECT_EQ(unit_error("m0:4", "b1.0:4"), "p.txt:9: unit 1" + has_one);
  EXPECT_EQ(unit_error("m0:4", "b0.2:4"), "p.txt:9: layer 2" + has_one);
  EXPECT_EQ(unit_error("updates=a0", "makes=p1.0:4"), "p.txt:10: unit 1" + has_one);
  EXPECT_EQ(unit_error("updates=a0", "makes=g0.2:4"),
            "p.txt:10: micro-batch 2 is out of range; the program has 2");
  EXPECT_EQ(unit_error("units=0 ", "units=0,1 "), "p.txt:10: unit 1" + has_one);
  EXPECT_EQ(unit_error("group=0 ", "group=1 "), "p.txt:10: group 1" + has_one);
  EXPECT_EQ(unit_error("updates=a0", "makes=q.1:0"), "p.txt:10: update 1" + has_one);
  EXPECT_EQ(unit_error("reduce units=0 group=0 to=scatter", "add layer=2 units=0"),
            "p.txt:10: layer 2" + has_one);
  EXPECT_EQ(text_error("penstock-program 2\nmicro-batches 20000000\n"),
            "p.txt:2: layers times micro-batches are 20000000; up to 16777216 are allowed");
  EXPECT_EQ(text_error("penstock-program 2\nmicro-batches 9000000\nlayer 0 \"a\" modes=-\n"
                       "layer 1 \"b\" modes=-\n"),
            "p.txt:4: layers times micro-batches are 18000000; up to 16777216 are allowed");
}

TEST(ProgramTextError, LayersUnitsGroupsRanksAndLabelsCountUp) {
  EXPECT_EQ(text_error(kStart + "layer 1 \"a\" modes=all\n"),
            "p.txt:3: layer \"1\" is out of order; the next is 0");
  EXPECT_EQ(unit_error("group 0", "group 1"),
            "p.txt:5: group \"1\" is out of order; the next is 0");
  EXPECT_EQ(unit_error("unit 0", "unit 2"), "p.txt:7: unit \"2\" is out of order; the next is 0");
  EXPECT_EQ(line_error("rank 2 limit=none"), "p.txt:6: rank \"2\" is out of order; the next is 1");
  EXPECT_EQ(line_error("rank 00 limit=none"),
            "p.txt:6: rank \"00\" is out of order; the next is 1");
  EXPECT_EQ(line_error("hold k1:4 \"a\""), "p.txt:6: label \"1\" is out of order; the next is 0");
  EXPECT_EQ(line_error("hold e0:4 \"a\"\nhold k0:4 \"b\""),
            "p.txt:7: label \"0\" is out of order; the next is 1");
}

TEST(ProgramTextError, UpdatesThatAreNone) {
  const auto updates_error = [](const std::string& part, const std::string& replacement) {
    return error_with(test::kAsynchronousText, part, replacement);
  };
  EXPECT_EQ(updates_error("updates 2", "updates 3"),
            "p.txt:3: 3 updates do not divide 2 micro-batches; every update takes as many");
  EXPECT_EQ(updates_error("updates 2", "updates -1"),
            "p.txt:3: updates \"-1\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(updates_error("updates 2", "updates 0"),  // an evaluation; its copies are of an update
            "p.txt:12: update 0 is out of range; the program has 0");
  EXPECT_EQ(updates_error("weights=kept", "weights=keep"),
            "p.txt:3: unknown weights \"keep\"; did you mean kept? (known: kept, mixed)");
  EXPECT_EQ(updates_error(" weights=kept", ""),
            "p.txt:3: updates" + kForm + "updates 4 weights=kept");
  EXPECT_EQ(updates_error("weights=kept", "version=kept"),
            "p.txt:3: weights" + kForm + "updates 4 weights=kept");
  EXPECT_EQ(updates_error("v.0:10", "v.2:10"),
            "p.txt:12: update 2 is out of range; the program has 2");
}

TEST(ProgramTextError, MeshesThatAreNone) {
  const std::string example = "mesh data=2 pipeline=4";
  EXPECT_EQ(unit_error("mesh data=2", "mesh date=2"),
            "p.txt:3: unknown axis \"date\"; did you mean data? (known: data, pipeline, tensor, "
            "context)");
  EXPECT_EQ(unit_error("mesh data=2", "mesh data=0"),
            "p.txt:3: data \"0\" is no whole number from 1 to 65536");
  EXPECT_EQ(unit_error("mesh data=2", "mesh tensor=65537"),
            "p.txt:3: tensor \"65537\" is no whole number from 1 to 65536");
  EXPECT_EQ(unit_error("mesh data=2", "mesh data=256 pipeline=256 context=2"),
            "p.txt:3: the mesh has 131072 ranks; up to 65536 are allowed");
  EXPECT_EQ(unit_error("mesh data=2", "mesh data=2 data=4"),
            "p.txt:3: axis data is repeated; it is allowed once");
  EXPECT_EQ(unit_error("mesh data=2", "mesh"), "p.txt:3: mesh" + kForm + example);
  EXPECT_EQ(unit_error("mesh data=2", "mesh data"), "p.txt:3: mesh" + kForm + example);
  EXPECT_EQ(unit_error("mesh data=2", "mesh \"data=2\""), "p.txt:3: mesh" + kForm + example);
  EXPECT_EQ(unit_error("mesh data=2", "mesh data=2 pipeline=2"),
            "p.txt:12: the program has 2 ranks, and its mesh 4");
  EXPECT_EQ(unit_error("mesh data=2\n", ""), "p.txt:11: the program has 2 ranks, and its mesh 1");
}

TEST(ProgramTextError, ShardsThatAreNone) {
  const std::string line = "shard optimizer";
  EXPECT_EQ(
      unit_error(line, "shard optimiser"),
      "p.txt:4: unknown shard \"optimiser\"; did you mean optimizer? (known: none, optimizer, "
      "gradients, parameters)");
  EXPECT_EQ(unit_error(line, "shard"), "p.txt:4: shard" + kForm + "shard gradients");
  EXPECT_EQ(unit_error(line, line + " replicas=part"),
            "p.txt:4: unknown replicas \"part\"; did you mean apart? (known: apart)");
  EXPECT_EQ(unit_error(line, line + " reduced=step"),
            "p.txt:4: replicas" + kForm + "shard none replicas=apart");
  EXPECT_EQ(unit_error(line, line + " replicas=apart more"),
            "p.txt:4: shard" + kForm + "shard gradients");
}

TEST(ProgramTextError, GroupsThatAreNone) {
  const std::string line = "group 0 \"data\" axes=data";
  const std::string example = "group 0 \"data\" axes=data";
  EXPECT_EQ(unit_error(line, "group 0 data axes=data"), "p.txt:5: group" + kForm + example);
  EXPECT_EQ(unit_error(line, "group 0 \"data\""), "p.txt:5: group" + kForm + example);
  EXPECT_EQ(unit_error(line, "group 0 \"data\" axis=data"), "p.txt:5: axes" + kForm + example);
  EXPECT_EQ(unit_error(line, line + " stage=0"),
            "p.txt:5: stages" + kForm + "group 0 \"table\" axes=pipeline stages=0,3");
  EXPECT_EQ(unit_error(line, line + " stages=0 more=1"), "p.txt:5: group" + kForm + example);
  EXPECT_EQ(unit_error(line, "group 0 \"data\" axes=dat"),
            "p.txt:5: unknown axis \"dat\"; did you mean data? (known: data, pipeline, tensor, "
            "context)");
  EXPECT_EQ(unit_error(line, line + ",data"), "p.txt:5: axis data is repeated; it is allowed once");
  EXPECT_EQ(unit_error(line, line + " stages=1"),
            "p.txt:5: stage 1 is out of range; the mesh has 1");
  EXPECT_EQ(unit_error(line, line + " stages=0,0"),
            "p.txt:5: stage 0 comes after 0; stages count up");
  EXPECT_EQ(unit_error(line, line + " stages=x"),
            "p.txt:5: stage \"x\" is no whole number from 0 to 2147483647");
}

TEST(ProgramTextError, UnitsThatAreNone) {
  const std::string unit = "unit 0 \"a\" layers=0,1 elements=8";
  const std::string example =
      "unit 0 \"name\" layers=0,1 forward=0 weight=1 shared=yes frozen=yes elements=64";
  EXPECT_EQ(unit_error(unit, "unit 0"), "p.txt:7: unit" + kForm + example);
  EXPECT_EQ(unit_error(unit, "unit 0 a layers=0"), "p.txt:7: unit" + kForm + example);
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\""), "p.txt:7: layers" + kForm + example);
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" modes=1"), "p.txt:7: layers" + kForm + example);
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" elements=8 layers=0"),
            "p.txt:7: layers" + kForm + example);
  EXPECT_EQ(unit_error(unit, unit + " backward=1"), "p.txt:7: unit" + kForm + example);
  EXPECT_EQ(unit_error(unit, unit + " forward=0"), "p.txt:7: unit" + kForm + example);
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=0 shared=no"),
            "p.txt:7: unknown shared \"no\" (known: yes)");
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=0 forward=2"),
            "p.txt:7: layer 2 is out of range; the program has 1");
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=0 weight=2"),
            "p.txt:7: layer 2 is out of range; the program has 1");
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=2"),
            "p.txt:7: layer 2 is out of range; the program has 1");
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=x"),
            "p.txt:7: layer \"x\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(unit_error(unit, "unit 0 \"a\" layers=1,0"),
            "p.txt:7: layer 0 comes after 1; a unit's layers count up");
}

TEST(ProgramTextError, HeldValuesThatAreNone) {
  const std::string held =
      " is not held from step to step; weights, gradients, state and what never moves are";
  EXPECT_EQ(line_error("hold x0.0:4"), "p.txt:6: value \"x0.0:4\"" + held);
  EXPECT_EQ(line_error("hold q.0:4/host"), "p.txt:6: value \"q.0:4/host\"" + held);
  EXPECT_EQ(unit_error("m0:4 a0:4 o0:8@0-4", "m0:4 \"weights\""),
            "p.txt:9: value \"m0:4\" has no label; e and k have");
  EXPECT_EQ(unit_error("m0:4 a0:4", "m0:4 m0:4"),
            "p.txt:9: value m0 is held twice; it is there once");
  EXPECT_EQ(unit_error("m0:4 a0:4", "m0:4 m0#2:4"),
            "p.txt:9: value m0#2 is held from step to step; it is there once, without #");
  EXPECT_EQ(line_error("hold"), "p.txt:6: hold" + kForm + "hold m0:4096 o0:8192");
  EXPECT_EQ(line_error("hold \"k0:4\""), "p.txt:6: hold" + kForm + "hold m0:4096 o0:8192");
  EXPECT_EQ(line_error("hold k0:4 \"a\" k1:4 \"b\""),
            "p.txt:6: hold" + kForm + "hold m0:4096 o0:8192");
}

TEST(ProgramTextError, TiersThatAreNone) {
  for (const std::string tier : {"device", "", "hosts", "host@0-4", "host/disk"}) {
    const std::string suggestion =
        tier.starts_with("host") && tier != "host/disk" ? "; did you mean host?" : "";
    EXPECT_EQ(line_error("given x0.0:4/" + tier),
              cat("p.txt:6: unknown tier \"", tier, "\"", suggestion, " (known: host, disk)"));
  }
}

TEST(ProgramTextError, SlicesThatAreNone) {
  const auto slices_error = [](const std::string& slices) {
    return unit_error("@0-4", "@" + slices);
  };
  const auto no_slice = [](const std::string& word) {
    return cat("p.txt:9: slice \"", word, "\" of o0 is not written FIRST-END");
  };
  EXPECT_EQ(slices_error(""), no_slice(""));
  EXPECT_EQ(slices_error("4"), no_slice("4"));
  EXPECT_EQ(slices_error("0-4+"), no_slice(""));
  EXPECT_EQ(slices_error("+0-4"), no_slice(""));
  EXPECT_EQ(slices_error("0-4++5-6"), no_slice(""));
  const std::string bytes = " is no whole number from 0 to 9223372036854775807";
  EXPECT_EQ(slices_error("-4"), "p.txt:9: first element of a slice \"\"" + bytes);
  EXPECT_EQ(slices_error("a-4"), "p.txt:9: first element of a slice \"a\"" + bytes);
  EXPECT_EQ(slices_error("0-"), "p.txt:9: end of a slice \"\"" + bytes);
  EXPECT_EQ(slices_error("0-4-5"), "p.txt:9: end of a slice \"4-5\"" + bytes);
  EXPECT_EQ(slices_error("0-4@5-6"), "p.txt:9: end of a slice \"4@5-6\"" + bytes);
  const std::string none = " has no slices; weights, gradients and state of a unit have";
  EXPECT_EQ(line_error("given x0.0:4@0-1"), "p.txt:6: value x0.0" + none);
  EXPECT_EQ(line_error("hold k0:4@0-1 \"a\""), "p.txt:6: value k0" + none);
  EXPECT_EQ(unit_error("updates=a0", "makes=p0.0:4@0-1"), "p.txt:10: value p0.0" + none);
}

TEST(ProgramTextError, ValuesThatNothingMakes) {
  const std::string rest = " is neither held, given nor made in this rank";
  EXPECT_EQ(forward_error("reads=x0.0", "reads=x0.1"), "p.txt:7: value \"x0.1\"" + rest);
  EXPECT_EQ(forward_error("reads=x0.0", "reads="), "p.txt:7: value \"\"" + rest);
  EXPECT_EQ(forward_error("frees=-", "sets=a0 frees=-"), "p.txt:7: value \"a0\"" + rest);
  EXPECT_EQ(unit_error("updates=a0", "updates=a0,c0"), "p.txt:10: value \"c0\"" + rest);
  EXPECT_EQ(line_error("drop frees=d1.0\nstep on=compute seconds=0 working=0"),
            "p.txt:6: value \"d1.0\"" + rest);
  // Another rank's values are not this one's.
  EXPECT_EQ(line_error("given x0.0:4\nrank 1 limit=none\ndrop frees=x0.0\nrank 2 limit=none"),
            "p.txt:8: value \"x0.0\"" + rest);
}

TEST(ProgramTextError, ValuesMadeTwiceUnderOneName) {
  EXPECT_EQ(line_error("given x0.0:4 x0.0:4"),
            "p.txt:6: value x0.0 is made or given twice; the next making is #2");
  EXPECT_EQ(line_error("given x0.0:4 x0.0#2:4 x0.0#2:4"),
            "p.txt:6: value x0.0#2 is made or given twice; the next making is #3");
  EXPECT_EQ(line_error("given x0.0#2:4"),
            "p.txt:6: value x0.0#2 comes before x0.0; makings count up");
  EXPECT_EQ(line_error("given x0.0:4 x0.0#3:4"),
            "p.txt:6: value x0.0#3 comes before x0.0#2; makings count up");
}

TEST(ProgramTextError, NamesOfValuesHaveOneSpelling) {
  for (const std::string name : {"",         "y0.0",  "r0.0",   "x",     "x0",     "x0.",
                                 "x.0",      "x00.0", "x0.00",  "x0.0#", "x0.0#1", "x0.0#02",
                                 "x-1.0",    "x0.-1", "x+1.0",  "w.0",   "t0.0",   "x99999999999.0",
                                 "x0.0#2#2", "m",     "m.0",    "m0.0",  "m00",    "b0",
                                 "b0.",      "b.0",   "b0.0.0", "e",     "k.0",    "k0.0",
                                 "v",        "v0",    "v0.0",   "q",     "q0",     "n1",
                                 "p0",       "g0",    "o-1"}) {
    EXPECT_EQ(
        line_error("given " + name + ":4"),
        cat("p.txt:6: value \"",
            name,
            "\" is no name like x3.0, s3.0, d3.0, w3.0, t.0, i3.0, u3.0, p3.0, g3.0, v.0, m3, "
            "c3, a3, b3.0, o3, e0, k0, q.0, z.0, n.0 or x3.0#2"));
  }
  EXPECT_EQ(line_error("given x0.0"),
            "p.txt:6: value \"x0.0\" comes without its bytes; write NAME:BYTES");
}

TEST(ProgramTextError, UnknownSaveModes) {
  EXPECT_EQ(
      forward_error("keep=all", "keep=al"),
      "p.txt:7: unknown save mode of layer 0 \"al\"; did you mean all? (known: nothing, all, few)");
  EXPECT_EQ(forward_error("keep=all", "keep=few+output"),
            "p.txt:7: unknown save mode of layer 0 \"few+output\" (known: nothing, all, few)");
}

TEST(ProgramTextError, SaveModesHavePlainAndDifferentNames) {
  const auto modes_error = [](const std::string& modes) {
    return text_error(kStart + "layer 0 \"a\" modes=" + modes + "\n");
  };
  const auto no_name = [](const std::string& shown) {
    return cat(
        "p.txt:3: save mode ",
        shown,
        " is no name; up to 64 letters, digits, _ and - are allowed (but not - and nothing), "
        "then +output or not");
  };
  for (const std::string mode :
       {"", "a.b", "a:b", "+output", "nothing", "all+outputs", "a+output+output"}) {
    EXPECT_EQ(modes_error(mode), no_name(cat('"', mode, '"')));
  }
  const std::string longest(64, 'a');
  EXPECT_EQ(modes_error(longest + "a"), no_name(cat('"', longest, "a\"")));
  EXPECT_EQ(modes_error("all,-"), no_name("\"-\""));
  EXPECT_EQ(modes_error("all,all+output"),
            "p.txt:3: save mode all is repeated; those of a layer have different names");
  const std::string text = kStart + "layer 0 \"a\" modes=" + longest + "\n";
  EXPECT_EQ(parse_program(text, "p.txt").layers[0].modes[0].name, longest);
}

TEST(ProgramTextError, UnknownResources) {
  for (const std::string on :
       {"gpu", "copy", "link", "inlet", "line", "disk", "replicas", "compute:0", "host:0", ""}) {
    EXPECT_EQ(forward_error("on=compute", "on=" + on),
              cat("p.txt:7: on \"",
                  on,
                  "\" is no resource; compute, host, copy:N, disk:N, link:N, inlet:N, line:N are"));
  }
  EXPECT_EQ(forward_error("on=compute", "on=link:-1"),
            "p.txt:7: link \"-1\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(forward_error("on=compute", "on=line:x"),
            "p.txt:7: line \"x\" is no whole number from 0 to 2147483647");
}

TEST(ProgramTextError, UnknownKindsOfReduce) {
  EXPECT_EQ(unit_error("to=scatter", "to=scater"),
            "p.txt:10: unknown to \"scater\"; did you mean scatter? (known: all, scatter)");
}

const char* const kPipeline =
    R"(penstock-program 2
micro-batches 1
mesh pipeline=2
layer 0 "a" modes=all
layer 1 "b" modes=all
rank 0 limit=none
given x0.0:4
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8,s0.0:16 frees=- on=compute seconds=1 working=24
send layer=1 mb=0 reads=x1.0 on=link:1 seconds=0.25 working=0
receive layer=1 mb=0 makes=d1.0:8 on=inlet:1 working=8
rank 1 limit=none
receive layer=1 mb=0 makes=x1.0:8 on=inlet:0 working=8
drop makes=d1.0:8,x2.0:2 frees=x1.0
send layer=1 mb=0 reads=d1.0 frees=d1.0 on=link:0 seconds=0.5 working=0
send layer=2 mb=0 reads=x2.0 frees=x2.0 on=link:0 seconds=0 working=0
)";

std::string pipeline_error(const std::string& part, const std::string& replacement) {
  return error_with(kPipeline, part, replacement);
}

TEST(ProgramTextError, SendsAndReceivesAreOfOneValue) {
  EXPECT_EQ(parse_program(kPipeline, "p.txt").ranks[1].instructions[3].layer, 2);
  EXPECT_EQ(pipeline_error("send layer=1 mb=0 reads=x1.0", "send layer=1 mb=0 reads=x1.0,x0.0"),
            "p.txt:9: send reads 2 values; it takes exactly one");
  EXPECT_EQ(pipeline_error("send layer=1 mb=0 reads=x1.0", "send layer=1 mb=0 reads=-"),
            "p.txt:9: send reads 0 values; it takes exactly one");
  EXPECT_EQ(pipeline_error("makes=d1.0:8", "makes=-"),
            "p.txt:10: receive makes 0 values; it takes exactly one");
  EXPECT_EQ(pipeline_error(" reads=x1.0 on", " on"),
            "p.txt:9: field reads is missing; send needs it");
  EXPECT_EQ(
      pipeline_error("on=link:1", "makes=d0.0:4 on=link:1"),
      "p.txt:9: unknown field of send \"makes\" (known: layer, element, mb, reads, frees, on, "
      "seconds, working, sends)");
  EXPECT_EQ(pipeline_error("on=inlet:1", "on=inlet:1 seconds=1"),
            "p.txt:10: unknown field of receive \"seconds\" (known: layer, element, mb, makes, "
            "frees, on, "
            "working)");
}

TEST(ProgramTextError, SendsAndReceivesNameAnotherRank) {
  EXPECT_EQ(pipeline_error("on=link:1", "on=link:0"),
            "p.txt:9: link:0 leads to rank 0 itself; the peer is another rank");
  EXPECT_EQ(pipeline_error("on=inlet:0", "on=inlet:1"),
            "p.txt:12: inlet:1 leads to rank 1 itself; the peer is another rank");
  EXPECT_EQ(pipeline_error("on=link:1", "on=link:2"),
            "p.txt:9: rank 2 is out of range; the program has 2");
  EXPECT_EQ(pipeline_error("on=link:1", "on=inlet:1"),
            "p.txt:9: send is on inlet:1; it should be on link:N, where N receives");
  EXPECT_EQ(pipeline_error("on=inlet:1", "on=compute"),
            "p.txt:10: receive is on compute; it should be on inlet:N, where N sends");
  EXPECT_EQ(pipeline_error("send layer=2", "send layer=3"),
            "p.txt:15: layer 3 is out of range; the program has 2");
}

TEST(ProgramTextError, LinesOfTheWrongForm) {
  const std::string longer = "rank 0 limit=none host=4096 disk=8192";
  EXPECT_EQ(line_error("rank 1"), "p.txt:6: rank" + kForm + "rank 0 limit=none");
  EXPECT_EQ(line_error("rank 1 limt=none"), "p.txt:6: limit" + kForm + "rank 0 limit=none");
  EXPECT_EQ(line_error("rank 1 limit=none host"), "p.txt:6: disk" + kForm + longer);
  EXPECT_EQ(line_error("rank 1 limit=none host=4 dsk=4"), "p.txt:6: disk" + kForm + longer);
  EXPECT_EQ(line_error("rank 1 limit=none disk=4 host=4"), "p.txt:6: rank" + kForm + longer);
  EXPECT_EQ(line_error("rank 1 limit=none disk=4 disk=4"), "p.txt:6: rank" + kForm + longer);
  EXPECT_EQ(line_error("rank 1 limit=none host=4 disk=4 disk=4"), "p.txt:6: rank" + kForm + longer);
  EXPECT_EQ(line_error("rank 1 limit=none \"host=4\""), "p.txt:6: rank" + kForm + longer);
  EXPECT_EQ(line_error("given"), "p.txt:6: given" + kForm + "given x0.0:4096");
  EXPECT_EQ(line_error("given \"x0.0:1\""), "p.txt:6: given" + kForm + "given x0.0:4096");
  EXPECT_EQ(text_error(kStart + "layer 0 a modes=all\n"),
            "p.txt:3: layer" + kForm + "layer 0 \"name\" modes=all");
  EXPECT_EQ(text_error(kStart + "layer 0 \"a\" ways=all\n"),
            "p.txt:3: modes" + kForm + "layer 0 \"name\" modes=all");
  EXPECT_EQ(text_error("penstock-program 2\nmicro-batches 1 2\n"),
            "p.txt:2: micro-batches" + kForm + "micro-batches 4");
}

TEST(ProgramTextError, LinesOutOfPlace) {
  EXPECT_EQ(line_error("penstock-program 2"), "p.txt:6: penstock-program" + kPlace);
  EXPECT_EQ(line_error("micro-batches 2"), "p.txt:6: micro-batches" + kPlace);
  EXPECT_EQ(line_error("updates 2 weights=kept"), "p.txt:6: updates" + kPlace);
  EXPECT_EQ(line_error("mesh data=1"), "p.txt:6: mesh" + kPlace);
  EXPECT_EQ(line_error("shard none"), "p.txt:6: shard" + kPlace);
  EXPECT_EQ(line_error("group 0 \"all\" axes=data"), "p.txt:6: group" + kPlace);
  EXPECT_EQ(line_error("layer 2 \"c\" modes=all"), "p.txt:6: layer" + kPlace);
  EXPECT_EQ(line_error("carried 0 \"a\" readers=1"), "p.txt:6: carried" + kPlace);
  EXPECT_EQ(line_error("unit 0 \"a\" layers=0"), "p.txt:6: unit" + kPlace);
  EXPECT_EQ(line_error("given x0.0:4\nhold k0:4 \"a\""), "p.txt:7: hold" + kPlace);
  EXPECT_EQ(line_error(kStep + "given x0.0:4"), "p.txt:7: given" + kPlace);
  EXPECT_EQ(line_error(kStep + "hold k0:4 \"a\""), "p.txt:7: hold" + kPlace);
  EXPECT_EQ(text_error("penstock-program 2\nrank 0 limit=none\n"), "p.txt:2: rank" + kPlace);
  EXPECT_EQ(text_error("penstock-program 2\nmicro-batches 1\n" + kStep), "p.txt:3: step" + kPlace);
  EXPECT_EQ(text_error(kStart + "hold k0:4 \"a\"\n"), "p.txt:3: hold" + kPlace);
  EXPECT_EQ(text_error("penstock-program 2\nupdates 2 weights=kept\n"),
            "p.txt:2: updates" + kPlace);
  EXPECT_EQ(unit_error("unit 0", "unit 0 \"b\" layers=0\nlayer 1 \"c\" modes=-\nunit 0"),
            "p.txt:8: layer" + kPlace);
}

TEST(ProgramTextError, LinesBeforeTheLayersStandInOrder) {
  const std::vector<std::string> lines = {"updates 2 weights=kept\n",
                                          "mesh data=2\n",
                                          "shard gradients\n",
                                          "group 0 \"a\" axes=data\n"};
  for (size_t i = 0; i < lines.size(); ++i) {
    for (size_t before = 0; before <= i; ++before) {
      if (before == i && i + 1 == lines.size()) {
        continue;  // there may be several groups
      }
      const std::string word = lines[before].substr(0, lines[before].find(' '));
      EXPECT_EQ(text_error(kStart + lines[i] + lines[before]), "p.txt:4: " + word + kPlace);
    }
  }
  for (const std::string& line : lines) {
    EXPECT_EQ(text_error(kStart + "layer 0 \"a\" modes=-\n" + line),
              "p.txt:4: " + line.substr(0, line.find(' ')) + kPlace);
  }
}

TEST(ProgramTextError, QuotationMarksAndEscapes) {
  EXPECT_EQ(line_error("hold k0:4 \"a"), "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("hold k0:4 \"a\\\""), "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("hold k0:4 \"a\\"), "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("hold k0:4 \"a\"b"), "p.txt:6: a blank is missing after a quotation mark");
  for (const std::string escape : {"\\x41", "\\u12", "\\ud800"}) {
    EXPECT_EQ(line_error("hold k0:4 \"" + escape + "\""),
              "p.txt:6: an escape in quotation marks is wrong; those of JSON are allowed");
  }
}

TEST(ProgramTextError, BinaryJunk) {
  EXPECT_EQ(line_error("drop\xFF"), "p.txt:6: the line is not valid UTF-8; a program is text");
  EXPECT_EQ(line_error("# \xC3"), "p.txt:6: the line is not valid UTF-8; a program is text");
  EXPECT_EQ(line_error(std::string("drop\0", 5)),
            "p.txt:6: the line holds a control character; a program is text");
  EXPECT_EQ(line_error("drop\rdrop"),
            "p.txt:6: the line holds a control character; a program is text");
}

TEST(ProgramTextError, TooLong) {
  // Mapped, not read: the pages of a hole in a file cost nothing.
  const test::TempFolder folder;
  const auto path = folder.path() / "long";
  write_text_file(path, "");
  std::filesystem::resize_file(path, (size_t{64} << 20) + 1);
  const MappedFile file(path);
  EXPECT_EQ(text_error({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}),
            "p.txt:1: 67108865 bytes are too long for a program; up to 67108864 are read");
}

}  // namespace
}  // namespace penstock::program
