# One small precompiled header, built once and reused by every target with LibTorch. ATen/ATen.h alone: with it a source
# takes about a second; torch/torch.h in it would cost each source ten.
if(PENSTOCK_PCH)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cpp CONTENT "")
  add_library(penstock_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(penstock_torch_pch PRIVATE penstock_flags penstock_own_flags penstock_torch)
  target_precompile_headers(penstock_torch_pch PRIVATE <ATen/ATen.h>)
endif()
