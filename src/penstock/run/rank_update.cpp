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
                       comm::Group& group)
    : group_(group), channel_(comm::shared_gradient_channel(chain.size())) {
  std::map<std::string, size_t> index;
  for (const model::ParameterSpec& spec : chain.parameters()) {
    index[spec.name] = all_.size();
    all_.push_back({spec.name, {}});
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const model::ParameterSpec& spec : chain.parameters(parts[rank])) {
      const size_t at = index.at(spec.name);
      all_[at].ranks.push_back(static_cast<int32_t>(rank));
      if (static_cast<int32_t>(rank) == group.rank()) {
        own_.push_back(at);
      }
    }
  }
  for (const size_t at : own_) {
    const std::vector<int32_t>& ranks = all_[at].ranks;
    PENSTOCK_CHECK(ranks.size() <= 2, all_[at].name, " is with ", ranks.size(), " ranks");
    if (ranks.size() == 2) {
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

void RankUpdate::add_shared_gradients(model::Parameters& parameters) {
  if (shared_.empty()) {
    return;
  }
  const std::unique_ptr<Transfers> transfers = make_transfers(group_, parameters.device());
  for (const size_t at : shared_) {
    const std::vector<int32_t>& ranks = all_[at].ranks;
    const int32_t peer = ranks[0] == group_.rank() ? ranks[1] : ranks[0];
    exchange(*transfers, parameters, all_[at].name, peer);
  }
}

// a + b is b + a to the bit: both ranks get the same sum.
void RankUpdate::exchange(Transfers& transfers,
                          model::Parameters& parameters,
                          const std::string& name,
                          int32_t peer) {
  const comm::What what = [&] { return cat("the gradient of ", name); };
  const at::Tensor gradient = parameters.find(name)->gradient.view({-1});
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

std::vector<double> RankUpdate::gather_squares(const std::vector<double>& own) {
  PENSTOCK_CHECK(own.size() == own_.size(), own.size(), " squares of ", own_.size());
  std::vector<double> mine(all_.size(), 0);
  for (size_t i = 0; i < own.size(); ++i) {
    mine[own_[i]] = own[i];
  }
  const std::vector<double> gathered =
      group_.all_gather(mine, [] { return std::string("the norm of the gradients"); });
  std::vector<double> squares(all_.size());
  for (size_t i = 0; i < all_.size(); ++i) {
    // A shared one counts once.
    squares[i] = gathered[static_cast<size_t>(all_[i].ranks.front()) * all_.size() + i];
  }
  return squares;
}

}  // namespace penstock::run
