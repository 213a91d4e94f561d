// PENSTOCK_CPU_CLONES before a function of hot loops: it is compiled for several instruction sets,
// and the processor's best is chosen when the program starts.
#pragma once

// Resolvers run before a sanitizer is ready, so such builds take the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_CPU_CLONES \
  __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define PENSTOCK_CPU_CLONES
#endif
