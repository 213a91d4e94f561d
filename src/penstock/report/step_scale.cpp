#include "penstock/report/step_scale.h"

#include <algorithm>

namespace penstock::report {

namespace {

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr double kShownLimit = 2.5;  // times what is held
constexpr double kHeadroom = 1.1;    // above the highest curve or limit

UnitAxis from_zero(double end, const char* unit, double unit_size) {
  return {Axis({0, end > 0 ? end / unit_size : 1}, Scale::Linear), unit, unit_size};
}

}  // namespace

UnitAxis time_axis(const StepPicture& picture) {
  double end = std::max(picture.predicted.seconds, picture.shown_seconds);
  if (picture.measured != nullptr) {
    end = std::max(end, picture.measured->seconds);
  }
  if (is_bare(picture.program)) {
    return from_zero(end, "time", 1);
  }
  if (end < 2e-3) {
    return from_zero(end, "us", 1e-6);
  }
  return end < 10 ? from_zero(end, "ms", 1e-3) : from_zero(end, "s", 1);
}

int64_t most_bytes(const StepPicture& picture, size_t rank) {
  const int64_t predicted = picture.predicted.ranks[rank].peak_bytes;
  return picture.measured == nullptr
             ? predicted
             : std::max(predicted, picture.measured->ranks[rank].peak_bytes);
}

bool shows_limit(const StepPicture& picture, size_t rank) {
  const int64_t limit = picture.program.ranks[rank].limit_bytes;
  return limit > 0 &&
         static_cast<double>(limit) <= kShownLimit * static_cast<double>(most_bytes(picture, rank));
}

UnitAxis bytes_axis(const StepPicture& picture) {
  int64_t most = picture.shown_bytes;
  for (size_t rank = 0; rank < picture.program.ranks.size(); ++rank) {
    most = std::max(most, most_bytes(picture, rank));
    if (shows_limit(picture, rank)) {
      most = std::max(most, picture.program.ranks[rank].limit_bytes);
    }
  }
  const double end = kHeadroom * static_cast<double>(most);
  if (end < 2 * kMiB) {
    return from_zero(end, "KiB", kKiB);
  }
  return end < 2 * kGiB ? from_zero(end, "MiB", kMiB) : from_zero(end, "GiB", kGiB);
}

}  // namespace penstock::report
