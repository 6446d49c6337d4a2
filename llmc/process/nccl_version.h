// Checks that NCCL is recent enough: 2.18.1 (ncclCommSplit) and later, of nccl.h when the program is built and of the
// library when it runs; they may differ. 22809 is 2.28.9.
#pragma once

#include <nccl.h>

#include <string>

#define LEAST_NCCL_VERSION NCCL_VERSION(2, 18, 1)
#if NCCL_VERSION_CODE < LEAST_NCCL_VERSION
#error "nccl.h is of a version before 2.18.1, the least NCCL that train_gpt can be built with"
#endif

// Returns "" or what NCCL of this version cannot do, for a message at the start. Throws Error(no_device) where it is
// too old.
std::string nccl_shortcoming(int version);
