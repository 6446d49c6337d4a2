#include "llmc/cuda_on_cpu/checks/missing_barriers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/memory/memory.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

constexpr int checked_launches = 2;   // launches checked per launch site, kernel and shape
constexpr std::size_t piece_bytes = 64 << 10;

class WriteLog;
__thread WriteLog* active_log = nullptr;

// Reserved addresses that take memory only when written.
class Scratch {
public:
    explicit Scratch(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
        void* memory =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<char*>(memory);
    }
    ~Scratch() { munmap(memory_, bytes_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    char* data() const { return memory_; }

private:
    std::size_t bytes_;
    char* memory_;
};

// Logs writes to device memory while it lives: memory is read-only until first written, and its old contents are kept.
class WriteLog {
public:
    struct Piece {
        char* memory;
        std::size_t bytes;
        std::size_t offset;   // offset of its copies in before() and after()
    };

    explicit WriteLog(const Memory& memory)
        : runs_(memory.live_runs()), before_(collect(memory.live_pages())), after_(bytes_) {
        protect(PROT_READ);
        pieces_.reserve(saved_.size());   // the fault handler must not allocate
        active_log = this;
    }
    ~WriteLog() {
        active_log = nullptr;
        protect(PROT_READ | PROT_WRITE);
    }
    WriteLog(const WriteLog&) = delete;
    WriteLog& operator=(const WriteLog&) = delete;

    bool take(const void* address) {
        char* const place = const_cast<char*>(static_cast<const char*>(address));
        auto next = std::upper_bound(regions_.begin(), regions_.end(), place,
                                     [](const char* at, const Region& region) { return at < region.begin; });
        if (next == regions_.begin()) return false;
        const Region& region = *std::prev(next);
        if (place >= region.end) return false;
        const auto start = static_cast<std::size_t>(place - region.begin) / piece_bytes * piece_bytes;
        const std::size_t number = region.first_piece + start / piece_bytes;
        if (saved_[number]) return false;
        const auto rest = static_cast<std::size_t>(region.end - region.begin) - start;
        Piece piece{region.begin + start, std::min(piece_bytes, rest), region.offset + start};
        std::memcpy(before_.data() + piece.offset, piece.memory, piece.bytes);
        mprotect(piece.memory, piece.bytes, PROT_READ | PROT_WRITE);
        saved_[number] = true;
        pieces_.push_back(piece);
        return true;
    }

    // Keeps the current contents of the pieces as the result to compare with.
    void keep_result() {
        kept_ = pieces_.size();
        for (const Piece& piece : pieces_) std::memcpy(after_.data() + piece.offset, piece.memory, piece.bytes);
    }
    void restore() {
        for (const Piece& piece : pieces_) std::memcpy(piece.memory, before_.data() + piece.offset, piece.bytes);
    }
    // Returns the first byte that differs from the kept result; null if none does. Pieces written only in the second
    // run must be unchanged.
    const char* first_difference() const {
        for (std::size_t i = 0; i < pieces_.size(); i++) {
            const Piece& piece = pieces_[i];
            const char* expected = (i < kept_ ? after_ : before_).data() + piece.offset;
            if (const char* found = first_mismatch(piece.memory, piece.memory + piece.bytes, expected)) return found;
        }
        return nullptr;
    }
    // Returns the first byte that has changed outside of the ranges that may be written; null if none has.
    const char* first_change_outside(std::vector<Access> ranges) const {
        std::erase_if(ranges, [](const Access& range) { return !range.write; });
        std::sort(ranges.begin(), ranges.end(), [](const Access& a, const Access& b) { return a.begin < b.begin; });
        for (const Piece& piece : pieces_) {
            const char *place = piece.memory, *end = piece.memory + piece.bytes;
            for (const Access& range : ranges) {
                auto* begin = static_cast<const char*>(range.begin);
                if (begin >= end) break;
                if (begin > place)
                    if (const char* found = first_change(piece, place, begin)) return found;
                place = std::max(place, std::min(begin + range.bytes, end));
            }
            if (const char* found = first_change(piece, place, end)) return found;
        }
        return nullptr;
    }

private:
    // Pages of one allocation.
    struct Region {
        char *begin, *end;
        std::size_t offset, first_piece;   // in the bytes and pieces of all regions
    };
    std::size_t collect(const std::vector<Memory::Pages>& all) {
        std::size_t pieces = 0;
        for (const Memory::Pages& pages : all) {
            regions_.push_back({pages.begin, pages.end, bytes_, pieces});
            const auto bytes = static_cast<std::size_t>(pages.end - pages.begin);
            bytes_ += bytes;
            pieces += (bytes + piece_bytes - 1) / piece_bytes;
        }
        saved_.assign(pieces, false);
        return bytes_;
    }
    void protect(int protection) const {
        for (const Memory::Pages& run : runs_)
            mprotect(run.begin, static_cast<std::size_t>(run.end - run.begin), protection);
    }
    static const char* first_mismatch(const char* begin, const char* end, const char* expected) {
        if (std::memcmp(begin, expected, static_cast<std::size_t>(end - begin)) == 0) return nullptr;
        return std::mismatch(begin, end, expected).first;
    }
    const char* first_change(const Piece& piece, const char* begin, const char* end) const {
        return first_mismatch(begin, end, before_.data() + piece.offset + (begin - piece.memory));
    }

    std::vector<Memory::Pages> runs_;
    std::vector<Region> regions_;   // ascending
    std::size_t bytes_ = 0;         // bytes of all regions
    std::vector<bool> saved_;
    Scratch before_, after_;
    std::vector<Piece> pieces_;
    std::size_t kept_ = 0;
};

std::string where(const char* address) {
    std::string place = describe_address(address);
    return place.empty() ? text(static_cast<const void*>(address)) : place;
}

}   // namespace

bool log_write(const void* address) { return active_log && active_log->take(address); }

bool is_new_to_order_check(const Grid& grid) {
    static std::mutex mutex;
    static std::map<std::string, int> seen;
    std::string key = text(grid.kernel, '|', grid.file, '|', grid.line, '|', grid.blocks.x, ',', grid.blocks.y, ',',
                           grid.blocks.z, '|', grid.threads.x, ',', grid.threads.y, ',', grid.threads.z);
    std::lock_guard<std::mutex> lock(mutex);
    return seen[key]++ < checked_launches;
}

GridFault run_grid_in_orders(const Grid& grid) {
    WriteLog log(device().memory);
    RunOrder order;
    order.on_one_thread = true;
    GridFault fault = run_grid(grid, order);
    if (fault.error != cudaSuccess) return fault;

    bool declares_writes =
        std::any_of(grid.accesses.begin(), grid.accesses.end(), [](const Access& a) { return a.write; });
    if (declares_writes) {
        if (const char* change = log.first_change_outside(grid.accesses)) {
            return {cudaErrorLaunchFailure,
                    text(describe_launch(grid), " writes memory that the launch does not declare: ", where(change))};
        }
    }

    log.keep_result();
    log.restore();
    order.threads = ThreadOrder::descending;
    order.blocks_descending = true;
    fault = run_grid(grid, order);
    if (fault.error != cudaSuccess) return fault;
    const char* difference = log.first_difference();
    if (!difference) return {};

    log.restore();
    order.blocks_descending = false;
    fault = run_grid(grid, order);
    if (fault.error != cudaSuccess) return fault;
    const char* between_threads = log.first_difference();
    std::string cause = between_threads
                            ? "the threads of a block run: a __syncthreads or __syncwarp is missing, or the order "
                              "of atomics matters"
                            : "blocks run: they depend on each other, or the order of atomics matters";
    return {cudaErrorLaunchFailure,
            text(describe_launch(grid), " gives different results in ascending and in descending ", "order, first at ",
                 where(between_threads ? between_threads : difference), ": it depends on the order in which ", cause)};
}

}   // namespace host
