#include "penstock/base/units.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(ParseBytes, KnowsEveryUnit) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("3kB"), 3'000);
  EXPECT_EQ(parse_bytes("3KB"), 3'000);
  EXPECT_EQ(parse_bytes("3MB"), 3'000'000);
  EXPECT_EQ(parse_bytes("3GB"), 3'000'000'000);
  EXPECT_EQ(parse_bytes("3TB"), 3'000'000'000'000);
  EXPECT_EQ(parse_bytes("3KiB"), int64_t{3} << 10);
  EXPECT_EQ(parse_bytes("3MiB"), int64_t{3} << 20);
  EXPECT_EQ(parse_bytes("3GiB"), int64_t{3} << 30);
  EXPECT_EQ(parse_bytes("3TiB"), int64_t{3} << 40);
  EXPECT_EQ(parse_bytes("3mib"), int64_t{3} << 20);
  EXPECT_EQ(parse_bytes("3 gb"), 3'000'000'000);
}

TEST(ParseBytes, TakesFractionsAndSpaces) {
  EXPECT_EQ(parse_bytes("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes(".5 KiB"), 512);
  EXPECT_EQ(parse_bytes("600  MiB"), int64_t{600} << 20);
  EXPECT_EQ(parse_bytes("0.9999"), 0);  // whole bytes, rounded down
  EXPECT_EQ(parse_bytes("0"), 0);
}

TEST(ParseBytes, GivesNothingForOtherTexts) {
  for (const char* text :
       {"",     " ",      "MiB",    "five",   "-1",    "-1MiB",  "+1",   "1 M",
        "1m",   "1 g",    "1Mi",    "1 MiB ", " 1MiB", "1MiBs",  "1e3",  "1e3MiB",
        "0x10", "1,5GiB", "1 2MiB", "nan",    "inf",   "infMiB", "1PiB", "."}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(ParseBytes, GivesNothingPast63Bits) {
  EXPECT_EQ(parse_bytes("9223372036854774784"), 9223372036854774784);  // the last double below
  EXPECT_EQ(parse_bytes("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_bytes("8388607TiB"), int64_t{8388607} << 40);
  EXPECT_EQ(parse_bytes("8388608TiB"), std::nullopt);
  EXPECT_EQ(parse_bytes(std::string(400, '9')), std::nullopt);
}

TEST(ParseBytes, ReadsNoFurtherThanTheView) {
  EXPECT_EQ(parse_bytes(std::string_view("12MiB").substr(0, 2)), 12);
  EXPECT_EQ(parse_bytes(std::string_view("12MiB").substr(0, 1)), 1);
}

TEST(FormatBytes, ChoosesTheUnitByWhatIsShown) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024 - 60), "1023.9 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(600 << 20), "600.0 MiB");
  EXPECT_EQ(format_bytes((1 << 30) - (1 << 16)), "1023.9 MiB");
  EXPECT_EQ(format_bytes((1 << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(kLargest), "8589934592.00 GiB");
  EXPECT_EQ(format_bytes(-1), "-1 B");
}

TEST(FormatSeconds, ChoosesTheUnitBySize) {
  EXPECT_EQ(format_seconds(0), "0 us");
  EXPECT_EQ(format_seconds(850e-6), "850 us");
  EXPECT_EQ(format_seconds(1e-3), "1.0 ms");
  EXPECT_EQ(format_seconds(12.34e-3), "12.3 ms");
  EXPECT_EQ(format_seconds(1), "1.0 s");
  EXPECT_EQ(format_seconds(4.2), "4.2 s");
  EXPECT_EQ(format_seconds(60), "1m 00s");
  EXPECT_EQ(format_seconds(185), "3m 05s");
  EXPECT_EQ(format_seconds(3600), "1h 00m");
  EXPECT_EQ(format_seconds(7800), "2h 10m");
  EXPECT_EQ(format_seconds(1e6), "277h 46m");
}

TEST(FormatSeconds, JustBelowALimitShowsTheNextUnit) {
  EXPECT_EQ(format_seconds(999.4e-6), "999 us");
  EXPECT_EQ(format_seconds(999.6e-6), "1.0 ms");
  EXPECT_EQ(format_seconds(0.99994), "999.9 ms");
  EXPECT_EQ(format_seconds(0.99996), "1.0 s");
  EXPECT_EQ(format_seconds(59.94), "59.9 s");
  EXPECT_EQ(format_seconds(59.96), "1m 00s");
  EXPECT_EQ(format_seconds(119.6), "2m 00s");
  EXPECT_EQ(format_seconds(3599.4), "59m 59s");
  EXPECT_EQ(format_seconds(3599.6), "1h 00m");
}

TEST(FormatCount, GroupsDigitsByThree) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(124'439'808), "124,439,808");
  EXPECT_EQ(format_count(-999), "-999");
  EXPECT_EQ(format_count(-100'000), "-100,000");
  EXPECT_EQ(format_count(kLargest), "9,223,372,036,854,775,807");
  EXPECT_EQ(format_count(-kLargest - 1), "-9,223,372,036,854,775,808");
}

TEST(FormatNumber, IsShort) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(0.1), "0.1");
  EXPECT_EQ(format_number(3e-4), "3e-04");
  EXPECT_EQ(format_number(1e22), "1e+22");
  EXPECT_EQ(format_number(-2.5), "-2.5");
}

TEST(FormatNumber, ReadsBackAsTheSameDouble) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const double value = std::ldexp(static_cast<double>(static_cast<int64_t>(random())),
                                    static_cast<int>(random() % 2000) - 1100);
    EXPECT_EQ(std::strtod(format_number(value).c_str(), nullptr), value);
  }
  for (const double value : {5e-324, 1.7976931348623157e308, 1.0 / 3}) {
    EXPECT_EQ(std::strtod(format_number(value).c_str(), nullptr), value);
  }
}

}  // namespace
TEST(FormatMilliseconds, HasTwoDigitsForColumns) {
  EXPECT_EQ(format_milliseconds(0.0123456), "12.35");
  EXPECT_EQ(format_milliseconds(2), "2000.00");
}

}  // namespace penstock
