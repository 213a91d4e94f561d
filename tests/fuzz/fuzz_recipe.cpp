// libFuzzer target: whatever the bytes, a recipe is answered with a ConfigError of one line or with
// values that come back the same when printed and read again. Seeds: tests/fuzz/seeds/recipe.
#include <cstddef>
#include <cstdint>
#include <string>

#include "penstock/base/error.h"
#include "penstock/config/recipe.h"

namespace {

using penstock::config::Recipe;

void require(bool condition) {
  if (!condition) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string toml(reinterpret_cast<const char*>(data), size);
  Recipe recipe;
  try {
    recipe = penstock::config::parse_recipe(toml, "recipe");
  } catch (const penstock::ConfigError& error) {
    require(std::string(error.what()).find('\n') == std::string::npos);
    return 0;
  }
  // Printing writes every value in full, so equal texts are equal recipes.
  const std::string printed = penstock::config::format_recipe(recipe);
  const Recipe again = penstock::config::parse_recipe(printed, "printed");
  require(penstock::config::format_recipe(again) == printed);
  try {
    validate(recipe);
  } catch (const penstock::ConfigError&) {
  }
  return 0;
}
