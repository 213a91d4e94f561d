// Programs in files, and what holds for both forms: random programs read back equal, damaged files
// are refused, and the document's example is what it says.
#include "penstock/program/program_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/random_pipelines.h"
#include "program/asynchronous_program.h"
#include "program/replicated_program.h"
#include "program/unit_program.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::program {
namespace {

// The same numbers with every standard library.
class Dice {
 public:
  explicit Dice(uint32_t seed) : engine_(seed) {}

  int32_t below(int32_t end) {
    return static_cast<int32_t>(engine_() % static_cast<uint32_t>(end));
  }
  bool is_heads() { return below(2) == 0; }
  int64_t bytes() { return (int64_t{1} << below(50)) + below(1000) - 1; }
  double seconds() { return is_heads() ? 0 : engine_() * std::pow(10.0, below(40) - 30); }

 private:
  std::mt19937 engine_;
};

// Numbered as it should be, otherwise without sense: reads, changes and frees are any values.
class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed) : dice_(seed) {}

  Program make() {
    program_.updates = 1 + dice_.below(3);
    program_.micro_batches = program_.updates * (1 + dice_.below(3));
    program_.mixes_weights = dice_.is_heads();
    program_.mesh = {.data = 1 + dice_.below(2),
                     .pipeline = 1 + dice_.below(3),
                     .tensor = 1 + dice_.below(5) / 4,
                     .context = 1 + dice_.below(5) / 4};
    program_.shard = kShards[static_cast<size_t>(dice_.below(4))];
    program_.is_apart = dice_.is_heads();
    for (int32_t left = dice_.below(4); left > 0; --left) {
      add_group();
    }
    for (int32_t left = dice_.below(4); left > 0; --left) {
      add_layer();
    }
    for (int32_t left = dice_.below(4); left > 0; --left) {
      add_carried();
    }
    for (int32_t left = dice_.below(4); left > 0; --left) {
      add_unit();
    }
    const int32_t ranks = dice_.below(8) == 0 ? 0 : program_.mesh.ranks();
    for (int32_t rank = 0; rank < ranks; ++rank) {
      add_rank(rank);
    }
    return program_;
  }

 private:
  template <typename Values>
  auto pick(const Values& values) {
    return values[static_cast<size_t>(dice_.below(static_cast<int32_t>(values.size())))];
  }

  std::string name() {
    constexpr std::array names = {"block 0 mlp", "", "\"", "a\nb", "# \\", "größe"};
    return pick(names);
  }

  // Ascending, below `end`.
  std::vector<int32_t> some(int32_t end) {
    std::vector<int32_t> numbers;
    for (int32_t number = 0; number < end; ++number) {
      if (dice_.is_heads()) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }

  int32_t num_carried() const { return static_cast<int32_t>(program_.carried.size()); }
  int32_t num_units() const { return static_cast<int32_t>(program_.units.size()); }

  void add_group() {
    comm::RankGroup group{.name = name()};
    for (const comm::Axis axis : comm::kAxes) {
      group.axes = dice_.is_heads() ? group.axes | axis : group.axes;
    }
    group.stages = some(program_.mesh.pipeline);
    program_.groups.push_back(group);
  }

  void add_layer() {
    LayerInfo layer{name(), {}};
    for (int32_t left = dice_.below(4); left > 0; --left) {
      layer.modes.push_back({cat("mode-", left), dice_.is_heads()});
    }
    program_.layers.push_back(std::move(layer));
  }

  void add_carried() {
    program_.carried.push_back({.name = name(),
                                .born = dice_.below(program_.loss_index() + 1) - 1,
                                .readers = some(program_.loss_index() + 1),
                                .has_gradient = dice_.is_heads()});
  }

  void add_unit() {
    program_.units.push_back({.name = name(),
                              .layers = some(program_.loss_index() + 1),
                              .forward_only = some(program_.loss_index() + 1),
                              .weight_too = some(program_.loss_index() + 1),
                              .is_shared = dice_.is_heads(),
                              .is_frozen = dice_.is_heads(),
                              .elements = dice_.is_heads() ? 0 : dice_.bytes()});
  }

  void add_rank(int32_t number) {
    RankProgram rank{
        .limit_bytes = limit(), .host_limit_bytes = limit(), .disk_limit_bytes = limit()};
    for (int32_t left = dice_.below(8); left > 0; --left) {
      hold(rank);
    }
    add_values(rank, rank.given, dice_.below(4));
    rank.instructions.resize(static_cast<size_t>(dice_.below(20)));
    for (Instruction& instruction : rank.instructions) {
      fill(instruction, number, rank);
      if (instruction.op != Op::Send) {
        add_values(rank, instruction.makes, instruction.op == Op::Receive ? 1 : dice_.below(4));
      }
    }
    for (Instruction& instruction : rank.instructions) {
      if (instruction.op != Op::Receive) {
        pick_values(rank, instruction.reads, instruction.op == Op::Send ? 1 : dice_.below(4));
      }
      if (!is_transfer(instruction.op)) {
        pick_values(rank, instruction.sets, dice_.below(3));
        pick_values(rank, instruction.updates, dice_.below(3));
      }
      pick_values(rank, instruction.frees, dice_.below(4));
    }
    program_.ranks.push_back(std::move(rank));
  }

  int64_t limit() { return dice_.is_heads() ? 0 : 1 + dice_.bytes(); }
  Tier tier() {
    return dice_.below(3) == 0 ? kTiers[static_cast<size_t>(dice_.below(3))] : Tier::Device;
  }

  // Unless it is held already.
  void hold(RankProgram& rank) {
    Value value{.kind = dice_.is_heads() ? ValueKind::RankState : ValueKind::Fixed,
                .tier = tier(),
                .bytes = dice_.bytes()};
    const auto is_same = [&](const Value& other) { return name_of(other) == name_of(value); };
    if (!program_.layers.empty() && dice_.below(5) == 0) {
      value.kind = ValueKind::LayerState;
      value.layer = dice_.below(program_.loss_index());
      if (std::any_of(rank.values.begin(), rank.values.end(), is_same)) {
        return;
      }
    } else if (num_units() > 0 && dice_.below(4) > 0) {
      constexpr std::array kinds = {ValueKind::Master,
                                    ValueKind::Compute,
                                    ValueKind::GradientSum,
                                    ValueKind::Share,
                                    ValueKind::State};
      value.kind = pick(kinds);
      value.unit = dice_.below(num_units());
      value.layer = value.kind == ValueKind::Share ? dice_.below(program_.loss_index() + 1) : -1;
      for (int32_t left = dice_.below(4) - 1; left > 0; --left) {
        value.slices.push_back({dice_.bytes(), 1 + dice_.bytes()});
      }
      if (std::any_of(rank.values.begin(), rank.values.end(), is_same)) {
        return;
      }
    }
    rank.hold(value, name());
  }

  void add_values(RankProgram& rank, std::vector<ValueId>& list, int32_t count) {
    for (; count > 0; --count) {
      std::vector<ValueKind> kinds = {ValueKind::Activation,
                                      ValueKind::Gradient,
                                      ValueKind::Targets,
                                      ValueKind::Stashed,
                                      ValueKind::Squares,
                                      ValueKind::AllSquares,
                                      ValueKind::Decision,
                                      ValueKind::Sketches,
                                      ValueKind::AllSketches,
                                      ValueKind::Filled,
                                      ValueKind::Prepared,
                                      ValueKind::Lengths,
                                      ValueKind::AllLengths};
      if (!program_.layers.empty()) {
        kinds.insert(kinds.end(), {ValueKind::Saved, ValueKind::WeightWork});
      }
      if (num_units() > 0) {
        kinds.insert(kinds.end(), {ValueKind::Gathered, ValueKind::Bucket});
      }
      if (num_carried() > 0) {
        kinds.insert(kinds.end(), {ValueKind::Carried, ValueKind::CarriedGradient});
      }
      Value value{.kind = pick(kinds), .tier = tier(), .bytes = dice_.bytes()};
      const ValueKindInfo& info = info_of(value.kind);
      const bool is_of_work = value.kind == ValueKind::Saved || value.kind == ValueKind::WeightWork;
      if (info.has_layer) {
        value.layer = dice_.below(program_.loss_index() + (is_of_work ? 0 : 1));
      }
      if (info.has_element) {
        value.element = dice_.below(num_carried());
      }
      if (info.has_unit) {
        value.unit = dice_.below(num_units());
      }
      if (info.has_micro_batch) {
        value.micro_batch = dice_.below(program_.micro_batches);
      }
      if (info.has_version) {
        value.version = dice_.below(program_.updates);
      }
      list.push_back(static_cast<ValueId>(rank.values.size()));
      rank.values.push_back(value);
    }
  }

  Op pick_op(bool has_peer, bool has_values) {
    std::vector<Op> ops = {
        Op::Loss, Op::Drop, Op::Stash, Op::Sketch, Op::Squares, Op::Decide, Op::Prepare, Op::Step};
    if (!program_.layers.empty()) {
      ops.insert(ops.end(), {Op::Forward, Op::Backward, Op::BackwardInput, Op::BackwardWeight});
    }
    if (!program_.groups.empty()) {
      ops.insert(ops.end(), {Op::Gather, Op::Reduce, Op::Exchange, Op::Merge});
    }
    if (num_units() > 0) {
      ops.push_back(Op::Add);
    }
    if (has_peer) {
      ops.push_back(Op::Receive);
    }
    if (has_peer && has_values) {
      ops.push_back(Op::Send);
    }
    return pick(ops);
  }

  Resource pick_resource(Op op, int32_t rank) {
    if (is_transfer(op)) {
      const int32_t ranks = program_.mesh.ranks();
      const int32_t peer = (rank + 1 + dice_.below(ranks - 1)) % ranks;
      return {op == Op::Send ? ResourceKind::Link : ResourceKind::Inlet, peer};
    }
    const auto kind = static_cast<ResourceKind>(dice_.below(kNumResourceKinds));
    const bool is_one = kind == ResourceKind::Compute || kind == ResourceKind::HostCompute;
    return {kind, is_one ? 0 : dice_.below(4)};
  }

  void fill(Instruction& instruction, int32_t number, const RankProgram& rank) {
    const Op op = pick_op(program_.mesh.ranks() > 1, !rank.values.empty());
    instruction.op = op;
    if (is_transfer(op) && num_carried() > 0 && dice_.is_heads()) {
      instruction.element = dice_.below(num_carried());
    } else if (is_transfer(op) || op == Op::Add) {
      instruction.layer = dice_.below(program_.loss_index() + 1);
    } else if (is_at_layer(op) && op != Op::Loss) {
      instruction.layer = dice_.below(program_.loss_index());
    }
    if (is_transfer(op) || is_at_layer(op)) {
      instruction.micro_batch = dice_.below(program_.micro_batches);
    }
    const bool is_of_units = op == Op::Gather || op == Op::Reduce;
    if (is_of_units) {
      instruction.micro_batch = dice_.below(program_.micro_batches + 1) - 1;
    }
    if (is_collective(op)) {
      instruction.group = dice_.below(static_cast<int32_t>(program_.groups.size()));
      instruction.scatters = op == Op::Reduce && dice_.is_heads();
    }
    if (is_of_units || op == Op::Add || op == Op::Step) {
      instruction.units = some(num_units());
    }
    if (is_collective(op) || op == Op::Send) {
      instruction.sent_bytes = dice_.is_heads() ? 0 : dice_.bytes();
    }
    if (op == Op::Forward) {
      const auto& modes = program_.layers[static_cast<size_t>(instruction.layer)].modes;
      instruction.keep = dice_.below(static_cast<int32_t>(modes.size()) + 1) - 1;
    }
    instruction.resource = pick_resource(op, number);
    instruction.seconds = op == Op::Receive ? 0 : dice_.seconds();
    instruction.working_bytes = dice_.is_heads() ? 0 : dice_.bytes();
  }

  void pick_values(const RankProgram& rank, std::vector<ValueId>& list, int32_t count) {
    for (; count > 0 && !rank.values.empty(); --count) {
      list.push_back(dice_.below(static_cast<int32_t>(rank.values.size())));
    }
  }

  Dice dice_;
  Program program_;
};

