// The command line. Results go to standard output, everything else to standard error; the exit code
// says what kind of failure it was (docs/errors.md).
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/comm/mpi.h"
#include "penstock/memory/account.h"

#include "commands.h"

namespace penstock::app {

namespace {

int fail(ExitCode code, const char* message) {
  log_line(LogLevel::Error, cat("penstock: ", message));
  return static_cast<int>(code);
}

void require_output_written() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw FileError("cannot write to standard output; is the disk full or the reader gone?");
  }
}

int run(int argc, char** argv) {
  CommandLine line("Penstock trains neural networks that do not fit.", argv[0]);
  Command app = line.root();
  bool is_quiet = false;
  app.add_flag("-q,--quiet", is_quiet, "only warnings and errors on standard error");
  add_train_command(app);
  add_plan_command(app);
  add_profile_command(app);
  add_simulate_command(app);
  add_check_command(app);
  add_describe_command(app);
  add_sample_command(app);
  add_lr_range_command(app);
  add_bench_command(app);
  add_submit_command(app);
  add_jobs_command(app);
  add_options_command(app);

  int code = 0;
  if (const std::optional<Action> action = line.read(argc, argv)) {
    if (is_quiet) {
      set_log_level(LogLevel::Warning);
    }
    code = memory::refuse_over_limit(*action);
  }
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
