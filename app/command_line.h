// The command line as commands and their options. CLI11 does the reading, in command_line.cpp alone, for its
// header is slow to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::app {

// What a command does; returns the exit code.
using Action = std::function<int()>;

// What is wrong with a value, or nothing.
using ValueCheck = std::function<std::string(const std::string& text)>;

// An option that has just been added, to be told more about.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument& required();
  Argument& named(const std::string& value);  // FILE in --out FILE
  Argument& in_range(int64_t least, int64_t most);
  Argument& in_range(double least, double most);
  Argument& positive();
  Argument& one_of(const std::vector<std::string>& values);
  Argument& not_empty();  // --memory "$LIMIT" with an empty LIMIT is a slip, not a wish
  Argument& checked_by(ValueCheck check);
  Argument& described_as(const std::string& help);
  Argument& shows_default();  // the value that it has now
  Argument& in_group(const std::string& title);

 private:
  CLI::Option* option_;
};

// A command, or a group of commands. The values are the caller's, and stay where they are.
class Command {
 public:
  Command(CLI::App* app, Action* chosen) : app_(app), chosen_(chosen) {}

  Command add_command(const std::string& name, const std::string& help);
  Command& needs_command();  // it does nothing by itself

  // `name`: "--steps", or "RECIPE" for one that has no flag.
  Argument add(const std::string& name, std::string& value, const std::string& help);
  Argument add(const std::string& name, int32_t& value, const std::string& help);
  Argument add(const std::string& name, int64_t& value, const std::string& help);
  Argument add(const std::string& name, uint64_t& value, const std::string& help);
  Argument add(const std::string& name, double& value, const std::string& help);
  Argument add(const std::string& name, std::optional<double>& value, const std::string& help);
  Argument add(const std::string& name,
               std::function<void(const std::string&)> take,
               const std::string& help);
  Argument add_flag(const std::string& name, bool& value, const std::string& help);
  // May be given several times, with one value each.
  Argument add_repeated(const std::string& name,
                        std::vector<std::string>& values,
                        const std::string& help);
  // All words that are left: RUN... without a flag.
  Argument add_list(const std::string& name,
                    std::vector<std::string>& values,
                    const std::string& help);
  std::string name() const;

  Command& ends_with(const std::string& text);  // the last lines of its help
  void runs(Action action);

 private:
  CLI::App* app_;
  Action* chosen_;
};

class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& program);
  ~CommandLine();

  Command root();

  // What the words ask for. What --help and --version ask for is done at once and gives nothing. Throws
  // ConfigError.
  std::optional<Action> read(int argc, char** argv);

 private:
  void require_known_command(int argc, char** argv) const;

  std::unique_ptr<CLI::App> app_;
  Action chosen_;
};

}  // namespace penstock::app
