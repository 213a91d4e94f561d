// Marks in the work of a device, and the seconds between them. On the CPU a mark is a look at the
// clock; on a GPU it is an event in the compute stream, which costs the host next to nothing and
// can be read once the work before it is done.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Device.h>

namespace penstock::device {

class Stopwatch {
 public:
  virtual ~Stopwatch() = default;

  virtual int64_t mark() = 0;  // its number, from 0
  virtual void wait() = 0;     // until the work before the last mark is done
  // Forgets all marks but the first `kept`: a graph that is replayed makes those again itself.
  virtual void restart(int64_t kept = 0) = 0;
  // Between two marks that were waited for.
  virtual double seconds(int64_t from, int64_t to) const = 0;
};

std::unique_ptr<Stopwatch> make_stopwatch(c10::Device where);

// For a GPU's current stream. Throws InternalError in builds without CUDA.
std::unique_ptr<Stopwatch> make_gpu_stopwatch();

}  // namespace penstock::device