TEST(ProgramForms, RandomProgramsReadBackEqual) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Program program = RandomProgram(seed).make();
    const std::string text = format_program(program);
    ASSERT_EQ(parse_program(text, "p"), program) << "seed " << seed << "\n" << text;
    const std::string json = program_json(program);
    ASSERT_EQ(parse_program_json(json, "p"), program) << "seed " << seed << "\n" << json;
  }
}

void damage(std::string& text, Dice& dice) {
  constexpr std::string_view letters =
      " \n\t\"\\{}[],:=#.-+@/0129eExsdtiumcabokgpqzn\x00\x01\x7F\xC3\xFF";
  const auto position = [&] { return static_cast<size_t>(dice.below(1 << 30)) % text.size(); };
  const size_t at = position();
  const size_t length = static_cast<size_t>(dice.below(20));
  switch (dice.below(5)) {
    case 0:
      text[at] = letters[static_cast<size_t>(dice.below(static_cast<int32_t>(letters.size())))];
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(position(), text.substr(at, length));
      break;
    case 3:
      text.insert(at, 1, "0123456789"[dice.below(10)]);
      break;
    default:
      text.resize(text.size() - std::min(text.size() - 1, length));
      break;
  }
  text += text.empty() ? " " : "";
}

// A file with some damage is a ConfigError of one line, or a program that can be written again.
template <typename Parse>
bool is_accepted(const std::string& text, const Parse& parse) {
  try {
    const Program program = parse(text, "p");
    format_program(program);
    program_json(program);
    return true;
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return false;
  }
}

