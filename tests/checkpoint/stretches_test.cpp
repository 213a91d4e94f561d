#include "penstock/checkpoint/stretches.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/comm/local.h"

#include "support/error_text.h"

namespace penstock::checkpoint {
namespace {

using test::error_text;

const std::string kText = "what several have written";

Stretch stretch(size_t begin, size_t end) {
  return {static_cast<int64_t>(begin),
          static_cast<int64_t>(end - begin),
          crc32c(kText.data() + begin, end - begin)};
}

TEST(Stretches, NeighboursAreJoined) {
  std::vector<Stretch> stretches;
  append(stretches, stretch(2, 5));
  append(stretches, stretch(5, 5));
  append(stretches, stretch(5, 9));
  append(stretches, stretch(11, 12));
  append(stretches, stretch(0, 2));
  EXPECT_EQ(stretches, (std::vector<Stretch>{stretch(2, 9), stretch(11, 12), stretch(0, 2)}));
}

TEST(Stretches, SumToTheChecksumOfTheWholeInAnyOrder) {
  const uint32_t whole = crc32c(kText.data(), kText.size());
  const auto bytes = static_cast<int64_t>(kText.size());
  EXPECT_EQ(checksum_of_all({stretch(7, kText.size()), stretch(0, 0), stretch(0, 7)}, bytes, "x"),
            whole);
  EXPECT_EQ(checksum_of_all({}, 0, "x"), 0u);
}

TEST(Stretches, GapsAndOverlapsAreNamed) {
  const auto text_of = [](const std::vector<Stretch>& stretches) {
    return error_text<InternalError>([&] { checksum_of_all(stretches, 9, "model"); });
  };
  EXPECT_NE(text_of({stretch(0, 4), stretch(5, 9)}).find("model was not written from byte 4 to 5"),
            std::string::npos);
  EXPECT_NE(
      text_of({stretch(0, 6), stretch(5, 9)}).find("model was written twice from byte 5 to 6"),
      std::string::npos);
  EXPECT_NE(text_of({stretch(0, 8)}).find("model was written up to byte 8 of 9"),
            std::string::npos);
}

TEST(Stretches, OfAllRanksComeToAll) {
  comm::run_local(3, [](comm::Group& group) {
    std::vector<Stretch> own;  // of rank 0: none
    for (int32_t i = 0; i < group.rank(); ++i) {
      own.push_back({(int64_t{1} << 40) + i, group.rank(), 0xFFFFFFF0u + static_cast<uint32_t>(i)});
    }
    const std::vector<Stretch> all =
        gather_stretches(group, own, [] { return std::string("a test"); });
    EXPECT_EQ(all,
              (std::vector<Stretch>{{int64_t{1} << 40, 1, 0xFFFFFFF0u},
                                    {int64_t{1} << 40, 2, 0xFFFFFFF0u},
                                    {(int64_t{1} << 40) + 1, 2, 0xFFFFFFF1u}}));
  });
}

}  // namespace
}  // namespace penstock::checkpoint
