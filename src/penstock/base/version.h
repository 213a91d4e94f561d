// The version, in its one place: CMakeLists.txt reads it from here.
#pragma once

namespace penstock {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace penstock
