// The messages of wrong recipes and settings, and what a message has to say.
#pragma once

#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/config/options.h"
#include "penstock/config/recipe.h"

#include "support/error_text.h"

namespace penstock::config {

inline std::string recipe_error(const std::string& toml) {
  return test::error_text<ConfigError>([&] { parse_recipe(toml, "r.toml"); });
}

inline std::string setting_error(const std::string& setting) {
  Recipe recipe;
  return test::error_text<ConfigError>([&] { apply_setting(recipe, setting); });
}

// The parts in this order.
inline void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    at = message.find(part, at);
    ASSERT_NE(at, std::string::npos) << "no \"" << part << "\" (in its place) in: " << message;
    at += part.size();
  }
}

}  // namespace penstock::config
