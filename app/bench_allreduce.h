// 'penstock bench allreduce': how long ranks take to sum, by each algorithm.
#pragma once

#include "commands.h"

namespace penstock::app {

void add_bench_allreduce_command(Command& bench);

}  // namespace penstock::app
