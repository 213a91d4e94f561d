#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/cluster/batch_script.h"
#include "penstock/config/recipe.h"
#include "penstock/plan/layouts.h"

#include "commands.h"
#include "other_program.h"
#include "slurm.h"

namespace penstock::app {

namespace fs = std::filesystem;

namespace {

struct SubmitArguments {
  std::string recipe;
  std::vector<std::string> settings;
  cluster::BatchJob job;
  int64_t tasks = 0;  // 0: one for each GPU, or one
  bool is_dry = false;
};

int64_t tasks_of_node(const SubmitArguments& arguments) {
  return arguments.tasks > 0 ? arguments.tasks : std::max<int64_t>(1, arguments.job.gpus);
}

// Before a job waits in the queue for hours.
void require_fit(const config::Recipe& recipe, const cluster::BatchJob& job) {
  const config::PlanOptions& plan = recipe.plan;
  if (plan.ranks() != job.ranks() && !plan::leaves_layout_open(plan, job.ranks())) {
    throw ConfigError(cat("the recipe has ",
                          plan.ranks(),
                          plan.ranks() == 1 ? " rank" : " ranks",
                          " (plan.pipeline = ",
                          plan.pipeline,
                          ", plan.data = ",
                          plan.data,
                          "), and the job has ",
                          job.ranks(),
                          " (",
                          job.nodes,
                          job.nodes == 1 ? " node" : " nodes",
                          " with ",
                          job.tasks,
                          job.tasks == 1 ? " task" : " tasks",
                          " each); change --nodes or --tasks, or set plan.pipeline and plan.data "
                          "so that their product is ",
                          job.ranks()));
  }
  if (job.gpus > 0 && recipe.run.device != "cuda") {
    throw ConfigError(cat("--gpus ",
                          job.gpus,
                          " goes with run.device = \"cuda\", and the recipe has \"",
                          recipe.run.device,
                          "\"; add --set run.device=cuda, or leave --gpus out"));
  }
}

cluster::BatchJob job_for(const SubmitArguments& arguments, const config::Recipe& recipe) {
  cluster::BatchJob job = arguments.job;
  job.program = fs::read_symlink("/proc/self/exe").string();
  job.recipe = arguments.recipe;
  job.settings = arguments.settings;
  job.folder = fs::current_path().string();
  job.run_folder = cluster::folder_of_run(recipe.run.out);
  job.tasks = tasks_of_node(arguments);
  if (job.cpus == 0) {
    job.cpus = recipe.run.threads;
  }
  if (job.name.empty()) {
    job.name = fs::path(job.run_folder).filename().string();
  }
  return job;
}

// Two jobs on one folder: the second would wait for its nodes, to be refused there.
void require_no_job(const cluster::BatchJob& job) {
  const std::vector<cluster::QueuedJob> jobs = queued_jobs();
  if (const cluster::QueuedJob* const other = cluster::find_job(jobs, job.run_folder)) {
    throw ConfigError(cat("job ",
                          other->id,
                          " (",
                          other->state,
                          ") already is for ",
                          job.run_folder,
                          "; cancel it with scancel ",
                          other->id,
                          ", or choose another folder with --set run.out=DIR"));
  }
}

// The job goes on with the run that is there, with --resume auto.
void require_steps_left(const config::Recipe& recipe, const cluster::BatchJob& job) {
  const std::optional<int64_t> done = checkpoint::find_latest_step(job.run_folder);
  if (!done) {
    return;
  }
  if (*done >= recipe.train.steps) {
    throw ConfigError(cat("the run in ",
                          job.run_folder,
                          " is at step ",
                          *done,
                          " of train.steps = ",
                          recipe.train.steps,
                          ", so nothing is left to do; set train.steps higher, or choose another "
                          "folder with --set run.out=DIR"));
  }
  log_info("goes on from step ", *done, " of the run in ", job.run_folder);
}

int submit(const SubmitArguments& arguments) {
  const config::Recipe recipe = config::load_recipe(arguments.recipe, arguments.settings);
  const cluster::BatchJob job = job_for(arguments, recipe);
  require_fit(recipe, job);
  const std::string script = cluster::batch_script(job);
  if (arguments.is_dry) {
    std::fputs(script.c_str(), stdout);
    return 0;
  }
  if (!has_program("sbatch")) {
    throw ConfigError(
        "there is no sbatch on PATH, so this is no machine that submits to Slurm; "
        "load its module, or see the script with --dry-run");
  }
  require_no_job(job);
  require_steps_left(recipe, job);
  require_writable_folder(job.run_folder + "/logs", "run.out");
  const std::string file = cat(job.run_folder, "/", cluster::kScriptName);
  write_text_file(file, script);
  const std::string id = submit_script(file);
  log_info("job ", id, " is in the queue; its script is ", file);
  log_info("logs: ", job.run_folder, "/logs/job-", id, "*.txt; how it goes: penstock jobs");
  std::printf("%s\n", id.c_str());
  return 0;
}

}  // namespace

void add_submit_command(Command& app) {
  Command command =
      app.add_command("submit", "train the model of a recipe as a job of a Slurm cluster");
  const auto arguments = std::make_shared<SubmitArguments>();
  cluster::BatchJob& job = arguments->job;
  command.add("RECIPE", arguments->recipe, "the recipe, a TOML file").required();
  command.add("--nodes", job.nodes, "machines")
      .in_range(int64_t{1}, int64_t{100'000})
      .named("N")
      .shows_default();
  command.add("--gpus", job.gpus, "GPUs of each node; 0: the job asks for none")
      .in_range(int64_t{0}, int64_t{1024})
      .named("N")
      .shows_default();
  command
      .add("--tasks",
           arguments->tasks,
           "ranks of each node, each a process; one for each GPU, or one, unless given")
      .in_range(int64_t{1}, int64_t{4096})
      .named("N");
  command
      .add("--cpus",
           job.cpus,
           "cores of each rank; run.threads of the recipe, or what the cluster gives, unless given")
      .in_range(int64_t{1}, int64_t{4096})
      .named("N");
  command.add("--hours", job.hours, "wall time of the job; a run that needs more is queued again")
      .checked_by([](const std::string& text) {
        char* end = nullptr;
        const double hours = std::strtod(text.c_str(), &end);
        const bool is_good = end != text.c_str() && *end == '\0' && hours > 0 && hours <= 8760;
        return is_good ? std::string() : cat("must be above 0 and at most 8760, and is ", text);
      })
      .named("H")
      .required();
  command
      .add("--save-seconds",
           job.save_seconds,
           "how long before the end of its time the run saves; at most a quarter of --hours")
      .in_range(int64_t{1}, int64_t{65535})
      .named("S")
      .shows_default();
  command.add("--partition", job.partition, "of the cluster").named("P").not_empty();
  command.add("--account", job.account, "that pays").named("A").not_empty();
  command.add("--name", job.name, "of the job; that of run.out unless given")
      .named("NAME")
      .not_empty();
  command.add("--mpi", job.mpi, "how srun starts several ranks; srun --mpi=list says what it has")
      .named("TYPE")
      .not_empty()
      .shows_default();
  command
      .add_repeated("--set",
                    arguments->settings,
                    "set a recipe key, as in --set train.steps=50; may be given several times")
      .named("KEY=VALUE");
  command.add_flag("--dry-run", arguments->is_dry, "print the batch script and submit nothing");
  command.ends_with("The number of the job goes to standard output. docs/cluster.md says more.");
  command.runs([arguments] { return submit(*arguments); });
}

}  // namespace penstock::app