TEST(ProgramForms, DamagedFilesAreRefusedOrRead) {
  int accepted = 0;
  constexpr int kCases = 500;
  for (int i = 0; i < kCases; ++i) {
    Dice dice(static_cast<uint32_t>(i));
    const Program program = RandomProgram(static_cast<uint32_t>(i % 50)).make();
    std::string text = format_program(program);
    std::string json = program_json(program);
    for (int32_t left = 1 + dice.below(3); left > 0; --left) {
      damage(text, dice);
      damage(json, dice);
    }
    accepted += is_accepted(text, parse_program) ? 1 : 0;
    accepted += is_accepted(json, parse_program_json) ? 1 : 0;
  }
  // Both answers must have been tried.
  EXPECT_GT(accepted, kCases / 50);
  EXPECT_LT(accepted, kCases);
}

TEST(ProgramFile, NameDecidesTheFormAndContentIsRead) {
  const test::TempFolder folder;
  const Program program = RandomProgram(7).make();
  write_program(folder.path() / "p.json", program);
  write_program(folder.path() / "p.txt", program);
  EXPECT_EQ(read_text_file(folder.path() / "p.json"), program_json(program));
  EXPECT_EQ(read_text_file(folder.path() / "p.txt"), format_program(program));

  std::filesystem::rename(folder.path() / "p.json", folder.path() / "other");
  std::filesystem::rename(folder.path() / "p.txt", folder.path() / "other.json");
  EXPECT_EQ(read_program(folder.path() / "other"), program);
  EXPECT_EQ(read_program(folder.path() / "other.json"), program);

  write_text_file(folder.path() / "blanks", "\r\n\t " + program_json(program));
  EXPECT_EQ(read_program(folder.path() / "blanks"), program);
}

