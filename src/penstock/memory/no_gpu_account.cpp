#include "penstock/memory/gpu_account.h"

namespace penstock::memory {

Account& gpu_account(int) {
  throw InternalError("a GPU's account in a build without CUDA");
}

}  // namespace penstock::memory
