// When each instruction would run and what memory would hold, from the program alone.
//
// An instruction starts when its resource is free, all values that it reads, changes or frees are
// there, and no other resource still reads what it changes or frees. A receive ends when its send
// has ended, or when its turn comes; what frees a value that was sent waits for the receive. A gather
// or reduce starts when all ranks of its group have come to theirs; on a line, also when those
// before it there are done, while the rank goes on. While an instruction runs the rank holds what
// was live plus working_bytes; when it ends, what it made is live and what it frees is gone.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::program {

struct Span {
  int32_t instruction = 0;
  double start = 0;  // seconds from the beginning of the step
  double end = 0;
};

// Memory is `bytes` from `seconds` on, until the next point.
struct MemoryPoint {
  double seconds = 0;
  int64_t bytes = 0;
};

struct RankTimeline {
  std::vector<Span> spans;  // in the order of the rank's instructions
  std::vector<MemoryPoint> memory;
  int64_t peak_bytes = 0;
  int32_t peak_instruction = -1;
  std::map<Resource, double> busy_seconds;

  double compute_seconds() const;
};

// What simulate() predicts and what the executor records have the same form.
struct Timeline {
  double seconds = 0;  // from the beginning to the end of the last instruction of any rank
  std::vector<RankTimeline> ranks;
};

// Throws InternalError for a program that verify() would refuse for its lifetimes.
Timeline simulate(const Program& program);

}  // namespace penstock::program
