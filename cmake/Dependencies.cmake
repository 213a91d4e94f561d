# The small libraries, all header-only. Each is looked for where packages put it; PENSTOCK_INCLUDE names one more folder
# (a cluster without them, say).
set(PENSTOCK_INCLUDE "" CACHE PATH "A folder with toml++/, nlohmann/ and CLI/, where the system has none")

add_library(penstock_headers INTERFACE)
foreach(header toml++/toml.h nlohmann/json.hpp CLI/CLI.hpp)
  string(MAKE_C_IDENTIFIER "FOUND_${header}" variable)
  find_path(${variable} ${header} HINTS ${PENSTOCK_INCLUDE} $ENV{PENSTOCK_INCLUDE})
  if(NOT ${variable})
    message(FATAL_ERROR "The header ${header} is missing. Run tools/setup, or name a folder that has it with -DPENSTOCK_INCLUDE=DIR.")
  endif()
  if(NOT ${variable} MATCHES "^/usr(/local)?/include$")
    target_include_directories(penstock_headers SYSTEM INTERFACE $<BUILD_INTERFACE:${${variable}}>)
  endif()
endforeach()

find_package(Threads REQUIRED)
if(PENSTOCK_TESTS)
  find_package(GTest)
  if(NOT GTest_FOUND)
    message(WARNING "GoogleTest is missing, so no tests are built. Run tools/setup for it.")
    set(PENSTOCK_TESTS OFF)
  endif()
endif()
