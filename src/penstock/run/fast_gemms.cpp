#include "penstock/run/fast_gemms.h"

#if defined(__x86_64__)
// MKL asks this before it looks at what the processor can do; its own answer is no on all but
// Intel's. Being linked into the program, this one is found first.
extern "C" int mkl_serv_intel_cpu_true() {
  return 1;
}
#endif

namespace penstock::run {

// A call is what brings the function above into the program.
void use_fast_gemms() {}

}  // namespace penstock::run
