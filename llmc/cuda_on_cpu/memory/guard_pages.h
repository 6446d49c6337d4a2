// Pages that fault when they are touched and yet do not split the mapping they lie in, so that one mprotect changes all
// of it and they stay as they are. Linux 6.13 has them; before, the calls below fail and change nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

namespace host {

// Whole pages of private anonymous memory; what they held is lost.
inline bool install_guard_pages(void* begin, std::size_t bytes) {
    return madvise(begin, bytes, MADV_GUARD_INSTALL) == 0;
}

// Makes them ordinary pages of zeros; others in the range keep what they hold.
inline bool remove_guard_pages(void* begin, std::size_t bytes) { return madvise(begin, bytes, MADV_GUARD_REMOVE) == 0; }

}   // namespace host
