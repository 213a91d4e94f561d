// Axes of the step's pictures, in the unit that suits them: time from 0, bytes from 0.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/report/axis.h"
#include "penstock/report/step_picture.h"

namespace penstock::report {

struct UnitAxis {
  Axis axis;  // in units
  std::string unit;
  double unit_size = 1;  // seconds or bytes

  // 0 at the low end, 1 at the high end.
  double position(double value) const { return axis.position(value / unit_size); }
};

// To the end of the longer timeline, in us, ms or s; of a bare program without a unit.
UnitAxis time_axis(const StepPicture& picture);

// The most that a rank holds, in either timeline.
int64_t most_bytes(const StepPicture& picture, size_t rank);

// A limit far above what is held would flatten the curves; it stays out of the picture.
bool shows_limit(const StepPicture& picture, size_t rank);

// For all ranks, with their limits where those are shown, in KiB, MiB or GiB.
UnitAxis bytes_axis(const StepPicture& picture);

}  // namespace penstock::report
