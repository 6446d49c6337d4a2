// Allocates device memory: every allocation has a name and an owner, and the table of all can be printed.
//
// The host reaches device memory only through the copies of DeviceBuffer. Kernels get `data()`.
// An Arena owns the sum: it hands out buffers, keeps the high-water mark, and prints who holds how much.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/stream.h"

class Arena;

// One row of an arena's table. `group` is the part of the name before the first '/', e.g. "activations".
struct Allocation {
    std::string name;
    std::size_t bytes;
    const void* address;
};

// A named, typed piece of device memory, freed with its last reference. Contents are undefined until written. A buffer
// of a counting arena has a size but no memory, and its copies do nothing.
template <class T>
class DeviceBuffer {
public:
    DeviceBuffer() = default;

    T* data() const { return static_cast<T*>(memory_.get()); }
    std::size_t size() const { return count_; }
    std::size_t bytes() const { return count_ * sizeof(T); }

    // Copies host to device, in order with the stream's other work. Pageable memory is read before this returns.
    void upload(std::span<const T> source, cudaStream_t stream, std::size_t offset = 0) const {
        ENSURE(offset + source.size() <= count_, "upload past the end of a buffer of ", count_, " elements");
        if (!memory_) return;
        CUDA_CHECK(
            cudaMemcpyAsync(data() + offset, source.data(), source.size_bytes(), cudaMemcpyHostToDevice, stream));
    }

    // Copies device to host after the stream's earlier work, and waits for it.
    std::vector<T> download(cudaStream_t stream) const { return download(stream, 0, count_); }
    std::vector<T> download(cudaStream_t stream, std::size_t offset, std::size_t count) const {
        ENSURE(offset + count <= count_, "download past the end of a buffer of ", count_, " elements");
        std::vector<T> result(count);
        copy_to_host(result.data(), data() + offset, count * sizeof(T), stream);
        wait_for(stream);
        return result;
    }

    void zero(cudaStream_t stream) const {
        if (memory_) CUDA_CHECK(cudaMemsetAsync(data(), 0, bytes(), stream));
    }

    // Returns the same memory as elements of another type.
    template <class U>
    DeviceBuffer<U> as() const {
        ENSURE(bytes() % sizeof(U) == 0, bytes(), " bytes as elements of ", sizeof(U));
        return {memory_, bytes() / sizeof(U)};
    }

private:
    friend class Arena;
    template <class>
    friend class DeviceBuffer;
    DeviceBuffer(std::shared_ptr<void> memory, std::size_t count) : memory_(std::move(memory)), count_(count) {}
    std::shared_ptr<void> memory_;
    std::size_t count_ = 0;
};

class Arena {
public:
    Arena() = default;
    // Makes an arena that only counts: it tells how much memory a run takes before the run takes any. Do not compute
    // with its buffers.
    static Arena counting() {
        Arena arena;
        arena.counts_ = true;
        return arena;
    }
    // True if it only counts: what is made with it must need no device.
    bool counts() const { return counts_; }

    // Allocates `count` elements, 256-byte aligned or better. Names read "group/tensor" ("gradients/h.3").
    // Throws Error(no_device) with the table of allocations if the device has no room.
    template <class T>
    DeviceBuffer<T> allocate(std::string name, std::size_t count) {
        return DeviceBuffer<T>(allocate_bytes(std::move(name), count * sizeof(T)), count);
    }

    std::size_t bytes() const;        // allocated now
    std::size_t high_water() const;   // the most ever held at once
    std::vector<Allocation> allocations() const;

    // Returns a line per group: bytes, share, number of buffers; then the sum and the high-water mark.
    std::string table() const;

private:
    std::shared_ptr<void> allocate_bytes(std::string name, std::size_t bytes);

    struct State;   // shared with the buffers, so that they may outlive the arena
    std::shared_ptr<State> state_;
    bool counts_ = false;
};
