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

#include "program/replicated_program.h"
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

// Numbered as it should be, otherwise without sense: reads and frees are any values.
class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed) : dice_(seed) {}

  Program make() {
    program_.updates = 1 + dice_.below(3);
    program_.micro_batches = program_.updates * (1 + dice_.below(3));
    program_.mixes_weights = dice_.is_heads();
    for (int32_t left = dice_.below(4); left > 0; --left) {
      add_layer();
    }
    if (dice_.is_heads()) {
      add_units();
    }
    num_ranks_ = dice_.below(4);
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      add_rank(rank);
    }
    return program_;
  }

 private:
  std::string name() {
    constexpr std::array names = {"block 0 mlp", "", "\"", "a\nb", "# \\", "größe"};
    return names[static_cast<size_t>(dice_.below(names.size()))];
  }

  void add_layer() {
    LayerInfo layer{name(), {}};
    for (int32_t left = dice_.below(4); left > 0; --left) {
      layer.ways.push_back({cat("way-", left), dice_.is_heads()});
    }
    program_.layers.push_back(std::move(layer));
  }

  void add_units() {
    constexpr std::array shards = {
        Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters};
    program_.replicas = 1 + dice_.below(3);
    program_.shard = shards[static_cast<size_t>(dice_.below(4))];
    program_.step_reduces = program_.replicas > 1 && dice_.is_heads();
    for (int32_t left = dice_.below(4); left > 0; --left) {
      Unit unit{name(), {}};
      for (int32_t layer = 0; layer <= program_.loss_index(); ++layer) {
        if (dice_.is_heads()) {
          unit.layers.push_back(layer);
          if (dice_.is_heads()) {
            unit.forward_only.push_back(layer);
          }
        }
      }
      program_.units.push_back(std::move(unit));
    }
  }

  void add_rank(int32_t number) {
    RankProgram rank{.limit_bytes = dice_.is_heads() ? 0 : 1 + dice_.bytes()};
    for (int32_t left = dice_.below(4); left > 0; --left) {
      rank.residents.push_back({name(), dice_.bytes()});
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
      pick_values(rank, instruction.frees, dice_.below(4));
    }
    program_.ranks.push_back(std::move(rank));
  }

  void add_values(RankProgram& rank, std::vector<ValueId>& list, int32_t count) {
    for (; count > 0; --count) {
      Value value{.micro_batch = dice_.below(program_.micro_batches), .bytes = dice_.bytes()};
      // The last kinds only where there is a layer to have kept something.
      constexpr std::array kinds = {ValueKind::Activation,
                                    ValueKind::Gradient,
                                    ValueKind::Targets,
                                    ValueKind::Weights,
                                    ValueKind::Saved,
                                    ValueKind::WeightWork};
      const int32_t kind = dice_.below(program_.layers.empty() ? 4 : 6);
      value.kind = kinds[static_cast<size_t>(kind)];
      if (!program_.units.empty() && dice_.below(3) == 0) {
        constexpr std::array of_units = {
            ValueKind::Gathered, ValueKind::Bucket, ValueKind::Reduced};
        value.kind = of_units[static_cast<size_t>(dice_.below(3))];
        value.layer = dice_.below(static_cast<int32_t>(program_.units.size()));
        list.push_back(static_cast<ValueId>(rank.values.size()));
        rank.values.push_back(value);
        continue;
      }
      value.layer = value.kind == ValueKind::Targets || value.kind == ValueKind::Weights
                        ? program_.loss_index()
                        : dice_.below(program_.loss_index() + (kind < 4 ? 1 : 0));
      list.push_back(static_cast<ValueId>(rank.values.size()));
      rank.values.push_back(value);
    }
  }

  Op pick_op(bool has_peer, bool has_values) {
    std::vector<Op> ops = {Op::Clear, Op::Loss, Op::Drop, Op::Step, Op::Stash};
    if (!program_.layers.empty()) {
      ops.insert(ops.end(), {Op::Forward, Op::Backward, Op::BackwardInput, Op::BackwardWeight});
    }
    if (!program_.units.empty()) {
      ops.insert(ops.end(), {Op::Gather, Op::Reduce});
    }
    if (has_peer) {
      ops.push_back(Op::Receive);
    }
    if (has_peer && has_values) {
      ops.push_back(Op::Send);
    }
    return ops[static_cast<size_t>(dice_.below(static_cast<int32_t>(ops.size())))];
  }

  Resource pick_resource(Op op, int32_t rank) {
    if (op == Op::Send || op == Op::Receive) {
      const int32_t peer = (rank + 1 + dice_.below(num_ranks_ - 1)) % num_ranks_;
      return {op == Op::Send ? ResourceKind::Link : ResourceKind::Inlet, peer};
    }
    constexpr std::array kinds = {ResourceKind::Compute,
                                  ResourceKind::Replicas,
                                  ResourceKind::Copy,
                                  ResourceKind::Link,
                                  ResourceKind::Inlet};
    const int32_t kind = dice_.below(5);
    return {kinds[static_cast<size_t>(kind)], kind < 2 ? 0 : dice_.below(4)};
  }

  void fill(Instruction& instruction, int32_t number, const RankProgram& rank) {
    const Op op = pick_op(num_ranks_ > 1, !rank.values.empty());
    const bool is_transfer = op == Op::Send || op == Op::Receive;
    const bool is_placeless =
        op == Op::Clear || op == Op::Drop || op == Op::Step || op == Op::Stash;
    instruction.op = op;
    if (is_collective(op)) {
      instruction.layer = dice_.below(static_cast<int32_t>(program_.units.size()));
      instruction.micro_batch = dice_.below(program_.micro_batches + 1) - 1;
    } else if (!is_placeless && op != Op::Loss) {
      instruction.layer = dice_.below(program_.loss_index() + (is_transfer ? 1 : 0));
    }
    if (!is_placeless && !is_collective(op)) {
      instruction.micro_batch = dice_.below(program_.micro_batches);
    }
    if (op == Op::Forward) {
      const auto& ways = program_.layers[static_cast<size_t>(instruction.layer)].ways;
      instruction.keep = dice_.below(static_cast<int32_t>(ways.size()) + 1) - 1;
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
  int32_t num_ranks_ = 0;
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
  constexpr std::string_view letters = " \n\t\"\\{}[],:=#.-+0129eExsdt\x00\x01\x7F\xC3\xFF";
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
  EXPECT_EQ(error("penstock-program 1\nmicro-batches x\n"),
            path.string() + ":2: micro-batches \"x\" is no whole number from 1 to 2147483647");
  EXPECT_EQ(error("{"), path.string() + ": is not valid JSON near byte 2");
  EXPECT_EQ(error(""),
            path.string() +
                ":1: the program ends here; it begins with the lines penstock-program 1 "
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

// The programs that docs/program.md shows: of one rank, of two, with two updates, and of two
// replicas.
Program document_program(int number = 0) {
  const std::string page = read_text_file(PENSTOCK_SOURCE_DIR "/docs/program.md");
  const std::string opening = "```\npenstock-program 1\n";
  size_t begin = page.find(opening);
  for (; number > 0; --number) {
    begin = page.find(opening, begin + 1);
  }
  const size_t end = page.find("\n```", begin + 4);
  EXPECT_NE(end, std::string::npos);
  return parse_program(page.substr(begin + 4, end - begin - 3), "docs/program.md");
}

TEST(ProgramDocument, ExamplesAreSound) {
  for (const int number : {0, 1, 2, 3}) {
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

TEST(ReplayScript, AgreesWithReplayPeakAndSimulate) {
  if (std::system("python3 -c ''") != 0) {
    GTEST_SKIP() << "no python3";
  }
  const Program example = document_program();
  const nlohmann::json replayed = replay_by_script(example);
  EXPECT_EQ(replayed["peak_bytes"], 5900);
  EXPECT_EQ(replay_peak(example.ranks[0]).bytes, 5900);
  EXPECT_NEAR(replayed["seconds"], 0.027, 1e-12);
  EXPECT_EQ(replayed["seconds"], simulate(example).seconds);

  const Program overlapping = parse_program(
      "penstock-program 1\nmicro-batches 1\nlayer 0 \"a\" ways=all\nrank 0 limit=none\n"
      "resident 7 \"weights\"\ngiven x0.0:4 t.0:4\n"
      "forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8,s0.0:8 frees=- on=copy:0 seconds=2 "
      "working=20\n"
      "clear on=compute seconds=1 working=1\n"
      "drop makes=d1.0:5 frees=d1.0,x1.0 on=compute seconds=0.5 working=6\n"
      "drop frees=x0.0,t.0,s0.0\n",
      "p");
  const Program pipeline = document_program(1);
  const nlohmann::json two = replay_by_script(pipeline);
  EXPECT_EQ(two["peaks"], (nlohmann::json{240, 510}));
  EXPECT_EQ(replay_peak(pipeline.ranks[0]).bytes, 240);
  EXPECT_EQ(replay_peak(pipeline.ranks[1]).bytes, 510);
  EXPECT_NEAR(two["seconds"], 0.021, 1e-12);
  EXPECT_EQ(two["seconds"], simulate(pipeline).seconds);

  const Program asynchronous = document_program(2);
  const nlohmann::json updates = replay_by_script(asynchronous);
  EXPECT_EQ(updates["peak_bytes"], 49);
  EXPECT_EQ(replay_peak(asynchronous.ranks[0]).bytes, 49);
  EXPECT_NEAR(updates["seconds"], 0.013, 1e-12);
  EXPECT_EQ(updates["seconds"], simulate(asynchronous).seconds);
  EXPECT_EQ(updates["updates"], 2);

  const Program replicas = document_program(3);
  const nlohmann::json shared = replay_by_script(replicas);
  EXPECT_EQ(shared["peaks"], (nlohmann::json{89, 89}));
  EXPECT_EQ(replay_peak(replicas.ranks[1]).bytes, 89);
  EXPECT_NEAR(shared["seconds"], 0.014, 1e-12);
  EXPECT_EQ(shared["seconds"], simulate(replicas).seconds);
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    const Program hybrid = test::replicated_program(shard, 2, schedule::Kind::ZeroBubbleH1, 3);
    EXPECT_EQ(replay_by_script(hybrid)["seconds"], simulate(hybrid).seconds) << shard_name(shard);
  }

  const nlohmann::json again = replay_by_script(overlapping);
  EXPECT_EQ(again["peak_bytes"], 37);  // the third instruction: 7 + 8 + 16 + 6
  EXPECT_EQ(replay_peak(overlapping.ranks[0]).bytes, 37);
  EXPECT_EQ(again["seconds"], 2.5);
  EXPECT_EQ(simulate(overlapping).seconds, 2.5);
}

}  // namespace
}  // namespace penstock::program
