// Sums and copies over all ranks of a group, by messages between them (the algorithms) or by what
// the group's library has of its own. docs/collectives.md has steps and bytes of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/comm/own_collectives.h"

namespace penstock::comm {

enum class Algorithm {
  Naive,      // all to rank 0 and back
  Tree,       // a binomial tree up and down
  Butterfly,  // halves with ever nearer partners, then back: recursive halving and doubling
  Ring,       // chunks round and round
  Direct,     // each rank adds its chunk, in the order of the ranks: the same bits in every run
  Own,        // of the group's library; Direct where it has none, as for ranks that are threads
};
inline constexpr Algorithm kAlgorithms[] = {Algorithm::Naive,
                                            Algorithm::Tree,
                                            Algorithm::Butterfly,
                                            Algorithm::Ring,
                                            Algorithm::Direct,
                                            Algorithm::Own};

std::string_view algorithm_name(Algorithm algorithm);  // "ring"
std::optional<Algorithm> parse_algorithm(std::string_view name);

// Offsets that cut `count` elements into chunks, the first ones longer by one where it does not
// come out even.
std::vector<int64_t> even_cuts(int64_t count, int32_t chunks);

// Belongs to one thread, which need not be the one that runs the rank otherwise: a channel that is
// used for nothing else keeps the messages apart. After an error it is of no use, as the group.
class Collectives {
 public:
  static constexpr int64_t kLeastStaging = int64_t{64} << 10;
  static constexpr int64_t kStaging = int64_t{2} << 20;

  // `staging` is the caller's, for what arrives before it is added: at least kLeastStaging, aligned
  // for float, as long on all ranks. Longer messages go in parts that fit; the algorithms use no
  // other memory that grows with a message. (Own: what the library does is its own affair.)
  Collectives(Group& group, int64_t channel, std::span<std::byte> staging);

  // All ranks call these in the same order with the same arguments, but for the data. In place. All
  // ranks get the same bits.
  void all_reduce(
      void* data, int64_t count, Element element, Algorithm algorithm, const What& what);

  // cuts: size() + 1 offsets in elements, ascending from 0; rank k's chunk is [cuts[k], cuts[k +
  // 1]) and may be empty. Afterwards this rank's chunk is the sum over all ranks, and the others
  // are garbage.
  void reduce_scatter(void* data,
                      std::span<const int64_t> cuts,
                      Element element,
                      Algorithm algorithm,
                      const What& what);

  // Every rank's chunk goes to all others. Offsets in bytes.
  void all_gather(void* data,
                  std::span<const int64_t> byte_cuts,
                  Algorithm algorithm,
                  const What& what);

  void broadcast(int32_t root, void* data, int64_t bytes, Algorithm algorithm, const What& what);

  // What this rank has sent to others so far; for Own, what a ring would have sent.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  bool is_own(Algorithm algorithm) const;
  void count_own(int64_t bytes);
  void check_cuts(std::span<const int64_t> cuts) const;

  Group& group_;
  const int64_t channel_;
  const std::span<std::byte> staging_;
  int64_t sent_bytes_ = 0;
};

}  // namespace penstock::comm
