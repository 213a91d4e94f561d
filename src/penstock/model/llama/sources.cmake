# What src/penstock/CMakeLists.txt compiles of Llama: what needs no LibTorch, the CPU's part, the GPU's, and what stands in
# for that where there is no CUDA.
set(family_facts facts.cpp)
set(family_sources attention.cpp embedding.cpp family.cpp head.cpp llama.cpp mlp.cpp specs.cpp)
set(family_gpu gpu.cpp gpu_attention.cpp gpu_embedding.cpp gpu_head.cpp gpu_mlp.cpp)
set(family_no_gpu no_gpu.cpp)
