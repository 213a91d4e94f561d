#include "penstock/comm/compressed.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "penstock/kernels/onebit.h"

namespace penstock::comm {

namespace {

constexpr int64_t kScaleBytes = sizeof(float);
constexpr int64_t kSlotAlignment = 64;
constexpr int64_t kMostBlockBytes = kScaleBytes + kernels::bit_bytes(kernels::kSignBlock);

// The scales of some blocks, then their signs.
class Message {
 public:
  Message(std::byte* bytes, const SignBlocks& blocks, const SignBlocks::Range& range)
      : bytes_(bytes),
        signs_(bytes + kScaleBytes * range.count()),
        blocks_(blocks),
        range_(range) {}

  // Calls use(block, place of the scale, signs) for each block.
  template <typename Use>
  void for_each_block(const Use& use) const {
    auto* signs = reinterpret_cast<uint8_t*>(signs_);
    std::byte* scale = bytes_;
    for (int64_t block = range_.begin; block < range_.end; ++block) {
      use(block, scale, signs);
      signs += kernels::bit_bytes(blocks_[block].count);
      scale += kScaleBytes;
    }
  }

 private:
  std::byte* bytes_;
  std::byte* signs_;
  const SignBlocks& blocks_;
  SignBlocks::Range range_;
};

// Blocks begin where bytes of a vector of bits do.
const uint8_t* alive_at(const uint8_t* alive, int64_t element) {
  return alive == nullptr ? nullptr : alive + element / 8;
}

float read_scale(const std::byte* place) {
  float scale = 0;
  std::memcpy(&scale, place, sizeof(scale));
  return scale;
}

// error_of(block) is where the errors of a block are.
template <typename ErrorOf>
void compress(const Message& message,
              const SignBlocks& blocks,
              const CompressedReduce::Vector& vector,
              float factor,
              const ErrorOf& error_of) {
  message.for_each_block([&](int64_t block, std::byte* place, uint8_t* signs) {
    const auto [first, count] = blocks[block];
    const float scale = kernels::compress_signs(vector.values + first,
                                                factor,
                                                alive_at(vector.alive, first),
                                                count,
                                                error_of(block),
                                                signs);
    std::memcpy(place, &scale, sizeof(scale));
  });
}

void add(const Message& message, const SignBlocks& blocks, float* sums) {
  message.for_each_block([&](int64_t block, std::byte* place, uint8_t* signs) {
    const auto [first, count] = blocks[block];
    kernels::add_signs(signs, read_scale(place), count, sums + first);
  });
}

void expand(const Message& message,
            const SignBlocks& blocks,
            const CompressedReduce::Vector& vector) {
  message.for_each_block([&](int64_t block, std::byte* place, uint8_t* signs) {
    const auto [first, count] = blocks[block];
    kernels::expand_signs(
        signs, read_scale(place), alive_at(vector.alive, first), count, vector.values + first);
  });
}

}  // namespace

SignBlocks::SignBlocks(const std::vector<Stretch>& tensors) {
  int64_t end = 0;
  for (const Stretch& tensor : tensors) {
    PENSTOCK_CHECK(tensor.first >= end && tensor.first % 8 == 0 && tensor.count >= 0,
                   "a tensor of ",
                   tensor.count,
                   " elements at ",
                   tensor.first);
    end = tensor.first + tensor.count;
    for (int64_t first = tensor.first; first < end; first += kernels::kSignBlock) {
      const int64_t count = std::min(kernels::kSignBlock, end - first);
      blocks_.push_back({first, count});
      sign_bytes_.push_back(sign_bytes_.back() + kernels::bit_bytes(count));
    }
  }
}

SignBlocks::Range SignBlocks::of_rank(int32_t rank, int32_t ranks) const {
  return {size() * rank / ranks, size() * (rank + 1) / ranks};
}

int64_t SignBlocks::message_bytes(const Range& range) const {
  return kScaleBytes * range.count() + sign_bytes_[static_cast<size_t>(range.end)] -
         sign_bytes_[static_cast<size_t>(range.begin)];
}

int64_t SignBlocks::sent_bytes(int32_t rank, int32_t ranks) const {
  const int64_t own = message_bytes(of_rank(rank, ranks));
  return message_bytes({0, size()}) - own + own * (ranks - 1);
}

CompressedReduce::CompressedReduce(Group& group, int64_t channel, std::span<std::byte> staging)
    : group_(group),
      channel_(channel),
      staging_(staging),
      slot_bytes_(static_cast<int64_t>(staging.size()) / (group.size() + 1) / kSlotAlignment *
                  kSlotAlignment) {
  PENSTOCK_CHECK(static_cast<int64_t>(staging.size()) >= least_staging(group.size()),
                 staging.size(),
                 " bytes of staging for ",
                 group.size(),
                 " ranks");
}

int64_t CompressedReduce::least_staging(int32_t ranks) {
  return (ranks + 1) * ((kMostBlockBytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment);
}

std::byte* CompressedReduce::slot(int32_t number) const {
  return staging_.data() + slot_bytes_ * number;
}

void CompressedReduce::send(int32_t peer, const void* data, int64_t bytes) {
  sends_.push_back(group_.send(peer, channel_, data, bytes));
  sent_bytes_ += bytes;
}

void CompressedReduce::wait_for_sends(const What& what) {
  for (Ticket& ticket : sends_) {
    group_.wait(ticket, what);
  }
  sends_.clear();
}

void CompressedReduce::average_alone(const SignBlocks& blocks, const Vector& vector) {
  for (int64_t block = 0; block < blocks.size(); ++block) {
    const auto [first, count] = blocks[block];
    kernels::take_errors(vector.values + first,
                         vector.worker_error + first,
                         vector.server_error + kernels::kSignBlock * block,
                         alive_at(vector.alive, first),
                         count);
  }
}

void CompressedReduce::average(const SignBlocks& blocks, const Vector& vector, const What& what) {
  const int32_t rank = group_.rank(), ranks = group_.size();
  if (ranks == 1) {
    return average_alone(blocks, vector);
  }
  const auto worker_error = [&](int64_t block) {
    return vector.worker_error + blocks[block].first;
  };
  const int64_t own_begin = blocks.of_rank(rank, ranks).begin;
  const auto server_error = [&](int64_t block) {
    return vector.server_error + kernels::kSignBlock * (block - own_begin);
  };
  const int64_t step = slot_bytes_ / kMostBlockBytes;
  const int64_t most_blocks = (blocks.size() + ranks - 1) / ranks;
  // Each rank has a slot, this rank's too: for its signs, then for those of the average.
  std::byte* const incoming = slot(ranks);
  for (int64_t done = 0; done < most_blocks; done += step) {
    const auto chunk_of = [&](int32_t peer) {
      const SignBlocks::Range all = blocks.of_rank(peer, ranks);
      return SignBlocks::Range{std::min(all.begin + done, all.end),
                               std::min(all.begin + done + step, all.end)};
    };
    // Each rank starts with the next one, so that not all send to rank 0 at once.
    for (int32_t i = 1; i <= ranks; ++i) {
      const int32_t peer = (rank + i) % ranks;
      const SignBlocks::Range range = chunk_of(peer);
      compress({slot(peer), blocks, range}, blocks, vector, 1, worker_error);
      if (peer != rank && range.count() > 0) {
        send(peer, slot(peer), blocks.message_bytes(range));
      }
    }
    const SignBlocks::Range mine = chunk_of(rank);
    const int64_t my_bytes = blocks.message_bytes(mine);
    if (mine.count() > 0) {
      for (int64_t block = mine.begin; block < mine.end; ++block) {
        std::fill_n(vector.values + blocks[block].first, blocks[block].count, 0.0f);
      }
      // In the order of the ranks, so that the sum is the same in every run.
      for (int32_t peer = 0; peer < ranks; ++peer) {
        if (peer != rank) {
          group_.receive(peer, channel_, incoming, my_bytes, what);
        }
        add({peer == rank ? slot(rank) : incoming, blocks, mine}, blocks, vector.values);
      }
      const Message average(slot(rank), blocks, mine);
      compress(average, blocks, vector, 1.0f / static_cast<float>(ranks), server_error);
      for (int32_t i = 1; i < ranks; ++i) {
        send((rank + i) % ranks, slot(rank), my_bytes);
      }
      expand(average, blocks, vector);
    }
    for (int32_t i = 1; i < ranks; ++i) {
      const int32_t peer = (rank + i) % ranks;
      const SignBlocks::Range range = chunk_of(peer);
      if (range.count() > 0) {
        group_.receive(peer, channel_, incoming, blocks.message_bytes(range), what);
        expand({incoming, blocks, range}, blocks, vector);
      }
    }
    wait_for_sends(what);
  }
}

void CompressedReduce::join(std::span<std::byte> bytes, const What& what) {
  const int32_t rank = group_.rank(), ranks = group_.size();
  const auto total = static_cast<int64_t>(bytes.size());
  std::byte* const incoming = slot(ranks);
  for (int64_t done = 0; done < (total + ranks - 1) / ranks; done += slot_bytes_) {
    const auto chunk_of = [&](int32_t peer) {
      const int64_t begin = total * peer / ranks, end = total * (peer + 1) / ranks;
      const int64_t first = std::min(begin + done, end);
      return bytes.subspan(static_cast<size_t>(first),
                           static_cast<size_t>(std::min(slot_bytes_, end - first)));
    };
    const auto size_of = [](std::span<const std::byte> chunk) {
      return static_cast<int64_t>(chunk.size());
    };
    for (int32_t i = 1; i < ranks; ++i) {
      const int32_t peer = (rank + i) % ranks;
      send(peer, chunk_of(peer).data(), size_of(chunk_of(peer)));
    }
    const std::span<std::byte> mine = chunk_of(rank);
    for (int32_t i = 1; i < ranks; ++i) {
      group_.receive((rank + i) % ranks, channel_, incoming, size_of(mine), what);
      std::transform(mine.begin(), mine.end(), incoming, mine.begin(), std::bit_or<std::byte>());
    }
    wait_for_sends(what);
    for (int32_t i = 1; i < ranks; ++i) {
      send((rank + i) % ranks, mine.data(), size_of(mine));
    }
    for (int32_t i = 1; i < ranks; ++i) {
      const int32_t peer = (rank + i) % ranks;
      group_.receive(peer, channel_, chunk_of(peer).data(), size_of(chunk_of(peer)), what);
    }
    wait_for_sends(what);
  }
}

}  // namespace penstock::comm
