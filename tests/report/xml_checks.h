// Is a drawing XML at all? Enough of a parser to tell.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::report {

inline size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// Tags nest, attribute values are quoted, and "&" and "<" occur only as markup.
inline testing::AssertionResult is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  size_t num_roots = 0;
  for (size_t at = 0; at < xml.size(); ++at) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) + 1 - at);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") {
        return testing::AssertionFailure() << "entity " << entity;
      }
    }
    if (xml[at] != '<') {
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) {
      return testing::AssertionFailure() << "open tag at the end";
    }
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (count_of(tag, "\"") % 2 != 0 || tag.find('<') != std::string::npos) {
      return testing::AssertionFailure() << "tag " << tag;
    }
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) {
        return testing::AssertionFailure() << "unexpected " << tag;
      }
      open.pop_back();
    } else {
      num_roots += open.empty();
      if (tag.back() != '/') {
        open.push_back(tag.substr(0, tag.find(' ')));
      }
    }
    at = end;
  }
  if (!open.empty() || num_roots != 1) {
    return testing::AssertionFailure() << open.size() << " open tags, " << num_roots << " roots";
  }
  return testing::AssertionSuccess();
}

}  // namespace penstock::report
