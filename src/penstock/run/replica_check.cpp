#include "penstock/run/replica_check.h"

#include <algorithm>
#include <map>

#include <ATen/core/Tensor.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/model/parameters.h"

namespace penstock::run {

namespace {

std::string list_ranks(const std::vector<int32_t>& ranks) {
  std::vector<std::string> words;
  for (const int32_t rank : ranks) {
    words.push_back(cat(rank));
  }
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(words, ", "));
}

// Who has another hash than most, or than the first where there is no majority.
std::string describe_drift(const std::string& name,
                           const std::map<double, std::vector<int32_t>>& ranks_by_hash) {
  const auto most = std::max_element(
      ranks_by_hash.begin(), ranks_by_hash.end(), [](const auto& a, const auto& b) {
        return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                                  : a.second.front() > b.second.front();
      });
  std::vector<int32_t> others;
  for (const auto& [hash, ranks] : ranks_by_hash) {
    if (hash != most->first) {
      others.insert(others.end(), ranks.begin(), ranks.end());
    }
  }
  std::sort(others.begin(), others.end());
  return cat(name, " of ", list_ranks(others), " differs from that of ", list_ranks(most->second));
}

}  // namespace

std::vector<ReplicatedTensor> replicated_tensors(const model::Parameters& parameters) {
  std::vector<ReplicatedTensor> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) {
      tensors.push_back({name, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())});
    }
  };
  for (const auto& state : parameters.states()) {
    for (size_t i = 0; i < state.names.size(); ++i) {
      add(state.names[i], state.current[i]);
    }
  }
  if (!parameters.has_common_weights()) {
    return tensors;
  }
  for (const model::Parameter& parameter : parameters.all()) {
    add(parameter.spec.name, parameter.weight);
    const at::Tensor& copy = parameter.compute;
    if (copy.defined() && !(parameter.weight.defined() && copy.is_alias_of(parameter.weight))) {
      add(cat(parameter.spec.name, " in the compute precision"), copy);
    }
  }
  return tensors;
}

std::string find_drift(const std::vector<ReplicatedTensor>& tensors,
                       comm::Group& replicas,
                       const std::vector<int32_t>& ranks) {
  PENSTOCK_CHECK(ranks.size() == static_cast<size_t>(replicas.size()),
                 ranks.size(),
                 " ranks for a group of ",
                 replicas.size());
  std::vector<double> hashes;
  for (const ReplicatedTensor& tensor : tensors) {
    hashes.push_back(crc32c(tensor.data, static_cast<size_t>(tensor.bytes)));
  }
  const std::vector<double> all =
      replicas.all_gather(hashes, [] { return std::string("the check of the replicas' weights"); });
  for (size_t i = 0; i < hashes.size(); ++i) {
    std::map<double, std::vector<int32_t>> ranks_by_hash;
    for (size_t replica = 0; replica < ranks.size(); ++replica) {
      ranks_by_hash[all[replica * hashes.size() + i]].push_back(ranks[replica]);
    }
    if (ranks_by_hash.size() > 1) {
      return describe_drift(tensors[i].name, ranks_by_hash);
    }
  }
  return "";
}

}  // namespace penstock::run
