// Device memory of the stand-in: one reserved range of addresses per device, from which allocations are made page-wise.
//
// The range is what makes an address device memory, and lets it be taken away from the host. With the memory check on:
//   - between queue runs no allocation is accessible, so the host's dereference of a device pointer faults (fault.h);
//   - an allocation ends at an inaccessible page. CUDA promises 256-byte alignment, so up to 255 bytes lie between its
//     last byte and that page; they, and the bytes before it on its first page, hold a pattern that is verified;
//   - addresses are not reused until the range has been used up, so that a use after free faults and is named.
// Opening and closing happens around every wait of the host for kernels, so it must cost few system calls: these
// allocations lie side by side from the middle of the range on, and all that lies between them is guard pages that do
// not mind what is done to the mapping around them. Where the kernel has no such pages, each allocation is opened and
// closed for itself. With the poison check on, fresh memory is filled with 0xFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace host {

class Memory {
public:
    // `addresses_only`: allocations are addresses without memory, as many as anybody asks for: of a device that records
    // and performs nothing.
    explicit Memory(bool addresses_only = false);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // Page-backed memory, 256-byte aligned; null if the device has no room. `file` must live as long as the program.
    void* allocate(std::size_t bytes, const char* file, int line);

    // False if `pointer` is not the beginning of a live allocation.
    bool release(void* pointer);

    // Names an allocation for messages. Ignored if it is not the beginning of one.
    void name(const void* pointer, std::string name);

    bool owns(const void* pointer) const {
        auto address = reinterpret_cast<std::uintptr_t>(pointer);
        return address >= range_begin_ && address < range_end_;
    }
    // Within one live allocation? Safe to call from a fault handler.
    bool is_live(const void* begin, std::size_t bytes) const;
    std::size_t bytes_of(const void* begin) const;   // of the allocation that begins there, else 0

    struct Pages {
        char *begin, *end;
    };
    // The pages of every live allocation, ascending.
    std::vector<Pages> live_pages() const;
    // The same in fewer pieces, which may have guard pages in them: for changing the protection of all.
    std::vector<Pages> live_runs() const;

    // What lies at an address of this device, e.g. "4 bytes past the end of device memory 'gradients/wte' [...]".
    // Safe to call from a fault handler.
    std::string describe(const void* address) const;

    // What overwrote the bytes around allocations, if anything did. Memory must be open.
    std::optional<std::string> damage() const;
    std::optional<std::string> damage_of(const void* begin) const;   // the same for one allocation; it may be closed

    // Makes allocations accessible while at least one `open` is not closed. No-ops where the memory check is off.
    void open();
    void close();
    bool is_open() const { return open_count_ > 0; }
    // For leaving code that was ended by a fault: as many opens are in force as there were.
    int open_count() const { return open_count_; }
    void restore_open_count(int count);

    // Makes the pages of a range within one allocation accessible until close_ranges, which leaves open what `open` has
    // opened. No-op for memory that is open, or was allocated while memory was not checked.
    void open_range(const void* begin, std::size_t bytes);
    void close_ranges();

    // From now on as where the kernel has no guard pages (for tests of that; nothing must have been allocated).
    void do_without_guard_pages() { guard_pages_ = false; }

    std::size_t bytes_used() const { return bytes_used_; }
    std::size_t bytes_total() const { return bytes_total_; }
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
    std::uintptr_t guarded_begin_ = 0;                       // guarded allocations lie from here on
    std::uintptr_t cursor_ = 0;                              // where the search for fresh addresses for them continues
    bool guard_pages_ = false;                               // does the kernel have guard pages?
    std::map<std::uintptr_t, std::uintptr_t> free_ranges_;   // begin -> end
    Blocks live_;
    Blocks freed_;   // the latest ones, for messages
    std::size_t bytes_used_ = 0;
    const bool addresses_only_;
    std::size_t bytes_total_ = 0;
    int open_count_ = 0;
    std::vector<Pages> open_ranges_;
};

// Keeps a device's memory open for the host while it lives.
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
bool release_pinned(void* pointer);                       // false if it was not allocated so
bool register_pinned(void* pointer, std::size_t bytes);   // false if part of it is pinned already
bool unregister_pinned(void* pointer);                    // false if it was not registered
bool is_pinned(const void* begin, std::size_t bytes);     // all of it?

// Is it an element of a live allocation of some device?
bool is_device_memory(const void* address);

// What lies at an address, over all devices and pinned memory; empty if it is none of them.
std::string describe_address(const void* address);

}   // namespace host

// Names device memory after its owner; programs that are also built for GPUs declare it weak.
extern "C" void name_device_memory(const void* pointer, const char* name);
