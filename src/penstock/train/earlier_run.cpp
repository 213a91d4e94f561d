#include "penstock/train/earlier_run.h"

#include <cstdio>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/run_folder.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

bool belongs_to_a_run(const std::string& name) {
  return name.starts_with("step-") || name == checkpoint::kLatestName || name == "metrics.jsonl" ||
         name.starts_with("events.out.tfevents.");
}

}  // namespace

void move_earlier_run_aside(const fs::path& folder) {
  std::vector<fs::path> found;
  bool has_checkpoint = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (belongs_to_a_run(name)) {
      found.push_back(entry.path());
      has_checkpoint = has_checkpoint || name.starts_with("step-");
    }
  }
  if (found.empty()) {
    return;
  }
  fs::path aside;
  for (int number = 1;; ++number) {
    char name[32];
    std::snprintf(name, sizeof name, "earlier-%03d", number);
    aside = folder / name;
    if (!fs::exists(aside)) {
      break;
    }
  }
  std::error_code error;
  fs::create_directory(aside, error);
  for (const fs::path& path : found) {
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
  if (has_checkpoint) {
    log_info(folder.string(),
             " held an earlier run; it is now in ",
             aside.string(),
             " (to continue it instead, use --resume)");
  }
}

}  // namespace penstock::train
