// Switches of the checks that make the stand-in stricter than a GPU. All off by default: the CPU build is also a
// product.
//
//   memory   device memory is inaccessible to the host except while a queue runs, guard pages end every allocation,
//            bytes between the last element and the guard page are watched, frees under queued work are reported
//   poison   fresh device memory is 0xFF.. (not-a-number as fp32 and bf16, -1 as integer); pinned host memory as well
//   races    operations that touch the same bytes without an order between them are reported (races.h)
//   order    streams advance in a random order that depends only on the seed
//   shape    blocks have the shape that they have on a GPU (loop_threads in launch.cuh), so that what is
//            checked is what runs there; it changes the order of some sums. No other check changes a bit of any result.
//
// From outside: TRAIN_GPT_CHECKS=memory,poison,races,order:SEED,shape (or `all`, `none`). Unit tests start with all on.
#pragma once

#include <cstdint>
#include <string>

namespace host {

struct Checks {
    bool memory = false;
    bool poison = false;
    bool races = false;
    bool random_order = false;
    bool gpu_shape = false;
    std::uint64_t order_seed = 1;
    double no_progress_seconds = 60;   // limit of time without progress in the queues; beyond it is a fault
};

// Returns the checks in force. The first call reads TRAIN_GPT_CHECKS.
const Checks& checks();

// Replaces the checks in force. Must be called while nothing is queued. Allocations keep the protection they were made
// with.
void set_checks(const Checks& checks);

// Adds the checks of a list, as described above, to `base`. Throws Error(usage) naming a word it does not know.
Checks parse_checks(const std::string& list, Checks base = {});

}   // namespace host
