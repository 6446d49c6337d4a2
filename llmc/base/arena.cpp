#include "llmc/base/arena.h"

#include <algorithm>
#include <map>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"

struct Arena::State {
    std::vector<Allocation> allocations;
    std::size_t bytes = 0;
    std::size_t high_water = 0;
};

std::shared_ptr<void> Arena::allocate_bytes(std::string name, std::size_t bytes) {
    if (!state_) state_ = std::make_shared<State>();
    if (bytes == 0) return nullptr;
    void* address = nullptr;
    auto note = [&] {
        state_->allocations.push_back({std::move(name), bytes, address});
        state_->bytes += bytes;
        state_->high_water = std::max(state_->high_water, state_->bytes);
    };
    if (counts_) {
        note();
        return nullptr;
    }
    cudaError_t status = cudaMalloc(&address, bytes);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();   // not sticky: the program may go on after giving something back
        std::size_t free_bytes = 0, total_bytes = 0;
        CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
        throw Error(ErrorKind::no_device,
                    text("no room for ", bytes, " bytes of ", name, ": the device has ", free_bytes, " of ",
                         total_bytes, " bytes free; held so far:\n", table()),
                    how_to_save_memory());
    }
    CUDA_CHECK(status);
    if (stand_in()) stand_in()->name_memory(address, name.c_str());
    note();
    return std::shared_ptr<void>(address, [owner = state_, bytes](void* pointer) {
        cudaFree(pointer);   // a failure here has already shown itself at an earlier call
        owner->bytes -= bytes;
        std::erase_if(owner->allocations, [&](const Allocation& a) { return a.address == pointer; });
    });
}

std::size_t Arena::bytes() const { return state_ ? state_->bytes : 0; }
std::size_t Arena::high_water() const { return state_ ? state_->high_water : 0; }
std::vector<Allocation> Arena::allocations() const { return state_ ? state_->allocations : std::vector<Allocation>{}; }

std::string Arena::table() const {
    struct Group {
        std::size_t bytes = 0;
        int buffers = 0;
    };
    std::map<std::string, Group> groups;
    for (const Allocation& a : allocations()) {
        Group& group = groups[a.name.substr(0, a.name.find('/'))];
        group.bytes += a.bytes;
        group.buffers++;
    }
    std::vector<std::pair<std::string, Group>> rows(groups.begin(), groups.end());
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });

    const double mib = 1024.0 * 1024.0;
    std::string result;
    for (const auto& [name, group] : rows) {
        result += formatted(
            "  %-24s %12.2f MiB  %5.1f%%  %4d buffer%s\n", name.c_str(), static_cast<double>(group.bytes) / mib,
            100.0 * static_cast<double>(group.bytes) / static_cast<double>(std::max<std::size_t>(bytes(), 1)),
            group.buffers, group.buffers == 1 ? "" : "s");
    }
    result += formatted("  %-24s %12.2f MiB  (most at once: %.2f MiB)\n", "sum", static_cast<double>(bytes()) / mib,
                        static_cast<double>(high_water()) / mib);
    return result;
}
