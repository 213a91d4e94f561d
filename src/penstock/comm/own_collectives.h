// The collectives that a library has of its own, for the ranks of a group: MPI's.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/comm/wait.h"

namespace penstock::comm {

// Of what sums are. bfloat16 is added in float and rounded to nearest even, at each addition.
enum class Element { Float32, BFloat16 };

constexpr int64_t element_bytes(Element element) {
  return element == Element::Float32 ? 4 : 2;
}

// All ranks of the group call these in the same order with the same arguments; one thread of each.
// What they mean is said in collectives.h.
class OwnCollectives {
 public:
  virtual ~OwnCollectives() = default;

  virtual void all_reduce(void* data, int64_t count, Element element, const What& what) = 0;
  virtual void reduce_scatter(void* data,
                              std::span<const int64_t> cuts,
                              Element element,
                              const What& what) = 0;
  virtual void all_gather(void* data, std::span<const int64_t> byte_cuts, const What& what) = 0;
  virtual void broadcast(int32_t root, void* data, int64_t bytes, const What& what) = 0;

  // The most elements, or bytes, that one call of the library is given; more go in several. For
  // tests: by default as many as it can count.
  virtual void set_most_per_call(int64_t most) = 0;
};

}  // namespace penstock::comm
