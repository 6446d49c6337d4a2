// Manages device memory of the stand-in: one reserved range of addresses per device, from which allocations are made
// page-wise.
//
// An address in the range is device memory, and the range can be made inaccessible to the host. With the memory check
// on:
//   - between queue runs no allocation is accessible, so the host's dereference of a device pointer faults (fault.h);
//   - an allocation ends at an inaccessible page. CUDA promises 256-byte alignment, so up to 255 bytes lie between its
//     last byte and that page; they, and the bytes before it on its first page, hold a pattern that is verified;
//   - addresses are not reused until the range has been used up, so that a use after free faults and is named.
// Opening and closing happens at every wait of the host for kernels, so it must cost few system calls: these
// allocations are side by side from the middle of the range on, with only guard pages between them, which a change of
// the surrounding mapping does not affect. If the kernel has no such pages, each allocation is opened and closed
// separately. With the poison check on, fresh memory is filled with 0xFF.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/limits/memory_limits.h"

namespace host {

class Memory {
public:
    // `addresses_only`: allocations are addresses without memory, as many as asked for, for a device that records and
    // performs nothing.
    explicit Memory(bool addresses_only = false);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // Returns page-backed memory, 256-byte aligned; null if the device has no room. `file` must live as long as the
    // program.
    void* allocate(std::size_t bytes, const char* file, int line);

    // Frees an allocation. Returns false if `pointer` is not the beginning of a live allocation.
    bool release(void* pointer);

    // Names an allocation for messages. Ignored if it is not the beginning of one.
    void name(const void* pointer, std::string name);

    bool owns(const void* pointer) const {
        auto address = reinterpret_cast<std::uintptr_t>(pointer);
        return address >= range_begin_ && address < range_end_;
    }
    // Returns true if the range is within one live allocation. Safe to call from a fault handler.
    bool is_live(const void* begin, std::size_t bytes) const;
    std::size_t bytes_of(const void* begin) const;   // bytes of the allocation that begins there, else 0

    struct Pages {
        char *begin, *end;
    };
    // Returns the pages of every live allocation, ascending.
    std::vector<Pages> live_pages() const;
    // Returns the same pages in fewer pieces, which may contain guard pages: for changing the protection of all.
    std::vector<Pages> live_runs() const;

    // Describes what is at an address of this device, e.g. "4 bytes past the end of device memory 'gradients/wte'
    // [...]". Safe to call from a fault handler.
    std::string describe(const void* address) const;

    // Describes an overwrite of the bytes around allocations, if there was one.
    std::optional<std::string> damage() const;
    std::optional<std::string> damage_of(const void* begin) const;   // checks one allocation, which may be closed

    // Makes allocations accessible while at least one `open` is not closed. No-ops where the memory check is off.
    void open();
    void close();
    bool is_open() const { return open_count_ > 0; }
    // For leaving code that a fault ended: restores the number of opens.
    int open_count() const { return open_count_; }
    void restore_open_count(int count);

    // Makes the pages of a range within one allocation accessible until close_ranges, which leaves open what `open` has
    // opened. No-op for memory that is open, or was allocated while memory was not checked.
    void open_range(const void* begin, std::size_t bytes);
    void close_ranges();

    // For tests: behaves from now on as if the kernel had no guard pages. Nothing must have been allocated.
    void do_without_guard_pages() { guard_pages_ = false; }

    std::size_t bytes_used() const { return bytes_used_; }
    // Returns the least limit of the process's memory, whoever uses it: the same at every start on a machine.
    std::size_t bytes_total() const { return bytes_total_; }
    // Returns what of it can be allocated: what others had left when this object was made, less what is in use. (Memory
    // that the kernel gives out only as it is written cannot be asked for later.)
    std::size_t bytes_free() const {
        const std::size_t all = std::min(bytes_total_, bytes_at_start_);
        return all - std::min(bytes_used_, all);
    }
    const MemoryLimits& limits() const { return limits_; }
    void set_bytes_total(std::size_t bytes) { bytes_total_ = bytes; }

private:
    struct Block {
        std::size_t bytes;          // as asked for
        std::uintptr_t map_begin;   // whole pages; the guard page follows map_end
        std::uintptr_t map_end;
        bool guarded;   // made while the memory check was on
        std::string name;
        const char* file;
        int line;
    };
    using Blocks = std::map<std::uintptr_t, Block>;

    std::uintptr_t take_addresses(std::size_t bytes, std::size_t alignment, bool guarded);
    void give_addresses(std::uintptr_t begin, std::uintptr_t end);
    void forget_freed(std::uintptr_t begin, std::uintptr_t end);
    void give_back_pages(const Block& block);
    std::vector<Pages> runs(bool only_guarded) const;
    void protect_all(bool accessible);
    static std::optional<std::string> damage_of(std::uintptr_t begin, const Block& block);
    static std::string text_of(std::uintptr_t begin, const Block& block, bool live);

    mutable std::mutex mutex_;
    std::uintptr_t range_begin_ = 0;
    std::uintptr_t range_end_ = 0;
    std::uintptr_t guarded_begin_ = 0;                       // first address of guarded allocations
    std::uintptr_t cursor_ = 0;                              // next address of the search for fresh addresses
    bool guard_pages_ = false;                               // the kernel has guard pages
    std::map<std::uintptr_t, std::uintptr_t> free_ranges_;   // begin -> end
    Blocks live_;
    Blocks freed_;   // the latest ones, for messages
    std::size_t bytes_used_ = 0;
    const bool addresses_only_;
    const MemoryLimits limits_;   // as they were when this object was made
    std::size_t bytes_total_ = 0, bytes_at_start_ = 0;
    int open_count_ = 0;
    std::vector<Pages> open_ranges_;
};

// Keeps a device's memory open for the host while the object lives.
class OpenMemory {
public:
    explicit OpenMemory(Memory& memory) : memory_(memory) { memory_.open(); }
    ~OpenMemory() { memory_.close(); }
    OpenMemory(const OpenMemory&) = delete;
    OpenMemory& operator=(const OpenMemory&) = delete;

private:
    Memory& memory_;
};

// ---- pinned host memory, which belongs to the process
void* allocate_pinned(std::size_t bytes);                 // null if there is no room
bool release_pinned(void* pointer);                       // false if allocate_pinned did not return it
bool register_pinned(void* pointer, std::size_t bytes);   // false if part of it is pinned already
bool unregister_pinned(void* pointer);                    // false if it was not registered
bool is_pinned(const void* begin, std::size_t bytes);     // true if all of it is

// Returns true if it is an element of a live allocation of some device.
bool is_device_memory(const void* address);

// Describes what is at an address, over all devices and pinned memory; empty if it is none of them.
std::string describe_address(const void* address);

}   // namespace host
