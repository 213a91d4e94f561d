#include "penstock/cluster/batch_script.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock::cluster {

namespace {

constexpr const char* kBefore = R"script(
# Of a job that is asked to end, this shell stays until the ranks have saved. One that is cancelled is
# not queued again; one that is preempted is queued again by Slurm itself.
cancelled=
trap 'cancelled=yes' TERM
trap : USR1
before=$(readlink "$run"/latest)
)script";

// Queued again is what Slurm's time has interrupted, and only that: a job that comes to no step in its time, or
// that run.hours end, would be queued for ever.
constexpr const char* kAfter = R"script(code=$?

say() { echo "job $SLURM_JOB_ID: $*"; }
word() { grep -o "\"$1\": *\"[a-zA-Z.]*\"" "$run"/status.json 2>/dev/null | head -n 1 | cut -d '"' -f 4; }
state=$(word state)
say "penstock train ended with exit code $code, the run is ${state:-unknown}"
if [ $code -eq 0 ] && [ "$state" = finished ]; then
  exit 0
elif [ -n "$cancelled" ]; then
  say "was cancelled, or its time ended before it had saved: not queued again (Slurm does that where it was preempted); sbatch $run/job.sbatch goes on"
elif [ $code -eq 0 ] && [ "$state" = interrupted ]; then
  if [ "$(word reason)" = run.hours ]; then
    say "run.hours of the recipe are over: not queued again; sbatch $run/job.sbatch goes on"
  elif [ "$(readlink "$run"/latest)" = "$before" ]; then
    say "no step was saved before the signal came (too little time, or a signal by hand): not queued again; give it more --hours"
    exit 1
  else
    exec scontrol requeue "$SLURM_JOB_ID"
  fi
elif [ $code -eq 0 ]; then
  say "the run has neither finished nor been interrupted, whatever the exit code says; see $run/logs"
fi
[ $code -ne 0 ] || [ "$state" = interrupted ] || code=1
exit $code)script";

// In an #SBATCH line a name stands in double quotes; sbatch fills in what follows a % of --output.
void require_plain(const std::string& what, const std::string& name) {
  for (const char letter : name) {
    const bool is_control = static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
    if (is_control || letter == '"' || letter == '\\' || letter == '%') {
      throw ConfigError(cat(what,
                            " ",
                            in_quotes(name),
                            " has a character that a batch script cannot hold (a quote, a "
                            "backslash, % or a control character); choose another name"));
    }
  }
}

// It stands in a command line of the script.
void require_word(const std::string& what, const std::string& word) {
  constexpr const char* kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-";
  if (word.empty() || word.front() == '-' ||
      word.find_first_not_of(kLetters) != std::string::npos) {
    throw ConfigError(
        cat(what,
            " ",
            in_quotes(word),
            " is no plain word, as pmix or pmi2 is; srun --mpi=list says what there is"));
  }
}

int64_t whole_seconds(double hours) {
  return std::max<int64_t>(60, std::llround(hours * 3600));
}

// Room to save in, but never most of a short job.
int64_t seconds_to_save(const BatchJob& job) {
  return std::min(job.save_seconds, std::max<int64_t>(1, whole_seconds(job.hours) / 4));
}

class Lines {
 public:
  void sbatch(const std::string& option, const std::string& value) {
    const bool needs_quotes = value.find_first_of(" \t#'$`;&|<>()*?!~") != std::string::npos;
    const char* const quote = needs_quotes ? "\"" : "";
    add(cat("#SBATCH --", option, "=", quote, value, quote));
  }
  void sbatch(const std::string& option, int64_t value) { sbatch(option, cat(value)); }
  void add(const std::string& line) { text_ += line + "\n"; }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_requests(const BatchJob& job, Lines& lines) {
  lines.sbatch("job-name", job.name);
  lines.sbatch("comment", kCommentPrefix + job.run_folder);
  lines.sbatch("chdir", job.folder);
  lines.sbatch("nodes", job.nodes);
  lines.sbatch("ntasks-per-node", job.tasks);
  if (job.gpus > 0) {
    lines.sbatch("gpus-per-node", job.gpus);
  }
  if (job.cpus > 0) {
    lines.sbatch("cpus-per-task", job.cpus);
  }
  lines.sbatch("time", slurm_time(job.hours));
  if (!job.partition.empty()) {
    lines.sbatch("partition", job.partition);
  }
  if (!job.account.empty()) {
    lines.sbatch("account", job.account);
  }
  lines.add("# The run is asked to save and to end this many seconds before the time is over.");
  lines.sbatch("signal", cat("USR1@", seconds_to_save(job)));
  lines.add("#SBATCH --requeue");
  lines.add("#SBATCH --open-mode=append");
  lines.sbatch("output", job.run_folder + "/logs/job-%j.txt");
}

std::string srun_line(const BatchJob& job) {
  // srun fills in the job's number and the rank.
  std::string line =
      cat("srun --mpi=", shell_word(job.ranks() > 1 ? job.mpi : "none"), " --kill-on-bad-exit=1");
  if (job.cpus > 0) {
    line += cat(" --cpus-per-task=", job.cpus);  // which srun does not take over everywhere
  }
  if (job.gpus > 0) {
    // Each rank sees the GPUs of its node and takes that of its SLURM_LOCALID, so that NCCL may go
    // from one to another directly.
    line += " --gpu-bind=none";
  }
  line += cat(" --open-mode=append --output=\"$run\"/logs/job-%j-rank-%t.txt \\\n  ",
              shell_word(job.program),
              " train ",
              shell_word(job.recipe));
  for (const std::string& setting : job.settings) {
    line += cat(" --set ", shell_word(setting));
  }
  return line + " --resume auto";
}

}  // namespace

std::string slurm_time(double hours) {
  const int64_t seconds = whole_seconds(hours);
  char text[48];
  std::snprintf(text,
                sizeof text,
                "%02lld:%02lld:%02lld",
                static_cast<long long>(seconds / 3600),
                static_cast<long long>(seconds / 60 % 60),
                static_cast<long long>(seconds % 60));
  return text;
}

std::string batch_script(const BatchJob& job) {
  require_plain("the folder", job.folder);
  require_plain("run.out", job.run_folder);
  require_plain("--name", job.name);
  require_plain("--partition", job.partition);
  require_plain("--account", job.account);
  require_word("--mpi", job.mpi);
  Lines lines;
  lines.add("#!/bin/bash");
  lines.add(
      "# Written by penstock submit. sbatch takes it again as it is: the run goes on where it is.");
  add_requests(job, lines);
  lines.add("");
  lines.add(cat("run=", shell_word(job.run_folder)));
  lines.add(kBefore);
  lines.add(srun_line(job));
  lines.add(kAfter);
  return lines.text();
}

}  // namespace penstock::cluster
