#include "penstock/checkpoint/verify.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <system_error>
#include <vector>

#include "penstock/base/checksum.h"
#include "penstock/base/file.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/together.h"
#include "penstock/comm/group.h"
#include "penstock/comm/local.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kBytesAtOnce = int64_t{4} << 20;

void check_size(const fs::path& folder, const FileRecord& file) {
  std::error_code unused;
  if (fs::status(folder / file.name, unused).type() == fs::file_type::not_found) {
    throw damaged(folder, cat(file.name, " is missing"));
  }
  const int64_t bytes = OffsetReader(folder / file.name).size();
  if (bytes != file.bytes) {
    throw damaged(folder, cat(file.name, " has ", bytes, " bytes, its manifest says ", file.bytes));
  }
}

uint32_t sum_part(const fs::path& path, int64_t begin, int64_t end, std::vector<std::byte>& room) {
  const OffsetReader file(path);
  uint32_t sum = 0;
  while (begin < end) {
    const int64_t bytes = std::min(end - begin, kBytesAtOnce);
    room.resize(static_cast<size_t>(bytes));
    file.read(begin, room);
    sum = crc32c(room.data(), room.size(), sum);
    begin += bytes;
  }
  return sum;
}

// All files one after the other, cut into as many stretches as there are ranks: what each has of
// each.
class Shares {
 public:
  Shares(const Manifest& manifest, int32_t ranks) : manifest_(manifest), ranks_(ranks) {
    for (const FileRecord& file : manifest.files) {
      starts_.push_back(total_);
      total_ += file.bytes;
    }
  }

  struct Part {
    int64_t begin, end;  // bytes of the file; the same where the rank has none
  };
  Part part(size_t file, int32_t rank) const {
    const int64_t bytes = manifest_.files[file].bytes;
    const auto within = [&](int64_t place) {
      return std::clamp(place - starts_[file], int64_t{0}, bytes);
    };
    return {within(first_byte(rank)), within(first_byte(rank + 1))};
  }

 private:
  int64_t first_byte(int32_t rank) const {
    return total_ / ranks_ * rank + std::min<int64_t>(rank, total_ % ranks_);
  }

  const Manifest& manifest_;
  const int32_t ranks_;
  std::vector<int64_t> starts_;
  int64_t total_ = 0;
};

}  // namespace

void verify_files(const fs::path& folder, const Manifest& manifest, comm::Group& group) {
  const comm::What what = [] { return std::string("the checkpoint's checksums"); };
  const size_t num_files = manifest.files.size();
  const Shares shares(manifest, group.size());
  std::vector<double> own(num_files);  // a double holds a checksum exactly
  run_together(group, what, [&] {
    // Sizes first: they cost nothing, and a short file is the usual damage.
    for (const FileRecord& file : manifest.files) {
      check_size(folder, file);
    }
    std::vector<std::byte> room;
    for (size_t i = 0; i < num_files; ++i) {
      const Shares::Part part = shares.part(i, group.rank());
      own[i] = sum_part(folder / manifest.files[i].name, part.begin, part.end, room);
    }
  });
  const std::vector<double> all = group.all_gather(own, what);
  for (size_t i = 0; i < num_files; ++i) {
    uint32_t sum = 0;
    for (int32_t rank = 0; rank < group.size(); ++rank) {
      const Shares::Part part = shares.part(i, rank);
      sum = crc32c_combine(sum,
                           static_cast<uint32_t>(all[static_cast<size_t>(rank) * num_files + i]),
                           static_cast<uint64_t>(part.end - part.begin));
    }
    const FileRecord& file = manifest.files[i];
    if (sum != file.crc32c) {
      throw damaged(folder,
                    cat(file.name,
                        " has checksum ",
                        checksum_text(sum),
                        ", its manifest says ",
                        checksum_text(file.crc32c)));
    }
  }
}

void verify_files(const fs::path& folder, const Manifest& manifest) {
  comm::run_local(1, [&](comm::Group& alone) { verify_files(folder, manifest, alone); });
}

}  // namespace penstock::checkpoint
