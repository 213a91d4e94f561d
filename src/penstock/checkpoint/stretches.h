// The checksum of a file from those of its parts, whoever has written or read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/comm/group.h"

namespace penstock::checkpoint {

struct Stretch {
  int64_t begin = 0;  // byte of the file
  int64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const Stretch&) const = default;
};

// Adds it at the end; joined to the last one where it goes on from there.
void append(std::vector<Stretch>& stretches, const Stretch& next);

// Those of all ranks, of rank 0 first. All ranks call it.
std::vector<Stretch> gather_stretches(comm::Group& group,
                                      const std::vector<Stretch>& own,
                                      const comm::What& what);

// Of a file of so many bytes. Throws InternalError, naming `file`, unless the stretches cover each
// byte once.
uint32_t checksum_of_all(std::vector<Stretch> stretches, int64_t bytes, const std::string& file);

}  // namespace penstock::checkpoint
