#include "penstock/train/earlier_run.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/report/run_status.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

bool belongs_to_a_run(const std::string& name) {
  return name.starts_with("step-") || name == checkpoint::kLatestName || name == "metrics.jsonl" ||
         name == report::kStatusName || name.starts_with("events.out.tfevents.");
}

fs::path next_free(const fs::path& folder) {
  for (int number = 1;; ++number) {
    char name[32];
    std::snprintf(name, sizeof name, "earlier-%03d", number);
    if (!fs::exists(folder / name)) {
      return folder / name;
    }
  }
}

fs::path move_aside(const fs::path& folder, const std::vector<fs::path>& paths) {
  const fs::path aside = next_free(folder);
  std::error_code error;
  fs::create_directory(aside, error);
  for (const fs::path& path : paths) {
    if (!error) {
      fs::rename(path, aside / path.filename(), error);
    }
  }
  if (error) {
    throw FileError(cat("cannot move the earlier run in ",
                        folder.string(),
                        " aside: ",
                        error.message(),
                        "; choose another run.out"));
  }
  return aside;
}

}  // namespace

void move_earlier_run_aside(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (belongs_to_a_run(entry.path().filename().string())) {
      found.push_back(entry.path());
    }
  }
  if (found.empty()) {
    return;
  }
  const bool has_checkpoint = !checkpoint::list_steps(folder).empty();
  const fs::path aside = move_aside(folder, found);
  if (has_checkpoint) {
    log_info(folder.string(),
             " held an earlier run; it is now in ",
             aside.string(),
             " (to continue it instead, use --resume)");
  }
}

void move_later_steps_aside(const fs::path& folder, int64_t step) {
  std::vector<fs::path> later;
  for (const int64_t other : checkpoint::list_steps(folder)) {
    if (other > step) {
      for (fs::path& one : checkpoint::folders_of_step(folder, other)) {
        later.push_back(std::move(one));
      }
    }
  }
  if (later.empty()) {
    return;
  }
  const fs::path aside = move_aside(folder, later);
  std::error_code error;
  const fs::path metrics = folder / "metrics.jsonl";
  if (fs::exists(metrics, error)) {
    fs::copy_file(metrics, aside / metrics.filename(), error);
    if (error) {
      log_warning("cannot copy ", metrics.string(), " to ", aside.string(), ": ", error.message());
    }
  }
  log_info("the checkpoints after step ",
           step,
           " are now in ",
           aside.string(),
           ", with the metrics up to them");
}

}  // namespace penstock::train