TEST(ProgramFile, ErrorsBeginWithThePath) {
  const test::TempFolder folder;
  const auto path = folder.path() / "p";
  const auto error = [&](const std::string& text) {
    write_text_file(path, text);
    return test::error_text<ConfigError>([&] { read_program(path); });
  };
  EXPECT_EQ(error("penstock-program 2\nmicro-batches x\n"),
            path.string() + ":2: micro-batches \"x\" is no whole number from 1 to 2147483647");
  EXPECT_EQ(error("{"), path.string() + ": is not valid JSON near byte 2");
  EXPECT_EQ(error(""),
            path.string() +
                ":1: the program ends here; it begins with the lines penstock-program 2 "
                "and micro-batches N");
  EXPECT_EQ(test::error_text<FileError>([&] { read_program(folder.path() / "none"); }),
            "cannot read " + (folder.path() / "none").string() + ": No such file or directory");
}

TEST(ProgramFile, WhatCannotBeWrittenLeavesTheOldFile) {
  const test::TempFolder folder;
  const auto path = folder.path() / "p";
  write_program(path, {});
  const Program bad{.micro_batches = -1};
  EXPECT_THROW(write_program(path, bad), InternalError);
  EXPECT_EQ(read_program(path), Program{});
  EXPECT_THROW(write_program(folder.path() / "no" / "p", {}), FileError);
}

