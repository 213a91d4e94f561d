#include "penstock/cluster/job_list.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/units.h"
#include "penstock/cluster/batch_script.h"
#include "penstock/report/run_status.h"
#include "penstock/report/table.h"

namespace penstock::cluster {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::streamoff kTailBytes = 1 << 16;
constexpr const char* kFilesOfARun[] = {"status.json", "metrics.jsonl", kScriptName};

// The words of report/run_status.h; a status.json with another is not ours.
constexpr std::string_view kStates[] = {
    report::kRunning, report::kFinished, report::kInterrupted, report::kFailed};

// To open a FIFO would be to wait for its writer.
std::string read_tail(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    return {};
  }
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) {
    return {};
  }
  const std::streamoff size = in.tellg();
  const std::streamoff bytes = std::min(size, kTailBytes);
  std::string text(static_cast<size_t>(std::max<std::streamoff>(bytes, 0)), '\0');
  in.seekg(size - bytes);
  in.read(text.data(), bytes);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

// The last line that is a step's. The first of a tail and the last of a run under way may be cut short.
void read_last_step(const std::string& tail, RunProgress& progress) {
  size_t end = tail.size();
  while (end > 0 && !progress.step) {
    const size_t line_end = end - 1;
    const size_t newline = line_end == 0 ? std::string::npos : tail.rfind('\n', line_end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const json line = json::parse(tail.begin() + static_cast<std::ptrdiff_t>(begin),
                                  tail.begin() + static_cast<std::ptrdiff_t>(end),
                                  nullptr,
                                  /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("loss") && line.contains("step") &&
        line["step"].is_number_integer()) {
      progress.step = line["step"].get<int64_t>();
      if (line["loss"].is_number()) {
        progress.loss = line["loss"].get<double>();
      }
    }
    end = begin;
  }
}

std::optional<int64_t> seconds_since(const fs::path& file) {
  std::error_code error;
  const fs::file_time_type written = fs::last_write_time(file, error);
  if (error) {
    return std::nullopt;
  }
  const auto age = fs::file_time_type::clock::now() - written;
  return std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(age).count());
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

// Names may hold any bytes, and a terminal obeys some of them.
std::string without_controls(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) {
      letter = '?';
    }
  }
  return text;
}

// Of a job that is over its limit, Slurm says nothing or zero.
std::string left_text(const QueuedJob& job) {
  return job.left_seconds   ? format_seconds(static_cast<double>(*job.left_seconds))
         : job.is_unlimited ? "no limit"
                            : "-";
}

std::string age_text(int64_t seconds) {
  return cat(seconds < 60 ? cat(seconds, " s") : format_seconds(static_cast<double>(seconds)),
             " ago");
}

std::string queue_text(const QueuedJob& job) {
  const bool has_reason = !job.reason.empty() && job.reason != "None";
  return cat(job.state, has_reason ? cat(" (", job.reason, ")") : "");
}

// As a user would name it.
std::string name_of(const fs::path& run) {
  std::error_code error;
  const fs::path near = fs::proximate(run, error);
  const bool is_below = !error && !near.empty() && *near.begin() != "..";
  return is_below ? near.string() : run.string();
}

}  // namespace

RunProgress read_progress(const fs::path& run) {
  RunProgress progress;
  const json status =
      json::parse(read_tail(run / "status.json"), nullptr, /*allow_exceptions=*/false);
  if (status.is_object() && status.contains("state") && status["state"].is_string()) {
    const std::string word = status["state"].get<std::string>();
    if (std::find(std::begin(kStates), std::end(kStates), word) != std::end(kStates)) {
      progress.state = word;
    }
  }
  read_last_step(read_tail(run / "metrics.jsonl"), progress);
  if (progress.step) {
    progress.age_seconds = seconds_since(run / "metrics.jsonl");
  }
  return progress;
}

bool is_run(const fs::path& folder) {
  std::error_code error;
  return std::any_of(std::begin(kFilesOfARun), std::end(kFilesOfARun), [&](const char* name) {
    return fs::is_regular_file(folder / name, error);
  });
}

std::vector<fs::path> list_runs(const fs::path& folder) {
  std::vector<fs::path> runs;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_run(entry->path())) {
      runs.push_back(entry->path());
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::vector<JobRow> join_jobs(const std::vector<QueuedJob>& jobs,
                              const std::vector<fs::path>& runs) {
  std::vector<JobRow> rows;
  for (const QueuedJob& job : jobs) {
    rows.push_back({job.run_folder, job, read_progress(job.run_folder)});
  }
  const size_t num_jobs = rows.size();
  for (const fs::path& run : runs) {
    const auto end = rows.begin() + static_cast<std::ptrdiff_t>(num_jobs);
    const bool has_job = std::any_of(rows.begin(), end, [&](const JobRow& row) {
      return folder_of_run(row.run) == folder_of_run(run);
    });
    if (!has_job) {
      rows.push_back({run, std::nullopt, read_progress(run)});
    }
  }
  return rows;
}

std::string jobs_text(const std::vector<JobRow>& rows) {
  using report::Align;
  report::Table table({{"run"},
                       {"job", Align::Right},
                       {"in the queue"},
                       {"state"},
                       {"step", Align::Right},
                       {"loss", Align::Right},
                       {"last step", Align::Right},
                       {"time left", Align::Right}});
  for (const JobRow& row : rows) {
    const RunProgress& progress = row.progress;
    table.add_row({without_controls(name_of(row.run)),
                   row.job ? without_controls(row.job->id) : "-",
                   row.job ? without_controls(queue_text(*row.job)) : "-",
                   progress.state.empty() ? "-" : progress.state,
                   progress.step ? format_count(*progress.step) : "-",
                   progress.loss ? number_text(*progress.loss) : "-",
                   progress.age_seconds ? age_text(*progress.age_seconds) : "-",
                   row.job ? left_text(*row.job) : "-"});
  }
  return table.text();
}

nlohmann::ordered_json jobs_json(const std::vector<JobRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  for (const JobRow& row : rows) {
    const QueuedJob job = row.job.value_or(QueuedJob{});
    list.push_back({{"run", row.run.string()},
                    {"job", text_or_null(job.id)},
                    {"queue", text_or_null(job.state)},
                    {"reason", text_or_null(job.reason)},
                    {"left_seconds", or_null(job.left_seconds)},
                    {"state", text_or_null(row.progress.state)},
                    {"step", or_null(row.progress.step)},
                    {"loss", or_null(row.progress.loss)},
                    {"last_step_seconds_ago", or_null(row.progress.age_seconds)}});
  }
  return list;
}

std::string jobs_json_text(const std::vector<JobRow>& rows) {
  return jobs_json(rows).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace penstock::cluster
