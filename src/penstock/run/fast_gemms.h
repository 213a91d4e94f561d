// Which GEMMs the library inside LibTorch uses.
#pragma once

namespace penstock::run {

// On x86 processors that are not Intel's, MKL leaves its AVX-512 and AVX2 GEMMs unused though
// the processor has the instructions. A program that calls this uses them: they are up to a quarter
// faster. It concerns the whole process, so it is for programs to call, not for libraries.
void use_fast_gemms();

}  // namespace penstock::run
