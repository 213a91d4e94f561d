#include "penstock/cluster/queue.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "penstock/cluster/batch_script.h"

namespace penstock::cluster {

namespace fs = std::filesystem;

namespace {

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > 1'000'000) {
    return std::nullopt;
  }
  return value;
}

// Up to the next `mark`, which is taken away, too.
std::string_view take(std::string_view& text, char mark) {
  const size_t end = std::min(text.find(mark), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

std::optional<int64_t> parse_slurm_time(std::string_view text) {
  int64_t seconds = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const std::optional<int64_t> days = number(text.substr(0, dash));
    if (!days) {
      return std::nullopt;
    }
    seconds = *days * 24;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  while (!text.empty()) {
    const std::optional<int64_t> part = number(take(text, ':'));
    if (!part || ++parts > 3) {
      return std::nullopt;
    }
    seconds = (parts == 1 ? seconds : seconds * 60) + *part;
  }
  return parts >= 2 ? std::optional(seconds) : std::nullopt;
}

std::vector<QueuedJob> read_queue(std::string_view text) {
  std::vector<QueuedJob> jobs;
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    std::array<std::string_view, 4> words;
    for (std::string_view& word : words) {
      word = take(line, '|');
    }
    if (!line.starts_with(kCommentPrefix)) {
      continue;
    }
    line.remove_prefix(std::string_view(kCommentPrefix).size());
    while (line.ends_with(' ')) {
      line.remove_suffix(1);
    }
    jobs.push_back({std::string(words[0]),
                    std::string(words[1]),
                    std::string(words[3]),
                    parse_slurm_time(words[2]),
                    std::string(line),
                    words[2] == "UNLIMITED"});
  }
  return jobs;
}

std::string folder_of_run(const fs::path& run) {
  std::error_code error;
  fs::path folder = fs::absolute(run, error);
  if (const fs::path found = fs::weakly_canonical(error ? run : folder, error); !error) {
    folder = found;
  } else {
    folder = folder.lexically_normal();
  }
  // What ends with a slash stays so where there is no such folder yet.
  return (folder.has_filename() ? folder : folder.parent_path()).string();
}

const QueuedJob* find_job(const std::vector<QueuedJob>& jobs, const std::string& run_folder) {
  const auto found = std::find_if(
      jobs.begin(), jobs.end(), [&](const QueuedJob& job) { return job.run_folder == run_folder; });
  return found == jobs.end() ? nullptr : &*found;
}

}  // namespace penstock::cluster
