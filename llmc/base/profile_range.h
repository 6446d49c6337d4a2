// A named range of the host's time for NVIDIA's profilers (`nsys profile ./train_gpt ...` shows them above the kernels
// that they launch). Where CUDA's header is not there, as in a build without a GPU, it is nothing.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

class ProfileRange {
public:
    ProfileRange(const ProfileRange&) = delete;
    ProfileRange& operator=(const ProfileRange&) = delete;
#if __has_include(<nvtx3/nvToolsExt.h>)
    explicit ProfileRange(const char* name) { nvtxRangePushA(name); }
    ~ProfileRange() { nvtxRangePop(); }
#else
    explicit ProfileRange(const char*) {}
    ~ProfileRange() {}
#endif
};
