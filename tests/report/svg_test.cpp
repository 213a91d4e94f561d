#include "penstock/report/svg.h"

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

TEST(Svg, EscapesMarkup) {
  EXPECT_EQ(xml_escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

TEST(Svg, KeepsUtf8AndReplacesWhatXmlCannotHold) {
  EXPECT_EQ(xml_escape("größe µ"), "größe µ");
  EXPECT_EQ(xml_escape("a\x01\nb"), "a  b");
  EXPECT_EQ(xml_escape("a\xFF"), "a?");
}

}  // namespace
}  // namespace penstock::report
