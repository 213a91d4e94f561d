# penstock_torch: LibTorch as an interface target. Our own, because the wheel's TorchConfig.cmake demands the CUDA
# toolkit even of a build that uses no GPU. Also used by the installed package, so it depends on nothing of the build.
if(NOT PENSTOCK_TORCH)
  if(DEFINED ENV{PENSTOCK_TORCH})
    set(found_torch $ENV{PENSTOCK_TORCH})
  elseif(EXISTS ${CMAKE_CURRENT_LIST_DIR}/../tools/setup)
    # A LibTorch with its CUDA packages comes first where there is one; to compile, any will do.
    execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../tools/setup --path
                    OUTPUT_VARIABLE found_torch OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE setup_result)
    if(NOT setup_result EQUAL 0)
      message(FATAL_ERROR "LibTorch not found: run tools/setup, or give -DPENSTOCK_TORCH=DIR (a folder with include/ and lib/).")
    endif()
  else()
    message(FATAL_ERROR "LibTorch not found: give -DPENSTOCK_TORCH=DIR (a folder with include/ and lib/).")
  endif()
  set(PENSTOCK_TORCH ${found_torch} CACHE PATH "LibTorch: a folder with include/ and lib/")
endif()
set(wanted_files include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
if(PENSTOCK_WITH_CUDA)
  list(APPEND wanted_files lib/libtorch_cuda.so lib/libc10_cuda.so)
endif()
foreach(wanted ${wanted_files})
  if(NOT EXISTS ${PENSTOCK_TORCH}/${wanted})
    message(FATAL_ERROR "PENSTOCK_TORCH=${PENSTOCK_TORCH} has no ${wanted}; name the folder that holds LibTorch's include and lib.")
  endif()
endforeach()
# Two C++ runtimes in one program, one of them static, end in a crash at exit.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so OUTPUT_VARIABLE runtime
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(runtime STREQUAL "libstdc++.so")
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} has no shared C++ runtime (libstdc++.so), and a static one cannot live beside \
LibTorch's. Name another compiler, as in CXX=/usr/bin/g++ cmake ...")
endif()
if(NOT TARGET penstock_torch)
  message(STATUS "LibTorch: ${PENSTOCK_TORCH}")
  add_library(penstock_torch INTERFACE)
  # SYSTEM: its headers give dozens of warnings otherwise.
  target_include_directories(penstock_torch SYSTEM INTERFACE ${PENSTOCK_TORCH}/include
                                                             ${PENSTOCK_TORCH}/include/torch/csrc/api/include)
  target_link_libraries(penstock_torch INTERFACE ${PENSTOCK_TORCH}/lib/libtorch_cpu.so ${PENSTOCK_TORCH}/lib/libc10.so)
  if(PENSTOCK_WITH_CUDA)
    # Nothing refers to these by name: they register themselves when loaded.
    target_link_libraries(penstock_torch INTERFACE penstock_cuda -Wl,--no-as-needed ${PENSTOCK_TORCH}/lib/libtorch_cuda.so
                                                   ${PENSTOCK_TORCH}/lib/libc10_cuda.so -Wl,--as-needed)
  endif()
  foreach(folder ${penstock_cuda_libraries})
    target_link_options(penstock_torch INTERFACE -Wl,-rpath,${PENSTOCK_TORCH}/../${folder})
  endforeach()
  # libtorch_cpu.so names CUDA libraries that a CPU build has no use for. It also exports a std::filesystem of its own;
  # with the C++ runtime named first, programs use that of their compiler.
  target_link_options(penstock_torch INTERFACE -Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state
                                               -Wl,--unresolved-symbols=ignore-in-shared-libs
                                               -Wl,-rpath,${PENSTOCK_TORCH}/lib)
endif()
