#include "llmc/cuda_on_cpu/memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/limits/memory_limits.h"
#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/memory/guard_pages.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

constexpr std::size_t alignment_bytes = 256;
constexpr std::size_t huge_page = 2u << 20;
constexpr std::size_t most_run_gap = 256u
                                     << 10;   // walking the guard pages of a longer one costs more than a system call
constexpr std::size_t most_freed_remembered = 4096;
constexpr unsigned char poison_byte = 0xFF;
constexpr unsigned char canary_byte = 0xC5;

std::size_t page_size() {
    static const std::size_t size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

std::uintptr_t round_up(std::uintptr_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }
void* pointer_to(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// All devices, so that an address can be described without knowing its device.
struct Registry {
    std::mutex mutex;
    std::vector<const Memory*> memories;
    std::map<std::uintptr_t, std::pair<std::size_t, bool>> pinned;   // begin -> (bytes, allocated by us)
};

Registry& registry() {
    static Registry* registry = new Registry;   // never destroyed: devices may be destroyed after statics
    return *registry;
}

// Lock for a fault handler, which must not wait forever for a lock that the interrupted code may hold.
class LockForHandler {
public:
    explicit LockForHandler(std::mutex& mutex) : mutex_(mutex) {
        for (int tries = 0; tries < 100 && !locked_; tries++) {
            locked_ = mutex_.try_lock();
            if (!locked_) usleep(1000);
        }
    }
    ~LockForHandler() {
        if (locked_) mutex_.unlock();
    }
    LockForHandler(const LockForHandler&) = delete;
    LockForHandler& operator=(const LockForHandler&) = delete;

private:
    std::mutex& mutex_;
    bool locked_ = false;
};

void protect(const Memory::Pages& pages, int protection) {
    mprotect(pages.begin, static_cast<std::size_t>(pages.end - pages.begin), protection);
}

// Returns the first byte in [begin, end) that is not the canary, or end.
std::uintptr_t first_damaged(std::uintptr_t begin, std::uintptr_t end) {
    const auto* bytes = static_cast<const unsigned char*>(pointer_to(begin));
    for (std::uintptr_t i = 0; i < end - begin; i++)
        if (bytes[i] != canary_byte) return begin + i;
    return end;
}

}   // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The range of addresses

Memory::Memory(bool addresses_only)
    : addresses_only_(addresses_only),
      limits_(memory_limits()),
      bytes_total_(addresses_only ? std::size_t{1} << 42 : limits_.smallest().bytes),
      bytes_at_start_(addresses_only ? bytes_total_ : limits_.tightest().free) {
    // Reserving costs nothing; if there is a limit on addresses (ulimit -v), less is reserved.
    std::size_t bytes = std::max<std::size_t>(8 * bytes_total_, std::size_t{1} << 38);
    void* range = MAP_FAILED;
    for (; range == MAP_FAILED && bytes >= huge_page; bytes /= 2)
        range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    bytes *= 2;   // the loop halved it once more
    bytes_at_start_ = std::min(bytes_at_start_, bytes - page_size());
    range_begin_ = address_of(range);
    range_end_ = range_begin_ + bytes;
    free_ranges_[range_begin_ + page_size()] = range_end_;   // the first page guards the first allocation from below
    guarded_begin_ = cursor_ = range_begin_ + round_up(bytes / 2, page_size());
    guard_pages_ = install_guard_pages(range, page_size());
    std::lock_guard lock(registry().mutex);
    registry().memories.push_back(this);
}

Memory::~Memory() {
    {
        std::lock_guard lock(registry().mutex);
        std::erase(registry().memories, this);
    }
    munmap(pointer_to(range_begin_), range_end_ - range_begin_);
}

// Finds `bytes` (whole pages) of addresses. For guarded allocations it searches behind the last ones taken, so that
// freed addresses stay unused as long as possible; else it takes the lowest, which keeps page tables small. Returns 0
// if there are none.
std::uintptr_t Memory::take_addresses(std::size_t bytes, std::size_t alignment, bool guarded) {
    auto fits = [&](std::uintptr_t begin, std::uintptr_t end) {
        std::uintptr_t start = round_up(begin, alignment);
        return start < end && end - start >= bytes ? start : 0;
    };
    for (std::uintptr_t from : {guarded ? cursor_ : range_begin_, guarded ? guarded_begin_ : range_begin_}) {
        for (auto [begin, end] : free_ranges_) {
            std::uintptr_t start = fits(std::max(begin, from), end);
            if (!start) continue;
            free_ranges_.erase(begin);
            if (start > begin) free_ranges_[begin] = start;
            if (start + bytes < end) free_ranges_[start + bytes] = end;
            if (guarded) cursor_ = start + bytes;
            return start;
        }
    }
    return 0;
}

void Memory::give_addresses(std::uintptr_t begin, std::uintptr_t end) {
    auto next = free_ranges_.lower_bound(begin);
    if (next != free_ranges_.end() && next->first == end) {
        end = next->second;
        next = free_ranges_.erase(next);
    }
    if (next != free_ranges_.begin()) {
        auto previous = std::prev(next);
        if (previous->second == begin) {
            previous->second = end;
            return;
        }
    }
    free_ranges_[begin] = end;
}

// ---------------------------------------------------------------------------------------------------------------------
// Allocations

void* Memory::allocate(std::size_t bytes, const char* file, int line) {
    const bool guarded = checks().memory && !addresses_only_;
    const std::size_t padded = round_up(bytes, alignment_bytes);
    const std::size_t pages = round_up(padded, page_size());
    std::lock_guard lock(mutex_);
    const std::size_t left = bytes_free();
    if (bytes == 0 || bytes > left || pages > left) return nullptr;   // a huge `bytes` has wrapped `pages`

    const std::size_t alignment = !guarded && pages >= 2 * huge_page ? huge_page : page_size();
    const std::uintptr_t map_begin = take_addresses(pages + page_size(), alignment, guarded);
    if (!map_begin) return nullptr;
    const std::uintptr_t map_end = map_begin + pages;
    // A block or its guard page may have been here before.
    if (guarded && guard_pages_)
        guard_pages_ =
            remove_guard_pages(pointer_to(map_begin), pages) && install_guard_pages(pointer_to(map_end), page_size());
    if (addresses_only_) {
        live_[map_begin] = Block{bytes, map_begin, map_end, false, "", file, line};
        bytes_used_ += pages;
        return pointer_to(map_begin);
    }
    if (mprotect(pointer_to(map_begin), pages, PROT_READ | PROT_WRITE) != 0) {
        give_addresses(map_begin, map_end + page_size());
        return nullptr;
    }
    if (alignment == huge_page) madvise(pointer_to(map_begin), pages, MADV_HUGEPAGE);

    // Guarded allocations end at the guard page, others begin at their first page.
    const std::uintptr_t begin = guarded ? map_end - padded : map_begin;
    if (checks().poison) std::memset(pointer_to(begin), poison_byte, bytes);
    if (guarded) {
        std::memset(pointer_to(map_begin), canary_byte, begin - map_begin);
        std::memset(pointer_to(begin + bytes), canary_byte, map_end - begin - bytes);
    }
    forget_freed(map_begin, map_end + page_size());
    live_[begin] = Block{bytes, map_begin, map_end, guarded, "", file, line};
    bytes_used_ += pages;
    if (guarded && !is_open()) mprotect(pointer_to(map_begin), pages, PROT_NONE);
    return pointer_to(begin);
}

bool Memory::release(void* pointer) {
    std::lock_guard lock(mutex_);
    auto found = live_.find(address_of(pointer));
    if (found == live_.end()) return false;
    const Block& block = found->second;
    give_back_pages(block);
    give_addresses(block.map_begin, block.map_end + page_size());
    bytes_used_ -= block.map_end - block.map_begin;
    if (freed_.size() >= most_freed_remembered) freed_.erase(freed_.begin());
    freed_.insert(live_.extract(found));
    return true;
}

// Makes the pages inaccessible, and frees their memory.
void Memory::give_back_pages(const Block& block) {
    void* pages = pointer_to(block.map_begin);
    const std::size_t bytes = block.map_end - block.map_begin;
    if (block.guarded && guard_pages_) guard_pages_ = install_guard_pages(pages, bytes);
    if (block.guarded && guard_pages_) return;
    mmap(pages, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void Memory::forget_freed(std::uintptr_t begin, std::uintptr_t end) {
    auto first = freed_.lower_bound(begin);
    freed_.erase(first, freed_.lower_bound(end));
}

void Memory::name(const void* pointer, std::string name) {
    std::lock_guard lock(mutex_);
    if (auto found = live_.find(address_of(pointer)); found != live_.end()) found->second.name = std::move(name);
}

bool Memory::is_live(const void* begin, std::size_t bytes) const {
    LockForHandler lock(mutex_);
    auto next = live_.upper_bound(address_of(begin));
    if (next == live_.begin()) return false;
    const auto& [start, block] = *std::prev(next);
    std::uintptr_t offset = address_of(begin) - start;
    return offset <= block.bytes && bytes <= block.bytes - offset;
}

std::size_t Memory::bytes_of(const void* begin) const {
    std::lock_guard lock(mutex_);
    auto found = live_.find(address_of(begin));
    return found == live_.end() ? 0 : found->second.bytes;
}

// ---------------------------------------------------------------------------------------------------------------------
// Protection

std::vector<Memory::Pages> Memory::live_pages() const {
    std::lock_guard lock(mutex_);
    std::vector<Pages> result;
    for (const auto& [begin, block] : live_)
        result.push_back(
            {static_cast<char*>(pointer_to(block.map_begin)), static_cast<char*>(pointer_to(block.map_end))});
    return result;
}

// Joins neighbours that have only guard pages between them.
std::vector<Memory::Pages> Memory::runs(bool only_guarded) const {
    std::vector<Pages> result;
    bool goes_on = false;   // true if the last run may be continued
    for (const auto& [begin, block] : live_) {
        char* const pages = static_cast<char*>(pointer_to(block.map_begin));
        char* const end = static_cast<char*>(pointer_to(block.map_end));
        if (goes_on && block.guarded && static_cast<std::size_t>(pages - result.back().end) <= most_run_gap)
            result.back().end = end;
        else if (block.guarded || !only_guarded)
            result.push_back({pages, end});
        goes_on = block.guarded && guard_pages_;
    }
    return result;
}

std::vector<Memory::Pages> Memory::live_runs() const {
    std::lock_guard lock(mutex_);
    return runs(false);
}

void Memory::protect_all(bool accessible) {
    open_ranges_.clear();
    for (const Pages& run : runs(true))
        mprotect(run.begin, static_cast<std::size_t>(run.end - run.begin),
                 accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void Memory::open() {
    std::lock_guard lock(mutex_);
    if (open_count_++ == 0) protect_all(true);
}

void Memory::close() {
    std::lock_guard lock(mutex_);
    if (--open_count_ == 0) protect_all(false);
}

void Memory::open_range(const void* begin, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    auto next = live_.upper_bound(address_of(begin));
    if (is_open() || bytes == 0 || next == live_.begin() || !std::prev(next)->second.guarded) return;
    const Block& block = std::prev(next)->second;
    const std::uintptr_t first = address_of(begin) / page_size() * page_size();
    const std::uintptr_t last = round_up(address_of(begin) + bytes, page_size());
    const Pages pages{static_cast<char*>(pointer_to(std::max(first, block.map_begin))),
                      static_cast<char*>(pointer_to(std::min(last, block.map_end)))};
    open_ranges_.push_back(pages);
    protect(pages, PROT_READ | PROT_WRITE);
}

void Memory::close_ranges() {
    std::lock_guard lock(mutex_);
    for (const Pages& pages : open_ranges_) protect(pages, PROT_NONE);
    open_ranges_.clear();
}

void Memory::restore_open_count(int count) {
    std::lock_guard lock(mutex_);
    if ((open_count_ > 0) != (count > 0)) protect_all(count > 0);
    open_count_ = count;
}

std::optional<std::string> Memory::damage_of(std::uintptr_t begin, const Block& block) {
    if (!block.guarded) return std::nullopt;
    const std::uintptr_t end = begin + block.bytes;
    if (std::uintptr_t at = first_damaged(end, block.map_end); at != block.map_end)
        return text("bytes past the end of ", text_of(begin, block, true), " were written, the first at offset ",
                    at - begin, " of ", block.bytes);
    if (std::uintptr_t at = first_damaged(block.map_begin, begin); at != begin)
        return text("bytes before the beginning of ", text_of(begin, block, true), " were written, the first ",
                    begin - at, " bytes before it");
    return std::nullopt;
}

std::optional<std::string> Memory::damage() const {
    std::lock_guard lock(mutex_);
    for (const auto& [begin, block] : live_)
        if (auto found = damage_of(begin, block)) return found;
    return std::nullopt;
}

std::optional<std::string> Memory::damage_of(const void* begin) const {
    std::lock_guard lock(mutex_);
    auto found = live_.find(address_of(begin));
    if (found == live_.end() || !found->second.guarded) return std::nullopt;
    const Block& block = found->second;
    const Pages pages{static_cast<char*>(pointer_to(block.map_begin)), static_cast<char*>(pointer_to(block.map_end))};
    if (!is_open()) protect(pages, PROT_READ);
    auto damage = damage_of(found->first, block);
    if (!is_open()) protect(pages, PROT_NONE);
    return damage;
}

// ---------------------------------------------------------------------------------------------------------------------
// Messages

std::string Memory::text_of(std::uintptr_t begin, const Block& block, bool live) {
    std::string name = block.name.empty() ? "" : text("'", block.name, "' ");
    return text(live ? "device memory " : "freed device memory ", name, "[", pointer_to(begin), ", ",
                pointer_to(begin + block.bytes), "), ", block.bytes, " bytes from ", place(block.file, block.line));
}

std::string Memory::describe(const void* pointer) const {
    LockForHandler lock(mutex_);
    const std::uintptr_t address = address_of(pointer);
    // Finds the nearest block at or below the address, and whether it covers the address including its padding and
    // guard page.
    for (const auto& [blocks, live] : {std::pair<const Blocks&, bool>{live_, true}, {freed_, false}}) {
        auto next = blocks.upper_bound(address);
        if (next != blocks.begin()) {
            const auto& [begin, block] = *std::prev(next);
            const std::uintptr_t offset = address - begin;
            if (offset < block.bytes) return text("byte ", offset, " of ", text_of(begin, block, live));
            if (address < block.map_end + page_size())
                return text(offset - block.bytes, " bytes past the end of ", text_of(begin, block, live));
        }
        if (next != blocks.end() && address + page_size() >= next->second.map_begin)
            return text(next->first - address, " bytes before the beginning of ",
                        text_of(next->first, next->second, live));
    }
    return "device address space that belongs to no allocation";
}

bool is_device_memory(const void* address) {
    LockForHandler lock(registry().mutex);
    for (const Memory* memory : registry().memories)
        if (memory->owns(address)) return memory->is_live(address, 1);
    return false;
}

std::string describe_address(const void* address) {
    LockForHandler lock(registry().mutex);
    for (const Memory* memory : registry().memories)
        if (memory->owns(address)) return memory->describe(address);
    auto next = registry().pinned.upper_bound(address_of(address));
    if (next != registry().pinned.begin()) {
        const auto& [begin, range] = *std::prev(next);
        if (address_of(address) - begin < range.first)
            return text("byte ", address_of(address) - begin, " of pinned host memory [", pointer_to(begin), ", ",
                        pointer_to(begin + range.first), "), ", range.first, " bytes");
    }
    return "";
}

// ---------------------------------------------------------------------------------------------------------------------
// Pinned host memory

void* allocate_pinned(std::size_t bytes) {
    void* pointer = nullptr;
    if (bytes > memory_limits().tightest().free ||
        posix_memalign(&pointer, page_size(), std::max<std::size_t>(bytes, 1)) != 0)
        return nullptr;
    if (checks().poison) std::memset(pointer, poison_byte, bytes);
    std::lock_guard lock(registry().mutex);
    registry().pinned[address_of(pointer)] = {bytes, true};
    return pointer;
}

bool release_pinned(void* pointer) {
    {
        std::lock_guard lock(registry().mutex);
        auto found = registry().pinned.find(address_of(pointer));
        if (found == registry().pinned.end() || !found->second.second) return false;
        registry().pinned.erase(found);
    }
    std::free(pointer);
    return true;
}

bool register_pinned(void* pointer, std::size_t bytes) {
    std::lock_guard lock(registry().mutex);
    auto& pinned = registry().pinned;
    const std::uintptr_t begin = address_of(pointer);
    auto next = pinned.lower_bound(begin);
    if (next != pinned.end() && next->first < begin + bytes) return false;
    if (next != pinned.begin() && std::prev(next)->first + std::prev(next)->second.first > begin) return false;
    pinned[begin] = {bytes, false};
    return true;
}

bool unregister_pinned(void* pointer) {
    std::lock_guard lock(registry().mutex);
    auto found = registry().pinned.find(address_of(pointer));
    if (found == registry().pinned.end() || found->second.second) return false;
    registry().pinned.erase(found);
    return true;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
    std::lock_guard lock(registry().mutex);
    auto next = registry().pinned.upper_bound(address_of(pointer));
    if (next == registry().pinned.begin()) return false;
    const auto& [begin, range] = *std::prev(next);
    std::uintptr_t offset = address_of(pointer) - begin;
    return offset < range.first && bytes <= range.first - offset;
}

}   // namespace host
