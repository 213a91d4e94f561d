// What values contain, for the interpreter of programs (content_interpreter.h).
//
// A gradient is known by what was added to it, element by element; weights and state by the updates
// that each element has had. Nothing here is told by a value's name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::test {

// Of an element: what nobody can say, or what is of several updates.
inline constexpr int32_t kUnknown = -1;
// Of an element that is not covered at all.
inline constexpr int32_t kAbsent = -2;

// The elements of a unit; one where the program does not say how many.
inline size_t num_elements(const program::Unit& unit) {
  return unit.elements > 0 ? static_cast<size_t>(unit.elements) : 1;
}

// Which elements of its unit a value has.
inline std::vector<bool> elements_of(const program::Unit& unit,
                                     const std::vector<program::Slice>& slices) {
  std::vector<bool> has(num_elements(unit), slices.empty());
  for (const program::Slice& slice : slices) {
    for (int64_t i = std::max<int64_t>(slice.first, 0);
         i < std::min(slice.end, static_cast<int64_t>(has.size()));
         ++i) {
      has[static_cast<size_t>(i)] = true;
    }
  }
  return has;
}

// What an input gradient (phase 0) or a weight gradient (phase 1) adds to the gradient of a unit,
// of one micro-batch. A backward that is not split adds both, and so does the loss.
struct Contribution {
  size_t replica = 0, micro_batch = 0;
  size_t phase = 0;
};

// A gradient of a unit: how often each contribution is in it. What layers of the unit add is told
// apart, for each may begin anew by itself: layers that do not share parameters have elements of
// their own, and nobody says which.
class Gradient {
 public:
  Gradient() = default;
  Gradient(size_t elements, size_t layers, size_t replicas, size_t micro_batches)
      : elements_(elements),
        layers_(layers),
        micro_batches_(micro_batches),
        width_(replicas * micro_batches * 2 + 1),
        counts_(elements * layers * width_, 0) {}

  size_t elements() const { return elements_; }
  size_t layers() const { return layers_; }

  void add(size_t element, size_t layer, const Contribution& one) {
    ++place(element, layer)[index(one)];
  }
  // Element by element: of one layer, or of all.
  void add(const Gradient& other, size_t element) {
    const size_t size = layers_ * width_;
    for (size_t i = element * size; i < (element + 1) * size; ++i) {
      counts_[i] = static_cast<uint16_t>(counts_[i] + other.counts_[i]);
    }
  }
  void clear(size_t element, size_t layer) {
    std::fill_n(place(element, layer), width_, uint16_t{0});
  }
  void clear(size_t element) {
    for (size_t layer = 0; layer < layers_; ++layer) {
      clear(element, layer);
    }
  }
  // Something else is in it as well.
  void spoil(size_t element) {
    for (size_t layer = 0; layer < layers_; ++layer) {
      ++place(element, layer)[width_ - 1];
    }
  }
  void spoil() {
    for (size_t element = 0; element < elements_; ++element) {
      spoil(element);
    }
  }

  // Whether an element has each of these contributions of every layer once, and nothing else:
  // micro-batches first .. end - 1 of all replicas, or of one.
  bool is_exactly(
      size_t element, size_t first, size_t end, size_t first_replica, size_t end_replica) const {
    for (size_t layer = 0; layer < layers_; ++layer) {
      const uint16_t* const counts = place(element, layer);
      for (size_t i = 0; i + 1 < width_; ++i) {
        const size_t micro_batch = i / 2 % micro_batches_, replica = i / 2 / micro_batches_;
        const bool is_wanted = micro_batch >= first && micro_batch < end &&
                               replica >= first_replica && replica < end_replica;
        if (counts[i] != (is_wanted ? 1 : 0)) {
          return false;
        }
      }
      if (counts[width_ - 1] != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  size_t index(const Contribution& one) const {
    return (one.replica * micro_batches_ + one.micro_batch) * 2 + one.phase;
  }
  uint16_t* place(size_t element, size_t layer) {
    return counts_.data() + (element * layers_ + layer) * width_;
  }
  const uint16_t* place(size_t element, size_t layer) const {
    return counts_.data() + (element * layers_ + layer) * width_;
  }

  size_t elements_ = 0, layers_ = 0, micro_batches_ = 1, width_ = 0;
  std::vector<uint16_t> counts_;
};

// By replica, unit and element: the update whose gradient it squared, kUnknown or kAbsent.
using SquaresContent = std::vector<std::vector<std::vector<int32_t>>>;

// Of any value. The kind says which of the fields mean anything.
struct Content {
  program::ValueKind kind = program::ValueKind::Fixed;
  int32_t layer = -1, micro_batch = -1, replica = -1;  // of activations and the like
  int32_t mode = -1;                                   // of what a forward saved
  int32_t element = -1;                                // of what is carried
  std::vector<int32_t> parts = {};  // u: the readers that have added to it, in their order
  std::vector<program::ValueId> lies_in = {};  // w: values that it may share memory with
  Gradient gradient;                           // a, b, g; A: the forwards since the last update
  Gradient committed;                          // A: those of all updates before
  std::vector<int32_t> updates;  // m, c, o, p: that each element has had; e: each unit
  std::vector<int32_t>
      seen;                // v: updates that each unit has had; a unit that is not in it: kAbsent
  SquaresContent squares;  // q, z, h, j, r, l, y: of gradients, or of what was made of them
  int32_t update = kUnknown;  // n: that it decides
  bool is_estimate = false;   // q, z, n: by sketches
  // r: what is averaged; o: what it was prepared with.
  enum class Prepared : uint8_t { No, Lengths, Gradients, Momentum, Weights } prepared = {};
  std::vector<int32_t> averaged = {};  // o: by element, the update whose average it has; none: no
};

// The one number of a list, or kUnknown.
inline int32_t common(const std::vector<int32_t>& numbers) {
  const bool is_one =
      !numbers.empty() && std::all_of(numbers.begin(), numbers.end(), [&](int32_t number) {
        return number == numbers.front();
      });
  return is_one && numbers.front() >= 0 ? numbers.front() : kUnknown;
}

}  // namespace penstock::test
