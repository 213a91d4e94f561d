#include "penstock/run/rank_update.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/comm/channels.h"
#include "penstock/model/parameters.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements: the sum needs room for one piece alone

}  // namespace

RankUpdate::RankUpdate(const model::Chain& chain,
                       const std::vector<model::Part>& parts,
                       comm::Group& group,
                       int32_t replicas,
                       program::Shard shard)
    : group_(group),
      replicas_(replicas),
      is_sharded_(shard != program::Shard::None),
      channel_(comm::shared_gradient_channel(chain.size())) {
  const int32_t own_stage = group.rank() / replicas;
  std::map<std::string, size_t> index;
  for (const model::ParameterSpec& spec : chain.parameters()) {
    index[spec.name] = all_.size();
    all_.push_back({spec.name, {}});
  }
  for (int32_t stage = 0; stage < static_cast<int32_t>(parts.size()); ++stage) {
    for (const model::ParameterSpec& spec : chain.parameters(parts[static_cast<size_t>(stage)])) {
      const size_t at = index.at(spec.name);
      all_[at].stages.push_back(stage);
      if (stage == own_stage) {
        own_.push_back(at);
      }
    }
  }
  for (const size_t at : own_) {
    const std::vector<int32_t>& stages = all_[at].stages;
    PENSTOCK_CHECK(stages.size() <= 2, all_[at].name, " is with ", stages.size(), " stages");
    if (stages.size() == 2) {
      shared_.push_back(at);
    }
  }
  std::sort(shared_.begin(), shared_.end());  // the same order at both ranks
}

int64_t RankUpdate::working_bytes(const model::Chain& chain) {
  int64_t most = 0;
  const model::Part layers{.layers = chain.whole().layers, .has_loss = false};
  for (const model::ParameterSpec& of_layer : chain.parameters(layers)) {
    for (const model::ParameterSpec& of_loss : chain.loss().parameters()) {
      if (of_layer.name == of_loss.name) {
        most = std::max(most, std::min(kPiece, of_loss.count()));
      }
    }
  }
  return most * static_cast<int64_t>(sizeof(float));
}

void RankUpdate::add_shared_gradients(model::Parameters& parameters, bool is_whole) {
  if (shared_.empty()) {
    return;
  }
  const std::unique_ptr<Transfers> transfers = make_transfers(group_, parameters.device());
  for (const size_t at : shared_) {
    const std::vector<int32_t>& stages = all_[at].stages;
    const int32_t own_stage = group_.rank() / replicas_;
    const int32_t stage = stages[0] == own_stage ? stages[1] : stages[0];
    exchange(*transfers,
             parameters,
             all_[at].name,
             stage * replicas_ + group_.rank() % replicas_,
             is_whole);
  }
}

// a + b is b + a to the bit: both ranks get the same sum. Such a parameter is a unit by itself, so
// both have the same pieces of it.
void RankUpdate::exchange(Transfers& transfers,
                          model::Parameters& parameters,
                          const std::string& name,
                          int32_t peer,
                          bool is_whole) {
  const comm::What what = [&] { return cat("the gradient of ", name); };
  std::vector<at::Tensor> gradients;
  if (is_whole) {
    gradients.push_back(parameters.find(name)->gradient.view({-1}));
  } else {
    for (const model::Segment& segment : parameters.segments()) {
      if (parameters.all()[segment.parameter].spec.name == name) {
        gradients.push_back(parameters.own_gradients(segment));
      }
    }
  }
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor incoming = at::empty({std::min(kPiece, gradient.numel())}, gradient.options());
    for (int64_t first = 0; first < gradient.numel(); first += kPiece) {
      at::Tensor piece = gradient.narrow(0, first, std::min(kPiece, gradient.numel() - first));
      const at::Tensor theirs = incoming.narrow(0, 0, piece.numel());
      const std::unique_ptr<Sent> sent = transfers.send(peer, channel_, piece);
      transfers.receive(peer, channel_, theirs, what);
      transfers.wait(*sent, what);
      piece.add_(theirs);
    }
  }
}

std::vector<ExactSum> RankUpdate::gather_squares(const std::vector<ExactSum>& own) {
  PENSTOCK_CHECK(own.size() == own_.size(), own.size(), " squares of ", own_.size());
  std::vector<double> mine(2 * all_.size(), 0);
  for (size_t i = 0; i < own.size(); ++i) {
    mine[2 * own_[i]] = own[i].high;
    mine[2 * own_[i] + 1] = own[i].low;
  }
  const std::vector<double> gathered =
      group_.all_gather(mine, [] { return std::string("the norm of the gradients"); });
  // Of each parameter the pieces of its first stage; where it is not sharded they all have all of
  // it.
  std::vector<ExactSum> squares(all_.size());
  for (size_t i = 0; i < all_.size(); ++i) {
    const int32_t first = all_[i].stages.front() * replicas_;
    for (int32_t replica = 0; replica < (is_sharded_ ? replicas_ : 1); ++replica) {
      const size_t at = static_cast<size_t>(first + replica) * mine.size() + 2 * i;
      squares[i].add(ExactSum(gathered[at], gathered[at + 1]));
    }
  }
  return squares;
}

}  // namespace penstock::run
