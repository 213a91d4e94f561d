// A few numbers, of which every rank of a training has its own, put together at the end of a step.
// All ranks call these, and all get the same answer.
#pragma once

#include <vector>

namespace penstock::comm {
class Group;
}

namespace penstock::train {

// Rank 0's first.
std::vector<double> gather_ranks(double own, comm::Group& group);

// Added up in the order of the ranks.
double sum_ranks(double own, comm::Group& group);
std::vector<double> sum_ranks(const std::vector<double>& own, comm::Group& group);

}  // namespace penstock::train
