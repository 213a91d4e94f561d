// CRC-32C (Castagnoli): the checksum of checkpoint files and of TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// Continues from `before`, so a file can be summed piece by piece: crc32c(b, nb, crc32c(a, na)) ==
// crc32c(ab).
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The sum of two stretches that follow each other, from the sum of each and the length of the
// second: crc32c_combine(crc32c(a, na), crc32c(b, nb), nb) == crc32c(ab). Costs the same for any
// length.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace penstock
