#include "penstock/comm/mpi_collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "penstock/comm/mpi_group.h"

namespace penstock::comm {

namespace {

std::byte* at(void* data, int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace

MpiCollectives::MpiCollectives(MpiGroup& group,
                               MpiCalls& calls,
                               MpiCommunicator communicator,
                               int32_t rank)
    : group_(group), calls_(calls), communicator_(communicator), rank_(rank) {}

void MpiCollectives::all_reduce(void* data, int64_t count, Element element, const What& what) {
  for (int64_t done = 0; done < count; done += most_per_call_) {
    const auto here = static_cast<int>(std::min(most_per_call_, count - done));
    group_.run(
        [&](MpiRequest& request) {
          return calls_.all_reduce(
              communicator_, at(data, done * element_bytes(element)), here, element, request);
        },
        what);
  }
}

void MpiCollectives::reduce_scatter(void* data,
                                    std::span<const int64_t> cuts,
                                    Element element,
                                    const What& what) {
  const int64_t bytes_each = element_bytes(element);
  if (cuts.back() <= most_per_call_) {
    set_counts(cuts);
    group_.run(
        [&](MpiRequest& request) {
          return calls_.reduce_scatter(communicator_, data, counts_.data(), element, request);
        },
        what);
    const auto chunk = static_cast<size_t>(rank_);
    std::memmove(at(data, cuts[chunk] * bytes_each),
                 data,
                 static_cast<size_t>((cuts[chunk + 1] - cuts[chunk]) * bytes_each));
    return;
  }
  for (size_t chunk = 0; chunk + 1 < cuts.size(); ++chunk) {
    for (int64_t done = cuts[chunk]; done < cuts[chunk + 1]; done += most_per_call_) {
      const auto here = static_cast<int>(std::min(most_per_call_, cuts[chunk + 1] - done));
      group_.run(
          [&](MpiRequest& request) {
            return calls_.reduce(communicator_,
                                 static_cast<int>(chunk),
                                 at(data, done * bytes_each),
                                 here,
                                 element,
                                 request);
          },
          what);
    }
  }
}

void MpiCollectives::all_gather(void* data, std::span<const int64_t> byte_cuts, const What& what) {
  if (byte_cuts.back() > most_per_call_) {
    for (size_t chunk = 0; chunk + 1 < byte_cuts.size(); ++chunk) {
      broadcast(static_cast<int32_t>(chunk),
                at(data, byte_cuts[chunk]),
                byte_cuts[chunk + 1] - byte_cuts[chunk],
                what);
    }
    return;
  }
  set_counts(byte_cuts);
  group_.run(
      [&](MpiRequest& request) {
        return calls_.all_gather(communicator_, data, counts_.data(), offsets_.data(), request);
      },
      what);
}

void MpiCollectives::broadcast(int32_t root, void* data, int64_t bytes, const What& what) {
  for (int64_t done = 0; done < bytes; done += most_per_call_) {
    const auto here = static_cast<int>(std::min(most_per_call_, bytes - done));
    group_.run(
        [&](MpiRequest& request) {
          return calls_.broadcast(communicator_, root, at(data, done), here, request);
        },
        what);
  }
}

void MpiCollectives::set_counts(std::span<const int64_t> cuts) {
  counts_.clear();
  offsets_.clear();
  for (size_t chunk = 0; chunk + 1 < cuts.size(); ++chunk) {
    counts_.push_back(static_cast<int>(cuts[chunk + 1] - cuts[chunk]));
    offsets_.push_back(static_cast<int>(cuts[chunk]));
  }
}

}  // namespace penstock::comm
