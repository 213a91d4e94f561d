# penstock_cuda: what the GPU code needs beside nvcc: the toolkit's libraries, cuDNN and its header-only frontend. Also used
# by the installed package, whose users need no frontend.
find_package(CUDAToolkit REQUIRED)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
set(wanted_of_cuda CUDNN_INCLUDE CUDNN_LIBRARY)
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/../tools/setup)
  execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../tools/setup --path-cudnn-frontend OUTPUT_VARIABLE frontend
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${frontend})
  list(APPEND wanted_of_cuda CUDNN_FRONTEND_INCLUDE)
endif()
foreach(wanted ${wanted_of_cuda})
  if(NOT ${wanted})
    message(FATAL_ERROR "${wanted} was not found: run tools/setup --cuda-build, and see docs/gpu.md for what a build with CUDA needs.")
  endif()
endforeach()

if(NOT TARGET penstock_cuda)
  add_library(penstock_cuda INTERFACE)
  target_include_directories(penstock_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE})
  if(CUDNN_FRONTEND_INCLUDE)
    target_include_directories(penstock_cuda SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE})
  endif()
  target_link_libraries(penstock_cuda INTERFACE CUDA::cudart CUDA::cublasLt CUDA::cupti CUDA::nvrtc ${CUDNN_LIBRARY}
                                                ${CMAKE_DL_LIBS})
endif()
# Where LibTorch's own CUDA packages lie beside it, they are the ones to run with.
set(penstock_cuda_libraries nvidia/cu13/lib nvidia/cudnn/lib nvidia/cuda_cupti/lib nvidia/nccl/lib)
