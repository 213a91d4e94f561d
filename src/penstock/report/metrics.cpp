#include "penstock/report/metrics.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"

namespace penstock::report {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw FileError(cat("cannot create ", folder.string(), ": ", error.message()));
  }
}

std::optional<int64_t> step_of(std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return std::nullopt;
  }
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  return step->get<int64_t>();
}

void keep_steps_before(int64_t end, const fs::path& path) {
  std::error_code
      ignored;  // what cannot be looked at cannot be opened either, which is reported then
  if (!fs::exists(path, ignored)) {
    return;
  }
  const std::string text = read_text_file(path);
  std::string kept;
  int num_unreadable = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::optional<int64_t> step = step_of(line);
    if (!step) {
      ++num_unreadable;
    } else if (*step < end) {
      kept.append(line).append("\n");
    }
  }
  if (num_unreadable > 0) {
    log_warning("dropped ", num_unreadable, " unreadable line(s) of ", path.string());
  }
  if (kept != text) {
    write_text_file(path, kept);
  }
}

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_line(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  // Put together by hand: a json object would sort the names and write numbers its own way.
  std::string line = cat("{\"step\": ", step);
  for (const auto& [name, value] : values) {
    line += ", " + quoted(name) + ": " + (std::isfinite(value) ? format_number(value) : "null");
  }
  return line + "}\n";
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options) : jsonl_path_(options.folder / "metrics.jsonl") {
  const int64_t first_step = options.resume_step > 0 ? options.resume_step + 1 : 0;
  if (options.jsonl || options.tensorboard) {
    make_folder(options.folder);
  }
  if (options.jsonl) {
    keep_steps_before(first_step, jsonl_path_);
    jsonl_.emplace(jsonl_path_);
  }
  if (options.tensorboard) {
    events_.emplace(options.folder);
    events_->forget_from(first_step);
    events_->flush();
  }
}

void Metrics::record(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  if (jsonl_) {
    jsonl_->add(json_line(step, values));
  }
  if (events_) {
    for (const auto& [name, value] : values) {
      events_->add_scalar(name, value, step);
    }
    events_->flush();
  }
}

}  // namespace penstock::report
