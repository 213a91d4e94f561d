// libFuzzer target: whatever the bytes, a cost table is answered with a ConfigError of one line, or
// it comes back the same when printed and read again, and every planner takes it.
// Seeds: tests/fuzz/seeds/costs.
#include <cstddef>
#include <cstdint>
#include <string>

#include "penstock/base/error.h"
#include "penstock/plan/one_rank.h"

namespace {

using namespace penstock::plan;

void require(bool condition) {
  if (!condition) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  CostTable table;
  try {
    table = parse_costs({reinterpret_cast<const char*>(data), size}, "costs");
  } catch (const penstock::ConfigError& error) {
    require(std::string(error.what()).find('\n') == std::string::npos);
    return 0;
  }
  const std::string printed = format_costs(table);
  require(format_costs(parse_costs(printed, "printed")) == printed);
  if (table.layers.size() > 12) {
    return 0;
  }
  for (const Recompute recompute :
       {Recompute::None, Recompute::All, Recompute::Sqrt, Recompute::Rotor}) {
    const OneRankAnswer result = solve_one_rank(
        table, {.recompute = recompute, .limit_bytes = 1000, .rotor = {.slots = 50, .threads = 1}});
    require(!result.is_feasible || result.peak_bytes <= 1000);
  }
  return 0;
}
