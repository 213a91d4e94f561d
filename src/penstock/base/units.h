// Bytes, seconds and counts as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// "600MiB", "8 GiB", "1.5GB", "4096" -> bytes. KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB,
// TB of 1000. Nothing when the text is no such quantity or does not fit into 63 bits.
std::optional<int64_t> parse_bytes(std::string_view text);

std::string format_bytes(int64_t bytes);     // "1.50 GiB"
std::string format_seconds(double seconds);  // "850 us", "12.3 ms", "4.2 s", "3m 05s", "2h 10m"
std::string format_count(int64_t count);     // "124,439,808"
std::string format_milliseconds(double seconds);  // "12.34", for columns that say ms

// The shortest decimal text that reads back as the same double.
std::string format_number(double value);

}  // namespace penstock
