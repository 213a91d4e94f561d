# penstock_cuda: what the GPU code needs beside nvcc: the toolkit's libraries, cuDNN and its header-only frontend.
find_package(CUDAToolkit REQUIRED)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/setup --path-cudnn-frontend OUTPUT_VARIABLE frontend
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${frontend})
foreach(wanted CUDNN_INCLUDE CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE)
  if(NOT ${wanted})
    message(FATAL_ERROR "${wanted} was not found: run tools/setup --cuda, and see docs/gpu.md for what a build with CUDA needs.")
  endif()
endforeach()

add_library(penstock_cuda INTERFACE)
target_include_directories(penstock_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE}
                                                          ${CUDNN_FRONTEND_INCLUDE})
target_link_libraries(penstock_cuda INTERFACE CUDA::cudart CUDA::cublasLt CUDA::cupti CUDA::nvrtc ${CUDNN_LIBRARY} ${CMAKE_DL_LIBS})
# Where LibTorch's own CUDA packages lie beside it, they are the ones to run with.
set(penstock_cuda_libraries nvidia/cu13/lib nvidia/cudnn/lib nvidia/cuda_cupti/lib)
