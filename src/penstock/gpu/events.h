// CUDA events: marks in a stream that can be timed and waited for.
#pragma once

#include "penstock/gpu/types.h"

struct CUevent_st;

namespace penstock::gpu {

class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;

  // In a stream that is being captured, the mark is made at each replay.
  void record(Stream stream);
  void wait() const;                  // blocks the host until the mark is reached
  void hold_up(Stream stream) const;  // what comes next on the stream waits for the mark

  CUevent_st* get() const { return event_; }

 private:
  CUevent_st* event_ = nullptr;
};

// Both must have been reached.
double seconds_between(const Event& first, const Event& second);

}  // namespace penstock::gpu
