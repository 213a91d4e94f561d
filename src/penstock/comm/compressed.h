// The average of a vector over the ranks of a group, 1-bit compressed to signs and scales: about an
// eighth of a byte per element each way, where an all-reduce in half precision sends two bytes.
// What the signs leave out is kept, by the rank that sent them, and sent later. See docs/onebit.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/comm/group.h"

namespace penstock::comm {

struct Stretch {
  int64_t first = 0, count = 0;  // elements
};

// Which elements share a scale, and which rank averages them. A block has up to kernels::kSignBlock
// elements of one tensor; rank k of n averages blocks k * blocks / n to (k + 1) * blocks / n.
class SignBlocks {
 public:
  // The tensors' elements in the vector, ascending. What lies between them is not sent.
  explicit SignBlocks(const std::vector<Stretch>& tensors);

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  const Stretch& operator[](int64_t block) const { return blocks_[static_cast<size_t>(block)]; }

  struct Range {
    int64_t begin = 0, end = 0;  // blocks
    int64_t count() const { return end - begin; }
  };
  Range of_rank(int32_t rank, int32_t ranks) const;

  // Of the message that carries a range.
  int64_t message_bytes(const Range& range) const;
  // What a rank of so many sends in one average.
  int64_t sent_bytes(int32_t rank, int32_t ranks) const;

 private:
  std::vector<Stretch> blocks_;
  std::vector<int64_t> sign_bytes_{0};  // of all blocks before
};

class CompressedReduce {
 public:
  // Belongs to one thread. All messages use the one channel. The staging is the only working memory
  // that grows with anything: longer vectors go in chunks that fit. The group must outlive this.
  CompressedReduce(Group& group, int64_t channel, std::span<std::byte> staging);
  // One block for each rank, one to receive.
  static int64_t least_staging(int32_t ranks);

  struct Vector {
    float* values;         // this rank's; then the average, the same bits at every rank
    float* worker_error;   // as long as the values
    float* server_error;   // kernels::kSignBlock for each block that this rank averages
    const uint8_t* alive;  // a bit for each element, the same at every rank; null: all are alive
  };
  // All ranks call it with the same blocks.
  void average(const SignBlocks& blocks, const Vector& vector, const What& what);
  // Of one rank, which has nothing to send: its values get what errors there are, and none are
  // left.
  static void average_alone(const SignBlocks& blocks, const Vector& vector);

  // Every byte becomes the bitwise or of all ranks': joins what ranks have shards of, where each
  // has zeros for those of the others.
  void join(std::span<std::byte> bytes, const What& what);

  int64_t sent_bytes() const { return sent_bytes_; }  // payload given to other ranks up to now

 private:
  std::byte* slot(int32_t number) const;
  void send(int32_t peer, const void* data, int64_t bytes);
  void wait_for_sends(const What& what);

  Group& group_;
  const int64_t channel_;
  const std::span<std::byte> staging_;
  const int64_t slot_bytes_;
  std::vector<Ticket> sends_;
  int64_t sent_bytes_ = 0;
};

}  // namespace penstock::comm
