// The text of a progress line, apart from when and where it is shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::report {

// {"loss", "2.31"} reads "loss 2.31"; without a name only the value is shown ("12.3k tok/s").
struct Field {
  std::string name;
  std::string value;
};

struct ProgressState {
  std::string title;
  int64_t done = 0;
  int64_t total = 0;  // 0: not known
  std::vector<Field> fields;
  std::optional<double> seconds_left;
};

// "train 20/100  loss 2.3100  lr 3.0e-04  1m 20s left"
std::string plain_progress_line(const ProgressState& state);

// "train [=====>      ]  20/100  loss 2.3100  1m 20s left" in at most `width` columns. The bar
// gives way first, then the fields from the last one on; the count and the time left stay longest.
std::string live_progress_line(const ProgressState& state, size_t width);

}  // namespace penstock::report