// The programs that docs/program.md shows: of one rank, of two, with carried elements, with two updates, of two replicas,
// of two that exchange all that there is, with values on every tier, and an evaluation.
constexpr int kDocumentPrograms = 8;
Program document_program(int number = 0) {
  const std::string page = read_text_file(PENSTOCK_SOURCE_DIR "/docs/program.md");
  const std::string opening = "```\npenstock-program 2\n";
  size_t begin = page.find(opening);
  for (; number > 0; --number) {
    begin = page.find(opening, begin + 1);
  }
  const size_t end = page.find("\n```", begin + 4);
  EXPECT_NE(end, std::string::npos);
  const std::string text = page.substr(begin + 4, end - begin - 3);
  Program program = parse_program(text, "docs/program.md");
  EXPECT_EQ(format_program(program), text);
  return program;
}

TEST(ProgramDocument, ExamplesAreSound) {
  for (int number = 0; number < kDocumentPrograms; ++number) {
    const Verdict verdict = verify(document_program(number));
    EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  }
}

TEST(ProgramDocument, JsonLineIsTheExamples) {
  const std::string page = read_text_file(PENSTOCK_SOURCE_DIR "/docs/program.md");
  const std::string json = program_json(document_program());
  const size_t begin = page.find("```json\n") + 8;
  const std::string shown = page.substr(begin, page.find("\n…\n", begin) - begin);
  EXPECT_EQ(json.substr(0, shown.size()), shown);
}

nlohmann::json replay_by_script(const Program& program) {
  const test::TempFolder folder;
  const auto file = folder.path() / "p.json";
  const auto answer = folder.path() / "answer";
  write_program(file, program);
  const std::string script = PENSTOCK_SOURCE_DIR "/tests/integration/replay_program.py";
  const std::string command =
      cat("python3 '", script, "' '", file.string(), "' > '", answer.string(), "'");
  EXPECT_EQ(std::system(command.c_str()), 0);
  return nlohmann::json::parse(read_text_file(answer), nullptr, false);
}

// The script's answer, which agrees with replay_peak() and simulate() on every rank and tier.
nlohmann::json expect_same_replay(const Program& program) {
  const nlohmann::json replayed = replay_by_script(program);
  EXPECT_EQ(replayed["seconds"], simulate(program).seconds);
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const Peak peak = replay_peak(program.ranks[rank]);
    EXPECT_EQ(replayed["peaks"][rank], peak.tier_bytes[0]) << "rank " << rank;
    EXPECT_EQ(replayed["host_peaks"][rank], peak.tier_bytes[1]) << "rank " << rank;
    EXPECT_EQ(replayed["disk_peaks"][rank], peak.tier_bytes[2]) << "rank " << rank;
  }
  EXPECT_EQ(replayed["updates"], program.updates);
  return replayed;
}

