#include "penstock/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/base/units.h"

namespace penstock::data {

namespace {

[[noreturn]] void fail_field(const Dataset& dataset, const std::string& name) {
  std::vector<std::string> known;
  for (const Field& field : dataset.fields()) {
    known.push_back(field.name);
  }
  throw ConfigError(cat("the data has no field ", in_quotes(name), "; it has ", join(known, ", ")));
}

}  // namespace

std::string Dataset::size_text() const {
  return cat(format_count(samples()), samples() == 1 ? " sample" : " samples");
}

int64_t Dataset::check(int64_t /*part*/, int64_t /*parts*/) const {
  return 0;
}

int Dataset::find(const std::string& name) const {
  const std::vector<Field>& all = fields();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Field& field) { return field.name == name; });
  return found == all.end() ? -1 : static_cast<int>(found - all.begin());
}

void Dataset::check_read(int64_t sample, size_t field, std::span<const std::byte> into) const {
  PENSTOCK_CHECK(sample >= 0 && sample < samples(), "sample ", sample, " of ", samples());
  PENSTOCK_CHECK(field < fields().size(), "field ", field, " of ", fields().size());
  PENSTOCK_CHECK(static_cast<int64_t>(into.size()) == fields()[field].bytes(),
                 into.size(),
                 " bytes for ",
                 fields()[field].name,
                 ", which has ",
                 fields()[field].bytes());
}

std::vector<size_t> chosen_fields(const Dataset& dataset, const std::vector<std::string>& names) {
  // Here, for whoever wrote the dataset: everything that reads one comes by.
  check_fields(dataset.fields());
  if (dataset.samples() < 1) {
    throw ConfigError("the data has no samples; give it at least one");
  }
  std::vector<size_t> chosen;
  if (names.empty()) {
    chosen.resize(dataset.fields().size());
    std::iota(chosen.begin(), chosen.end(), size_t{0});
  }
  for (const std::string& name : names) {
    const int found = dataset.find(name);
    if (found < 0) {
      fail_field(dataset, name);
    }
    const size_t index = static_cast<size_t>(found);
    if (std::find(chosen.begin(), chosen.end(), index) == chosen.end()) {
      chosen.push_back(index);
    }
  }
  return chosen;
}

}  // namespace penstock::data
