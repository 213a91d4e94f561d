// A plan as a file: what `penstock plan --out` writes and `penstock train --plan` reads. TOML, with
// the sections of a recipe and four more. docs/planning.md, "A plan as a file".
//
// [model], [train] and [run] have the keys that the plan rests on; [plan] has all of its keys, and
// nothing left open; [[slots]] says what micro-batches keep at each stage; [machine] and [costs] are
// what was planned with; [predicted] is what came out, and a checksum of each field before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/cost_table.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/plan.h"

namespace penstock::plan {

struct PlanFile {
  // Of its sections only the keys that a plan rests on; [plan] is that of `plan`.
  config::Recipe recipe;
  Plan plan;
  CostTable costs;
  Machine machine;

  struct Predicted {
    int32_t updates = 1;  // of the program: see Request
    double step_s = 0;
    std::vector<int64_t> peak_bytes;  // of each rank
  };
  std::optional<Predicted> predicted;  // nothing: somebody has edited the plan by hand
};

std::string format_plan(const PlanFile& file);

// ConfigError with the field's name: for what is missing, out of range or does not belong together,
// and where there is [predicted], for every field that has been changed since.
PlanFile parse_plan(const std::string& toml, const std::string& origin);

void write_plan(const std::filesystem::path& path, const PlanFile& file);
PlanFile read_plan(const std::filesystem::path& path);

// ConfigError with the key in which the recipe is not the one that was planned for: another model,
// batch or device, or a key of [plan] that says something else than the plan.
void require_plan_of(const PlanFile& file, const config::Recipe& recipe, const std::string& origin);

// "a0-5 i6 d7 b5-0": operations of one kind at neighbouring layers are one word. a: keeps all (a3/1:
// in save mode 1), i: keeps its input, d: keeps nothing, b: backward, loss.
std::string format_operations(const Operations& operations);
// ConfigError says `where`.
Operations parse_operations(std::string_view text, const std::string& where);

}  // namespace penstock::plan