class ReplayScript : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c ''") != 0) {
      GTEST_SKIP() << "no python3";
    }
  }
};

// What the page says of its examples.
TEST_F(ReplayScript, AgreesOnTheDocumentsExamples) {
  const auto expect_example =
      [](int number, double seconds, const nlohmann::json& peaks, int64_t host, int64_t disk) {
        const nlohmann::json replayed = expect_same_replay(document_program(number));
        EXPECT_NEAR(replayed["seconds"], seconds, 1e-12);
        EXPECT_EQ(replayed["peaks"], peaks);
        EXPECT_EQ(replayed["host_peaks"][0], host);
        EXPECT_EQ(replayed["disk_peaks"][0], disk);
      };
  expect_example(0, 0.027, {5900}, 0, 0);
  expect_example(1, 0.022, {220, 490}, 0, 0);
  expect_example(2, 12, {40, 35}, 0, 0);
  expect_example(3, 0.011, {49}, 0, 0);
  expect_example(4, 0.014, {134, 134}, 0, 0);
  expect_example(5, 0.015, {154, 154}, 0, 0);
  expect_example(6, 0.009, {44}, 46, 90);
  expect_example(7, 0.009, {150, 240}, 0, 0);
}

TEST_F(ReplayScript, AgreesOnReplicasOfPipelines) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(shard_name(shard));
    expect_same_replay(test::replicated_program(shard, 2, schedule::Kind::ZeroBubbleH1, 3));
    expect_same_replay(test::replicated_program(shard, 1));
    if (shard != Shard::None) {
      expect_same_replay(test::exchanging_program(shard, {.lengths = 2}, 2));
    }
  }
  expect_same_replay(test::exchanging_program(Shard::None, {.reduces = false}, 2));
  expect_same_replay(test::exchanging_program(Shard::Optimizer,
                                              {.reduces = false,
                                               .average = plan::UpdateForm::Average::Momentum,
                                               .fills_momentum = true,
                                               .lengths = 1},
                                              2));
  expect_same_replay(test::asynchronous_program());
  expect_same_replay(test::unit_program());
}

TEST_F(ReplayScript, AgreesOnRandomPipelines) {
  test::Dice dice(52);
  for (int i = 0; i < 30; ++i) {
    const test::RandomPipeline one = test::random_pipeline(dice);
    SCOPED_TRACE(cat(i, ": ", one.text()));
    expect_same_replay(one.program);
  }
}

TEST_F(ReplayScript, AgreesWhereResourcesOverlap) {
  const Program program = parse_program(
      "penstock-program 2\nmicro-batches 1\nlayer 0 \"a\" modes=all\nunit 0 \"a\" layers=0\n"
      "rank 0 limit=none\nhold a0:7 m0:3/disk\ngiven x0.0:4 t.0:4\n"
      "forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8,s0.0:8 frees=- on=copy:0 seconds=2 "
      "working=20\n"
      "squares sets=a0 on=compute seconds=1 working=1\n"
      "drop makes=d1.0:5,x1.0#2:9/host frees=d1.0,x1.0,x1.0#2 on=compute seconds=0.5 working=6\n"
      "add layer=0 units=0 reads=a0 updates=m0 on=disk:0 seconds=4 working=0\n"
      "step updates=a0 on=host seconds=1 working=0\n"
      "drop frees=x0.0,t.0,s0.0\n",
      "p");
  const nlohmann::json replayed = expect_same_replay(program);
  EXPECT_EQ(replayed["peak_bytes"], 37);  // the third instruction: 7 + 8 + 16 + 6
  EXPECT_EQ(replayed["host_peaks"][0], 9);
  EXPECT_EQ(replayed["disk_peaks"][0], 3);
  EXPECT_EQ(replayed["seconds"], 6);  // who changes a0 waits for its reader: 1 + 4 + 1
}

}  // namespace
}  // namespace penstock::program
