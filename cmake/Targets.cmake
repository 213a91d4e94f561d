# One library per folder, one line each; see src/penstock/CMakeLists.txt.

add_library(penstock_flags INTERFACE)
target_compile_features(penstock_flags INTERFACE cxx_std_20)
target_include_directories(penstock_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# What only our own sources are built with; not handed on to those who link the installed library.
add_library(penstock_own_flags INTERFACE)
# Designated initialisers leave out what has a default.
set(warnings -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
target_compile_options(penstock_own_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${warnings}>
                                                    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20$<SEMICOLON>-lineinfo$<SEMICOLON>-Xcompiler=-Wall,-Wextra>)
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_own_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer
                                                      -fno-sanitize-recover=all)
  target_link_options(penstock_own_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
endif()

function(penstock_use_torch target)
  # For those who link the installed library, PenstockConfig.cmake makes Penstock::torch.
  target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:penstock_torch> $<INSTALL_INTERFACE:Penstock::torch>)
  if(PENSTOCK_PCH)
    target_precompile_headers(${target} REUSE_FROM penstock_torch_pch)
  endif()
endfunction()

# penstock_library(plan SOURCES plan/remat.cpp DEPS base)           LibTorch-free
# penstock_library(run TORCH SOURCES run/executor.cpp DEPS model)   with LibTorch
function(penstock_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_TORCH AND NOT PENSTOCK_TORCH_PARTS)
    return()
  endif()
  add_library(penstock_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND penstock_)
  target_link_libraries(penstock_${name} PUBLIC penstock_flags ${ARG_DEPS}
                                         PRIVATE $<BUILD_INTERFACE:penstock_own_flags>
                                                 $<BUILD_INTERFACE:penstock_headers>)
  set_target_properties(penstock_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_LIBRARIES penstock_${name})
  if(ARG_TORCH)
    penstock_use_torch(penstock_${name})
  endif()
endfunction()

# penstock_program(name [TORCH] SOURCES ... DEPS ...)
function(penstock_program name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_TORCH AND NOT PENSTOCK_TORCH_PARTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND penstock_)
  target_link_libraries(${name} PRIVATE penstock_flags penstock_own_flags penstock_headers ${ARG_DEPS})
  if(ARG_TORCH)
    penstock_use_torch(${name})
  endif()
endfunction()

# penstock_test(name LABEL unit [TORCH] SOURCES ... DEPS ...): a GoogleTest binary, each test known to CTest.
function(penstock_test name)
  cmake_parse_arguments(ARG "TORCH" "LABEL" "SOURCES;DEPS" ${ARGN})
  if(ARG_TORCH AND NOT PENSTOCK_TORCH_PARTS)
    return()
  endif()
  if(ARG_TORCH)
    penstock_program(${name} TORCH SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  else()
    penstock_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE PENSTOCK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Checks need no speed of their own: the code under test is in the libraries. A third less time to build them.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  # One CTest entry per binary: one per test would start LibTorch a hundred times.
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 900)
endfunction()
