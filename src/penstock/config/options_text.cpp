// Options as text: values as TOML, keys in messages, the table for terminals and docs.
#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"

namespace penstock::config {

namespace {

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    switch (letter) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) {
          constexpr const char* digits = "0123456789ABCDEF";
          out += cat("\\u00", digits[(letter >> 4) & 0xF], digits[letter & 0xF]);
        } else {
          out += letter;
        }
    }
  }
  return out + "\"";
}

std::string print_by_section(const std::function<std::string(const std::string&)>& heading,
                             const std::function<std::string(const Option&)>& row) {
  std::string out;
  std::string section;
  for (const Option& option : option_table()) {
    if (option.section() != section) {
      section = option.section();
      out += cat(out.empty() ? "" : "\n", heading(section));
    }
    out += row(option);
  }
  return out;
}

std::string section_line(const std::string& section) {
  return cat("[", section, "]\n");
}

}  // namespace

std::string format_value(const OptionValue& value) {
  if (const bool* flag_value = std::get_if<bool>(&value)) {
    return *flag_value ? "true" : "false";
  }
  if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    return std::to_string(*whole);
  }
  if (const double* real = std::get_if<double>(&value)) {
    const std::string digits = format_number(*real);
    // TOML tells integers and numbers apart by the point or the exponent.
    return digits.find_first_of(".einf") == std::string::npos ? digits + ".0" : digits;
  }
  return quote(std::get<std::string>(value));
}

std::string format_key(const std::string& key) {
  const bool is_bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_' || letter == '-' ||
           letter == '.';
  });
  return is_bare ? key : quote(key);
}

std::string options_help() {
  const Recipe defaults;
  return print_by_section(section_line, [&](const Option& option) {
    const std::string range = option.allowed.empty() ? "" : cat(" (", option.allowed, ")");
    return cat("  ",
               option.key,
               " = ",
               format_value(option.get(defaults)),
               "\n      ",
               option.help,
               range,
               "\n");
  });
}

std::string options_markdown() {
  const Recipe defaults;
  const auto heading = [](const std::string& section) {
    return cat(
        "### [",
        section,
        "]\n\n| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n");
  };
  return print_by_section(heading, [&](const Option& option) {
    return cat("| `",
               option.name(),
               "` | ",
               option.type,
               " | `",
               format_value(option.get(defaults)),
               "` | ",
               option.allowed,
               " | ",
               option.help,
               " |\n");
  });
}

std::string format_recipe(const Recipe& recipe) {
  return print_by_section(section_line, [&](const Option& option) {
    return cat(option.name(), " = ", format_value(option.get(recipe)), "\n");
  });
}

}  // namespace penstock::config
