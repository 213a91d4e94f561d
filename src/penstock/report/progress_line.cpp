#include "penstock/report/progress_line.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/text_width.h"

namespace penstock::report {

namespace {

constexpr size_t kWidestBar = 32;
constexpr size_t kNarrowestBar = 10;  // fewer cells say nothing the count does not

// The part after the bar.
std::string details(const ProgressState& state, const std::string& count, size_t num_fields) {
  std::vector<std::string> parts = {count};
  for (size_t i = 0; i < num_fields; ++i) {
    const Field& field = state.fields[i];
    parts.push_back(field.name.empty() ? field.value : field.name + " " + field.value);
  }
  if (state.seconds_left) {
    const double seconds = *state.seconds_left;
    parts.push_back((seconds < 1 ? std::string("<1 s") : format_seconds(seconds)) + " left");
  }
  return join(parts, "  ");
}

// ASCII, because a line that is redrawn has to have the same width on every terminal.
std::string bar(const ProgressState& state, size_t cells) {
  const double share =
      std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
  const size_t filled = static_cast<size_t>(share * static_cast<double>(cells));
  std::string out(cells, ' ');
  std::fill_n(out.begin(), filled, '=');
  if (filled < cells) {
    out[filled] = '>';
  }
  return "[" + out + "] ";
}

}  // namespace

std::string plain_progress_line(const ProgressState& state) {
  const std::string count =
      state.total > 0 ? cat(state.done, "/", state.total) : std::to_string(state.done);
  const std::string prefix = state.title.empty() ? "" : state.title + " ";
  return prefix + details(state, count, state.fields.size());
}

std::string live_progress_line(const ProgressState& state, size_t width) {
  const std::string prefix = state.title.empty() ? "" : state.title + " ";
  std::string count = std::to_string(state.done);
  if (state.total > 0) {
    // A count of constant width keeps the fields in place.
    const std::string total = std::to_string(state.total);
    count = pad_left(count, total.size()) + "/" + total;
  }
  size_t num_fields = state.fields.size();
  std::string tail = details(state, count, num_fields);
  while (num_fields > 0 && text_width(prefix) + text_width(tail) > width) {
    tail = details(state, count, --num_fields);
  }
  const size_t used = text_width(prefix) + text_width(tail) + 3;  // brackets and a space
  const size_t room = width > used ? width - used : 0;
  const bool has_bar = state.total > 0 && room >= kNarrowestBar;
  const std::string middle = has_bar ? bar(state, std::min(room, kWidestBar)) : "";
  return cut_to_width(prefix + middle + tail, width);
}

}  // namespace penstock::report
