#include "penstock/base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace penstock {

namespace {

std::string print(const char* format, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

// Units are chosen by the number as it will be shown: 999.96 ms is "1.0 s", not "1000.0 ms".
double round_to_tenth(double value) {
  return std::round(value * 10) / 10;
}

std::optional<double> unit_factor(std::string_view unit) {
  struct Unit {
    std::string_view name;
    double factor;
  };
  constexpr double kilo = 1000, kibi = 1024;
  constexpr Unit units[] = {{"", 1},
                            {"B", 1},
                            {"KB", kilo},
                            {"MB", kilo * kilo},
                            {"GB", kilo * kilo * kilo},
                            {"TB", kilo * kilo * kilo * kilo},
                            {"KiB", kibi},
                            {"MiB", kibi * kibi},
                            {"GiB", kibi * kibi * kibi},
                            {"TiB", kibi * kibi * kibi * kibi}};
  const auto is_same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  for (const Unit& known : units) {
    if (std::equal(known.name.begin(), known.name.end(), unit.begin(), unit.end(), is_same)) {
      return known.factor;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) {
    return std::nullopt;
  }
  std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  while (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  const std::optional<double> factor = unit_factor(unit);
  if (!factor) {
    return std::nullopt;
  }
  const double bytes = std::floor(number * *factor);
  if (bytes >= 0x1p63) {
    return std::nullopt;
  }
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(int64_t bytes) {
  if (bytes < 1024) {
    return std::to_string(bytes) + " B";
  }
  const double kibibytes = static_cast<double>(bytes) / 1024;
  if (round_to_tenth(kibibytes) < 1024) {
    return print("%.1f KiB", kibibytes);
  }
  const double mebibytes = kibibytes / 1024;
  if (round_to_tenth(mebibytes) < 1024) {
    return print("%.1f MiB", mebibytes);
  }
  return print("%.2f GiB", mebibytes / 1024);
}

std::string format_seconds(double seconds) {
  if (std::round(seconds * 1e6) < 1000) {
    return print("%.0f us", seconds * 1e6);
  }
  if (round_to_tenth(seconds * 1e3) < 1000) {
    return print("%.1f ms", seconds * 1e3);
  }
  if (round_to_tenth(seconds) < 60) {
    return print("%.1f s", seconds);
  }
  const int64_t whole = std::llround(seconds);
  std::array<char, 64> buffer;
  if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%dm %02ds", int(whole / 60), int(whole % 60));
  } else {
    std::snprintf(buffer.data(),
                  buffer.size(),
                  "%lldh %02dm",
                  static_cast<long long>(whole / 3600),
                  int(whole % 3600 / 60));
  }
  return buffer.data();
}

std::string format_count(int64_t count) {
  std::string text = std::to_string(count);
  const int first_digit = count < 0 ? 1 : 0;
  for (int position = static_cast<int>(text.size()) - 3; position > first_digit; position -= 3) {
    text.insert(static_cast<size_t>(position), 1, ',');
  }
  return text;
}

std::string format_number(double value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : print("%.17g", value);
}

std::string format_milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 1e3 * seconds);
  return text;
}

}  // namespace penstock
