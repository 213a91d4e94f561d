// The allocator behind every LibTorch tensor on the CPU. It counts bytes exactly, per account, and
// can hold an account to a limit. It also keeps freed blocks for the next step: a training step
// asks for the same sizes again and again, and fresh pages from the kernel cost more than many of
// the operations that fill them.
#pragma once

#include <cstdint>

#include "penstock/memory/account.h"

namespace penstock::memory {

// Makes it LibTorch's CPU allocator. Call before the first tensor is made; further calls do
// nothing.
void install_cpu_allocator();
bool is_cpu_allocator_installed();

// The account that a thread's CPU tensors are charged to unless an AccountScope names another CPU
// account. Tensors stay with their account for as long as they live, whichever thread frees them;
// what an operation's helper threads make themselves goes to the process.
Account& process_account();

// A rank's own account, never destroyed: tensors may outlive the rank.
Account& make_account();

// Freed by tensors, kept for reuse. Together with what is held, at most the highest that was ever
// held, and without a limit a quarter of it and 64 MiB more.
int64_t cached_cpu_bytes();
void release_cpu_cache();  // gives them back to the system
void release_unused();     // and what malloc keeps, as after measuring

}  // namespace penstock::memory
