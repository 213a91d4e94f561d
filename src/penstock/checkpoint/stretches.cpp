#include "penstock/checkpoint/stretches.h"

#include <algorithm>
#include <span>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"

namespace penstock::checkpoint {

namespace {

constexpr size_t kNumbers = 3;  // of a stretch; a double holds each exactly

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

}  // namespace

void append(std::vector<Stretch>& stretches, const Stretch& next) {
  if (!stretches.empty() && stretches.back().begin + stretches.back().bytes == next.begin) {
    Stretch& last = stretches.back();
    last.crc32c = crc32c_combine(last.crc32c, next.crc32c, static_cast<uint64_t>(next.bytes));
    last.bytes += next.bytes;
  } else {
    stretches.push_back(next);
  }
}

std::vector<Stretch> gather_stretches(comm::Group& group,
                                      const std::vector<Stretch>& own,
                                      const comm::What& what) {
  const double count = static_cast<double>(own.size());
  const std::vector<double> counts = group.all_gather(std::span(&count, 1), what);
  const size_t most = static_cast<size_t>(largest(counts));
  std::vector<double> numbers;
  for (const Stretch& stretch : own) {
    numbers.insert(numbers.end(),
                   {static_cast<double>(stretch.begin),
                    static_cast<double>(stretch.bytes),
                    static_cast<double>(stretch.crc32c)});
  }
  numbers.resize(kNumbers * most);  // every rank gives as many
  const std::vector<double> all = group.all_gather(numbers, what);
  std::vector<Stretch> stretches;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    for (size_t i = 0; i < static_cast<size_t>(counts[rank]); ++i) {
      const double* const at = &all[kNumbers * (rank * most + i)];
      stretches.push_back(
          {static_cast<int64_t>(at[0]), static_cast<int64_t>(at[1]), static_cast<uint32_t>(at[2])});
    }
  }
  return stretches;
}

uint32_t checksum_of_all(std::vector<Stretch> stretches, int64_t bytes, const std::string& file) {
  std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.bytes < b.bytes);
  });
  uint32_t sum = 0;
  int64_t covered = 0;
  for (const Stretch& stretch : stretches) {
    PENSTOCK_CHECK(
        stretch.begin == covered,
        file,
        stretch.begin < covered ? " was written twice from byte " : " was not written from byte ",
        std::min(stretch.begin, covered),
        " to ",
        std::max(stretch.begin, covered));
    sum = crc32c_combine(sum, stretch.crc32c, static_cast<uint64_t>(stretch.bytes));
    covered += stretch.bytes;
  }
  PENSTOCK_CHECK(covered == bytes, file, " was written up to byte ", covered, " of ", bytes);
  return sum;
}

}  // namespace penstock::checkpoint
