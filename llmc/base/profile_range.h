// Names a range of the host's time for NVIDIA's profilers (`nsys profile ./train_gpt ...` shows them above the kernels
// that they launch). Does nothing in a build without a GPU, or where CUDA's header is missing.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
#endif

class ProfileRange {
public:
    explicit ProfileRange(const char* name) { nvtxRangePushA(name); }
    ~ProfileRange() { nvtxRangePop(); }
    ProfileRange(const ProfileRange&) = delete;
    ProfileRange& operator=(const ProfileRange&) = delete;
};
