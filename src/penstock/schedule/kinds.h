// Inside of the folder: one function for each schedule, in a file of its name. make_schedule checks
// the numbers first.
#pragma once

#include <cstdint>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

Schedule make_gpipe(int32_t ranks, int32_t micro_batches);
Schedule make_one_f_one_b(int32_t ranks, int32_t micro_batches);
Schedule make_interleaved(int32_t ranks, int32_t micro_batches, int32_t chunks);
Schedule make_zero_bubble_h1(int32_t ranks, int32_t micro_batches);
Schedule make_zero_bubble_h2(int32_t ranks, int32_t micro_batches);
Schedule make_zero_bubble_v(int32_t ranks, int32_t micro_batches);
Schedule make_asynchronous(Kind kind, int32_t ranks, int32_t micro_batches, int32_t updates);

}  // namespace penstock::schedule
