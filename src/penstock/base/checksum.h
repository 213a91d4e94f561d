// CRC-32C (Castagnoli): the checksum of checkpoint files and of TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// Continues from `before`, so a file can be summed piece by piece: crc32c(b, nb, crc32c(a, na)) ==
// crc32c(ab).
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace penstock
