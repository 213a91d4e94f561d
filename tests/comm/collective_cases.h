// Every collective by every algorithm against a plain sum, over odd sizes and uneven chunks; the
// same for ranks that are threads and ranks that are processes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/comm/collective_traffic.h"
#include "penstock/comm/collectives.h"
#include "penstock/kernels/cpu.h"

#include "comm/traffic.h"

namespace penstock::comm::test {

// Elements of either kind in a buffer with a guard at both ends.
class Elements {
 public:
  Elements(Element element, int64_t count)
      : element_(element), count_(count), bytes_(static_cast<size_t>(size() + 2 * kGuard), 0xA5) {}

  int64_t size() const { return count_ * element_bytes(element_); }
  uint8_t* data() { return bytes_.data() + kGuard; }
  const uint8_t* data() const { return bytes_.data() + kGuard; }

  float get(int64_t i) const {
    if (element_ == Element::Float32) {
      float value = 0;
      std::memcpy(&value, data() + 4 * i, 4);
      return value;
    }
    kernels::Bf16 value{};
    std::memcpy(&value, data() + 2 * i, 2);
    return kernels::to_float(value);
  }
  void set(int64_t i, float value) {
    if (element_ == Element::Float32) {
      std::memcpy(data() + 4 * i, &value, 4);
    } else {
      const auto rounded = kernels::from_float<kernels::Bf16>(value);
      std::memcpy(data() + 2 * i, &rounded, 2);
    }
  }

  bool has_guards() const {
    const auto is_guard = [](uint8_t byte) { return byte == 0xA5; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, is_guard) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), is_guard);
  }

 private:
  static constexpr int64_t kGuard = 64;

  Element element_;
  int64_t count_;
  std::vector<uint8_t> bytes_;
};

// What rank `rank` puts in: numbers of both signs and several magnitudes.
inline Elements contribution(Element element, int32_t rank, int64_t count) {
  Elements values(element, count);
  uint32_t state = static_cast<uint32_t>(rank) * 2654435761U + static_cast<uint32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const float unit = static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0F;
    values.set(i, std::ldexp(unit, static_cast<int>(state >> 7 & 7)));
  }
  return values;
}

struct Reference {
  Reference(Element element, int32_t ranks, int64_t count)
      : in_order(contribution(element, 0, count)),
        sums(static_cast<size_t>(count)),
        tolerances(static_cast<size_t>(count)) {
    const double unit = element == Element::Float32 ? std::ldexp(1.0, -23) : std::ldexp(1.0, -7);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Elements values = contribution(element, rank, count);
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        sums[at] += static_cast<double>(values.get(i));
        tolerances[at] += ranks * unit * std::abs(static_cast<double>(values.get(i)));
        if (rank > 0) {
          in_order.set(i, in_order.get(i) + values.get(i));
        }
      }
    }
  }

  Elements in_order;  // added one rank after the other, rounded each time
  std::vector<double> sums;
  std::vector<double> tolerances;  // of any order
};

struct Case {
  const char* collective;
  Algorithm algorithm;
  Element element;
  int32_t ranks;
  int64_t count;
  const char* cuts = "even";

  std::string text() const {
    return cat(collective,
               " by ",
               algorithm_name(algorithm),
               " of ",
               count,
               element == Element::Float32 ? " float32" : " bfloat16",
               " over ",
               ranks,
               " ranks, cuts ",
               cuts);
  }
};

inline void expect(bool is_true, const Case& what, const std::string& complaint) {
  if (!is_true) {
    throw std::runtime_error(cat(what.text(), ": ", complaint));
  }
}

inline void compare_sums(const Case& what,
                         const Elements& found,
                         const Reference& reference,
                         int64_t begin,
                         int64_t end,
                         bool is_in_order) {
  expect(found.has_guards(), what, "wrote outside of the data");
  for (int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    const double value = static_cast<double>(found.get(i));
    const bool is_right = is_in_order
                              ? found.get(i) == reference.in_order.get(i)
                              : std::abs(value - reference.sums[at]) <= reference.tolerances[at];
    if (!is_right) {
      expect(false, what, cat("element ", i, " is ", value, " for ", reference.sums[at]));
    }
  }
}

// Own is the library's, where there is one; then nothing is known of its order.
inline bool is_in_order(Group& group, Algorithm algorithm) {
  return algorithm == Algorithm::Direct ||
         (algorithm == Algorithm::Own && group.own_collectives() == nullptr);
}

// Whose formula tells what is sent.
inline Algorithm as_sent(Group& group, Algorithm algorithm) {
  return is_in_order(group, algorithm) ? Algorithm::Direct : algorithm;
}

inline void expect_sent(const Case& what, int64_t sent, const Traffic& formula) {
  expect(sent == formula.bytes, what, cat("sent ", sent, " bytes, by formula ", formula.bytes));
}

inline void expect_same_bits(Group& group, const Case& what, const Elements& found) {
  uint32_t sum = 2166136261U;
  for (int64_t i = 0; i < found.size(); ++i) {
    sum = (sum ^ found.data()[i]) * 16777619U;
  }
  const double mine = sum;
  const std::vector<double> all = group.all_gather({&mine, 1}, words("the sums of the bits"));
  expect(std::count(all.begin(), all.end(), mine) == group.size(), what, "ranks differ");
}

