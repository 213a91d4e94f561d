#include "penstock/comm/sub_group.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace penstock::comm {

// Sends and receives through the whole job's group, in channels of its own.
class SubGroup final : public Group {
 public:
  SubGroup(Group& job, std::vector<int32_t> ranks, int32_t rank, int64_t number)
      : Group(rank, static_cast<int32_t>(ranks.size())),
        job_(job),
        ranks_(std::move(ranks)),
        first_channel_(number * (kNumChannels + 1)),
        own_(job.make_own_collectives(ranks_)) {}

  bool shares_memory() const override { return job_.shares_memory(); }
  void fail(const Failure& failure) override { job_.fail(failure); }
  OwnCollectives* own_collectives() override { return own_.get(); }

  static std::unique_ptr<Group> split(Group& group, int32_t colour, const What& what) {
    auto* const within = dynamic_cast<SubGroup*>(&group);
    Group& job = within == nullptr ? group : within->job_;
    // Ranks that were in other groups before have counted differently.
    const double mine[] = {static_cast<double>(colour), static_cast<double>(job.num_subgroups_)};
    const std::vector<double> all = group.all_gather(mine, what);
    std::vector<int32_t> ranks;
    int32_t rank = 0;
    for (int32_t one = 0; one < group.size(); ++one) {
      const size_t at = 2 * static_cast<size_t>(one);
      job.num_subgroups_ = std::max(job.num_subgroups_, static_cast<int64_t>(all[at + 1]));
      if (all[at] == mine[0]) {
        rank = one == group.rank() ? static_cast<int32_t>(ranks.size()) : rank;
        ranks.push_back(within == nullptr ? one : within->job_rank(one));
      }
    }
    return std::make_unique<SubGroup>(job, std::move(ranks), rank, ++job.num_subgroups_);
  }

 private:
  int32_t job_rank(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }

  std::unique_ptr<Sending> start_send(int32_t peer,
                                      int64_t channel,
                                      const void* data,
                                      int64_t bytes) override {
    return job_.start_send(job_rank(peer), first_channel_ + channel, data, bytes);
  }
  bool is_sent(Sending& sending) override { return job_.is_sent(sending); }
  void finish_send(Sending& sending, const What& what) override { job_.finish_send(sending, what); }
  void take(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) override {
    job_.take(job_rank(peer), first_channel_ + channel, data, bytes, what);
  }
  void take_in_place(
      int32_t peer, int64_t channel, int64_t bytes, const What& what, const Use& use) override {
    job_.take_in_place(job_rank(peer), first_channel_ + channel, bytes, what, use);
  }

  Group& job_;
  const std::vector<int32_t> ranks_;  // of the job
  const int64_t first_channel_;
  const std::unique_ptr<OwnCollectives> own_;
};

std::unique_ptr<Group> split(Group& group, int32_t colour, const What& what) {
  return SubGroup::split(group, colour, what);
}

}  // namespace penstock::comm
