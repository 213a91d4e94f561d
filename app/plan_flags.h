// Command-line flags of [plan]: one for each row of the option table, so that a key, its range and
// its help stand in one place.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"

#include "command_line.h"

namespace penstock::app {

struct PlanFlags {
  std::map<std::string, std::string> given;  // by key: "plan.memory"

  bool has(const std::string& key) const { return given.contains(key); }
  std::vector<std::string> settings() const;  // "plan.memory=60MiB", as --set takes them
  config::PlanOptions options() const;        // over the defaults
};

// --memory for plan.memory, --micro-batches for plan.micro_batches, and so on. Each value is checked
// when the command line is read.
void add_plan_flags(Command& command, PlanFlags& flags);

// ConfigError for a flag that would change nothing.
void require_use_of_flush_every(const PlanFlags& flags, const config::PlanOptions& plan);

}  // namespace penstock::app