// "even"; "skewed": some empty, the others of different sizes; "last": all at the last rank.
inline std::vector<int64_t> make_cuts(const std::string& kind, int64_t count, int32_t ranks) {
  if (kind == "even") {
    return even_cuts(count, ranks);
  }
  std::vector<int64_t> cuts(static_cast<size_t>(ranks) + 1, 0);
  cuts.back() = count;
  for (int32_t i = 1; kind == "skewed" && i < ranks; ++i) {
    cuts[static_cast<size_t>(i)] = count * (i / 2 * 2) * (i / 2 * 2) / (ranks * ranks);
  }
  return cuts;
}

inline void check_all_reduce(Group& group,
                             Collectives& collectives,
                             const Case& what,
                             const Reference& reference) {
  Elements data = contribution(what.element, group.rank(), what.count);
  const int64_t before = collectives.sent_bytes();
  collectives.all_reduce(data.data(), what.count, what.element, what.algorithm, words(what.text()));
  compare_sums(what, data, reference, 0, what.count, is_in_order(group, what.algorithm));
  expect_same_bits(group, what, data);
  expect_sent(
      what,
      collectives.sent_bytes() - before,
      all_reduce_traffic(
          as_sent(group, what.algorithm), group.rank(), group.size(), what.count, what.element));
}

inline void check_reduce_scatter(Group& group,
                                 Collectives& collectives,
                                 const Case& what,
                                 const Reference& reference) {
  const std::vector<int64_t> cuts = make_cuts(what.cuts, what.count, group.size());
  Elements data = contribution(what.element, group.rank(), what.count);
  const int64_t before = collectives.sent_bytes();
  collectives.reduce_scatter(data.data(), cuts, what.element, what.algorithm, words(what.text()));
  const auto mine = static_cast<size_t>(group.rank());
  compare_sums(
      what, data, reference, cuts[mine], cuts[mine + 1], is_in_order(group, what.algorithm));
  expect_sent(
      what,
      collectives.sent_bytes() - before,
      reduce_scatter_traffic(as_sent(group, what.algorithm), group.rank(), cuts, what.element));
}

inline void check_all_gather(Group& group, Collectives& collectives, const Case& what) {
  const std::vector<int64_t> cuts = make_cuts(what.cuts, what.count, group.size());
  std::vector<uint8_t> expected;
  std::vector<uint8_t> data(static_cast<size_t>(what.count) + 1, 0xA5);
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    const std::vector<uint8_t> bytes = content({rank, 0, 0, rank, cuts[at + 1] - cuts[at]});
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    if (rank == group.rank()) {
      std::copy(bytes.begin(), bytes.end(), data.begin() + cuts[at]);
    }
  }
  expected.push_back(0xA5);
  const int64_t before = collectives.sent_bytes();
  collectives.all_gather(data.data(), cuts, what.algorithm, words(what.text()));
  expect(data == expected, what, "other bytes");
  expect_sent(what,
              collectives.sent_bytes() - before,
              all_gather_traffic(as_sent(group, what.algorithm), group.rank(), cuts));
}

inline void check_broadcast(Group& group,
                            Collectives& collectives,
                            const Case& what,
                            int32_t root) {
  std::vector<uint8_t> expected = content({root, 0, 0, 7, what.count});
  expected.push_back(0xA5);
  std::vector<uint8_t> data(expected.size(), 0xA5);
  if (group.rank() == root) {
    data = expected;
  }
  const int64_t before = collectives.sent_bytes();
  collectives.broadcast(root, data.data(), what.count, what.algorithm, words(what.text()));
  expect(data == expected, what, cat("other bytes from root ", root));
  expect_sent(what,
              collectives.sent_bytes() - before,
              broadcast_traffic(
                  as_sent(group, what.algorithm), root, group.rank(), group.size(), what.count));
}

inline void check_sums(Group& group, Collectives& collectives, Element element, int64_t count) {
  const int32_t ranks = group.size();
  const Reference reference(element, ranks, count);
  for (const Algorithm algorithm : kAlgorithms) {
    check_all_reduce(
        group, collectives, {"all_reduce", algorithm, element, ranks, count}, reference);
    for (const char* cuts : {"even", "skewed", "last"}) {
      check_reduce_scatter(group,
                           collectives,
                           {"reduce_scatter", algorithm, element, ranks, count, cuts},
                           reference);
    }
  }
}

inline void check_copies(Group& group,
                         Collectives& collectives,
                         Algorithm algorithm,
                         int64_t count) {
  const int32_t ranks = group.size();
  for (const char* cuts : {"even", "skewed", "last"}) {
    check_all_gather(
        group, collectives, {"all_gather", algorithm, Element::Float32, ranks, count, cuts});
  }
  for (const int32_t root : {0, ranks / 2, ranks - 1}) {
    check_broadcast(
        group, collectives, {"broadcast", algorithm, Element::Float32, ranks, count}, root);
  }
}

inline void check_collectives(Group& group, const std::vector<int64_t>& counts) {
  std::vector<std::byte> staging(static_cast<size_t>(Collectives::kLeastStaging));
  Collectives collectives(group, 3, staging);
  for (const int64_t count : counts) {
    check_sums(group, collectives, Element::Float32, count);
    check_sums(group, collectives, Element::BFloat16, count);
    for (const Algorithm algorithm : kAlgorithms) {
      check_copies(group, collectives, algorithm, count);
    }
  }
}

}  // namespace penstock::comm::test
