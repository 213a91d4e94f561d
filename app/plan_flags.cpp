#include "plan_flags.h"

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/config/options.h"

namespace penstock::app {

namespace {

// The first thought of the key's help, up to a semicolon outside of brackets: `penstock options` has
// all of it.
std::string short_help(const config::Option& option) {
  int depth = 0;
  size_t end = 0;
  while (end < option.help.size() && !(option.help[end] == ';' && depth == 0)) {
    depth += option.help[end] == '(' ? 1 : option.help[end] == ')' ? -1 : 0;
    ++end;
  }
  return cat(option.help.substr(0, end), " (", option.key, ")");
}

std::string value_name(const config::Option& option) {
  return option.type == "integer"                                     ? "N"
         : option.type == "true or false"                             ? "BOOL"
         : option.key == "plan.memory" || option.key == "plan.bucket" ? "BYTES"
         : option.key == "plan.costs" || option.key == "plan.links"   ? "FILE"
         : option.key == "plan.cuts"                                  ? "LAYERS"
                                                                      : "NAME";
}

// What is wrong with the value, or nothing.
std::string check(const config::Option& option, const std::string& text) {
  if (text.empty()) {
    return cat("must not be empty; it takes ", option.wanted());
  }
  try {
    config::Recipe recipe;
    config::apply_text(recipe, option, text, "");
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    return what.substr(std::min(what.size(), what.find_first_not_of(": ")));
  }
  return "";
}

}  // namespace

std::vector<std::string> PlanFlags::settings() const {
  std::vector<std::string> all;
  for (const auto& [key, text] : given) {
    all.push_back(cat(key, "=", text));
  }
  return all;
}

config::PlanOptions PlanFlags::options() const {
  config::Recipe recipe;
  for (const std::string& setting : settings()) {
    config::apply_setting(recipe, setting);
  }
  return recipe.plan;
}

void add_plan_flags(Command& command, PlanFlags& flags) {
  for (const config::Option& option : config::option_table()) {
    if (option.section() != "plan") {
      continue;
    }
    command
        .add(
            option.flag(),
            [&flags, key = option.key](const std::string& text) { flags.given[key] = text; },
            short_help(option))
        .checked_by([&option](const std::string& text) { return check(option, text); })
        .named(value_name(option))
        .in_group("The plan");
  }
}

void require_use_of_flush_every(const PlanFlags& flags, const config::PlanOptions& plan) {
  if (flags.has("plan.flush_every") && !plan.is_asynchronous()) {
    throw ConfigError(cat("--flush-every is for asynchronous schedules, and \"",
                          plan.schedule,
                          "\" is drained in every step"));
  }
}

}  // namespace penstock::app
