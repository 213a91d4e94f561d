# penstock_nccl: NCCL as an interface target, where there is one. A build without it is whole: between processes, tensors of
# GPUs then go by way of the host. Also used by the installed package, where Penstock was built with it.
option(PENSTOCK_WITH_NCCL "Use NCCL where it is found, in builds with CUDA" ON)
if(PENSTOCK_WITH_CUDA AND PENSTOCK_WITH_NCCL)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
endif()
# Both switches again: what was found once stays in the cache.
if(PENSTOCK_WITH_CUDA AND PENSTOCK_WITH_NCCL AND NCCL_INCLUDE AND NCCL_LIBRARY)
  if(NOT TARGET penstock_nccl)
    add_library(penstock_nccl INTERFACE)
    target_include_directories(penstock_nccl SYSTEM INTERFACE ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(penstock_nccl INTERFACE ${NCCL_LIBRARY})
    message(STATUS "NCCL: ${NCCL_LIBRARY}")
  endif()
elseif(PENSTOCK_WITH_CUDA)
  message(STATUS "NCCL: none, so tensors of GPUs go between processes by way of the host")
endif()
