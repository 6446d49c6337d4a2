// Pages that fault when touched but do not split their mapping, so one mprotect changes the whole mapping and they stay
// guarded. Linux 6.13 has them; on older kernels the calls below fail and change nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

namespace host {

// Guards whole pages of private anonymous memory; their contents are lost.
inline bool install_guard_pages(void* begin, std::size_t bytes) {
    return madvise(begin, bytes, MADV_GUARD_INSTALL) == 0;
}

// Makes guard pages ordinary pages of zeros; other pages in the range keep their contents.
inline bool remove_guard_pages(void* begin, std::size_t bytes) { return madvise(begin, bytes, MADV_GUARD_REMOVE) == 0; }

}   // namespace host
