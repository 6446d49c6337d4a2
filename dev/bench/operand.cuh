// The operands of a benchmark: one piece of device memory per set of a Timing, filled with normal random numbers.
#pragma once

#include <algorithm>

#include "dev/bench/bench.h"
#include "llmc/kernels/init.cuh"

// `count` elements in each set, 256-byte aligned.
template <class T>
class Operand {
public:
    Operand(Timing& timing, std::int64_t count, float deviation = 1.0f) : stride_((count + 127) / 128 * 128) {
        const std::int64_t all = stride_ * timing.sets();
        buffer_ = timing.arena().allocate<T>("bench/operand", static_cast<std::size_t>(all));
        cudaStream_t stream = timing.bench().stream();
        // drawing numbers is slow where there is no GPU: a piece is drawn, and copied until it fills the buffer
        std::int64_t filled = std::min<std::int64_t>(all, 1 << 16);
        fill_normal(buffer_.data(), filled, deviation, random_key(1, static_cast<std::uint64_t>(count)), GlobalSpan{},
                    stream);
        while (filled < all) {
            const std::int64_t n = std::min(filled, all - filled);
            CUDA_CHECK(cudaMemcpyAsync(buffer_.data() + filled, buffer_.data(), static_cast<std::size_t>(n) * sizeof(T),
                                       cudaMemcpyDeviceToDevice, stream));
            filled += n;
        }
    }

    T* operator[](int set) const { return buffer_.data() + set * stride_; }

private:
    std::int64_t stride_;
    DeviceBuffer<T> buffer_;
};
