// The command line. Results go to standard output, everything else to standard error; the exit code
// says what kind of failure it was (docs/errors.md).
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/version.h"
#include "penstock/comm/mpi.h"
#include "penstock/memory/account.h"

#include "commands.h"

namespace penstock::app {

void add_recipe_arguments(CLI::App& command, RecipeArguments& arguments, bool is_required) {
  command.add_option("RECIPE", arguments.recipe, "the recipe, a TOML file")->required(is_required);
  command
      .add_option("--set",
                  arguments.settings,
                  "set a recipe key, as in --set train.steps=50; may be given several times "
                  "('penstock options' lists the keys)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_flag("--json", arguments.as_json, "write the result to standard output as JSON");
}

namespace {

int fail(ExitCode code, const char* message) {
  log_line(LogLevel::Error, cat("penstock: ", message));
  return static_cast<int>(code);
}

// CLI11 would say that a command is missing, not which word it did not know.
void require_known_command(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  int first = 1;
  while (first < argc && argv[first][0] == '-') {
    const std::string flag = argv[first++];
    if (app.get_option_no_throw(flag) == nullptr) {
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

void require_output_written() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw FileError("cannot write to standard output; is the disk full or the reader gone?");
  }
}

int run(int argc, char** argv) {
  CLI::App app("Penstock trains neural networks that do not fit.", argv[0]);
  app.set_version_flag("--version", std::string(kVersion));
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return cat("penstock: ", error.what(), "; --help lists what there is\n");
  });
  bool is_quiet = false;
  app.add_flag("-q,--quiet", is_quiet, "only warnings and errors on standard error");
  app.fallthrough();

  Action action;
  add_train_command(app, action);
  add_plan_command(app, action);
  add_profile_command(app, action);
  add_simulate_command(app, action);
  add_check_command(app, action);
  add_describe_command(app, action);
  add_sample_command(app, action);
  add_lr_range_command(app, action);
  add_bench_command(app, action);
  add_options_command(app, action);

  require_known_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::UserInput);
  }
  if (is_quiet) {
    set_log_level(LogLevel::Warning);
  }
  const int code = memory::refuse_over_limit(action);
  require_output_written();
  return code;
}

// Every failure as its one line and its exit code.
int run_and_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return fail(error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::UserInput,
                "out of memory; try more plan.micro_batches, a smaller train.batch or a smaller "
                "model");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(ExitCode::UserInput, error.what());
  } catch (const std::exception& error) {
    // LibTorch's messages carry a backtrace; the first line says what happened.
    const std::string text = error.what();
    return fail(ExitCode::Internal,
                cat("internal error: ", text.substr(0, text.find('\n'))).c_str());
  }
}

}  // namespace

}  // namespace penstock::app

int main(int argc, char** argv) {
  // A limit on the sizes of files is an error of the write that meets it, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = penstock::app::run_and_report(argc, argv);
  penstock::comm::end_mpi(code);
  return code;
}
