#include "command_line.h"

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/version.h"
#include "penstock/config/options.h"

namespace penstock::app {

Argument& Argument::required() {
  option_->required();
  return *this;
}

Argument& Argument::named(const std::string& value) {
  option_->type_name(value);
  return *this;
}

Argument& Argument::in_range(int64_t least, int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument& Argument::in_range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument& Argument::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Argument& Argument::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Argument& Argument::not_empty() {
  return checked_by(
      [](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); });
}

Argument& Argument::checked_by(ValueCheck check) {
  option_->check(std::move(check));
  return *this;
}

Argument& Argument::described_as(const std::string& help) {
  option_->description(help);
  return *this;
}

Argument& Argument::shows_default() {
  option_->capture_default_str();
  return *this;
}

Argument& Argument::in_group(const std::string& title) {
  option_->group(title);
  return *this;
}

Command Command::add_command(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help), chosen_};
}

Command& Command::needs_command() {
  app_->require_subcommand(1);
  return *this;
}

Argument Command::add(const std::string& name, std::string& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name, int32_t& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name, int64_t& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name, uint64_t& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name, double& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name,
                      std::optional<double>& value,
                      const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument Command::add(const std::string& name,
                      std::function<void(const std::string&)> take,
                      const std::string& help) {
  return Argument(app_->add_option_function<std::string>(name, std::move(take), help));
}

Argument Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Argument(app_->add_flag(name, value, help));
}

Argument Command::add_repeated(const std::string& name,
                               std::vector<std::string>& values,
                               const std::string& help) {
  return Argument(app_->add_option(name, values, help)->allow_extra_args(false));
}

Argument Command::add_list(const std::string& name,
                           std::vector<std::string>& values,
                           const std::string& help) {
  return Argument(app_->add_option(name, values, help));
}

std::string Command::name() const {
  return app_->get_name();
}

Command& Command::ends_with(const std::string& text) {
  app_->footer(text);
  return *this;
}

void Command::runs(Action action) {
  app_->callback([chosen = chosen_, action = std::move(action)] { *chosen = action; });
}

CommandLine::CommandLine(const std::string& description, const std::string& program)
    : app_(std::make_unique<CLI::App>(description, program)) {
  app_->set_version_flag("--version", std::string(kVersion));
  app_->fallthrough();
}

CommandLine::~CommandLine() = default;

Command CommandLine::root() {
  return {app_.get(), &chosen_};
}

namespace {

// Keys of recipes that an unknown --flag may have meant: "--steps" is train.steps, "--train.steps" too.
std::vector<std::string> keys_like(std::string flag) {
  flag.erase(0, flag.find_first_not_of('-'));
  flag = flag.substr(0, flag.find('='));
  std::replace(flag.begin(), flag.end(), '-', '_');
  std::vector<std::string> keys;
  for (const config::Option& option : config::option_table()) {
    const std::string name = option.key.substr(option.key.find('.') + 1);
    if (flag == name || flag == option.key) {
      keys.push_back(option.key);
    }
  }
  return keys;
}

// "--save-every" of run.save_every.
std::string flag_of(const std::string& key) {
  std::string name = key.substr(key.find('.') + 1);
  std::replace(name.begin(), name.end(), '_', '-');
  return cat("--", name);
}

std::string nearest_key(const std::string& flag) {
  std::vector<std::string> flags;
  for (const config::Option& option : config::option_table()) {
    flags.push_back(flag_of(option.key));
  }
  const std::string found = nearest(flag, flags);
  for (const config::Option& option : config::option_table()) {
    if (!found.empty() && flag_of(option.key) == found) {
      return option.key;
    }
  }
  return "";
}

// CLI11 would say that an argument was not expected, and not what to write in its place.
std::string unknown_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  const CLI::App* given = &app;  // the command
  while (!given->get_subcommands().empty()) {
    given = given->get_subcommands().front();
  }
  for (const CLI::Option* option : given->get_options()) {
    known.push_back(option->get_name());
  }
  std::string text = cat("unknown option ", word);
  const std::vector<std::string> keys = keys_like(word);
  const std::string flag = word.substr(0, word.find('='));
  if (!keys.empty()) {
    std::vector<std::string> settings;
    for (const std::string& key : keys) {
      settings.push_back(cat("--set ", key, "=VALUE"));
    }
    return cat(text, "; a key of the recipe is set by ", join(settings, " or "));
  }
  std::string suggestion = nearest(flag, known);
  // Of a key that is a slip away, too: "--stpes".
  const std::string key = nearest_key(flag);
  const auto slips = [&](const std::string& option) { return edit_distance(flag, option); };
  if (!key.empty() && (suggestion.empty() || slips(flag_of(key)) < slips(suggestion))) {
    suggestion = cat("--set ", key, "=VALUE");
  }
  return cat(text,
             suggestion.empty() ? "" : cat("; did you mean ", suggestion, "?"),
             "; --help lists what there is");
}

}  // namespace

// CLI11 would say that a command is missing, not which word it did not know.
void CommandLine::require_known_command(int argc, char** argv) const {
  std::vector<std::string> names;
  for (const CLI::App* command : app_->get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  int first = 1;
  while (first < argc && argv[first][0] == '-') {
    const std::string flag = argv[first++];
    if (app_->get_option_no_throw(flag) == nullptr) {
      throw ConfigError(cat("unknown option ", flag, "; penstock --help lists what there is"));
    }
    if (flag == "--help" || flag == "-h" || flag == "--version") {
      return;
    }
  }
  if (first == argc) {
    throw ConfigError(
        cat("no command given; there is ", join(names, ", "), " (see penstock --help)"));
  }
  const std::string word = argv[first];
  if (std::find(names.begin(), names.end(), word) == names.end()) {
    const std::string suggestion = nearest(word, names);
    throw ConfigError(cat("unknown command '",
                          word,
                          "'; ",
                          suggestion.empty() ? "" : cat("did you mean ", suggestion, "? "),
                          "there is ",
                          join(names, ", "),
                          " (see penstock --help)"));
  }
}

std::optional<Action> CommandLine::read(int argc, char** argv) {
  require_known_command(argc, argv);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app_->exit(asked);
    return std::nullopt;
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> extras = app_->remaining(/*recurse=*/true);
    const auto flag = std::find_if(extras.begin(), extras.end(), [](const std::string& word) {
      return word.starts_with("-");
    });
    if (flag == extras.end()) {
      throw ConfigError(cat(error.what(), "; --help lists what there is"));
    }
    throw ConfigError(unknown_option(*app_, *flag));
  } catch (const CLI::ParseError& error) {
    throw ConfigError(cat(error.what(), "; --help lists what there is"));
  }
  return chosen_;
}

}  // namespace penstock::app
