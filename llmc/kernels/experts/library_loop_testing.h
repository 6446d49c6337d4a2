// Multiplies groups of rows by one library call for each group: what the grouped kernel (grouped_matmul.cuh) is tested
// and timed against.
//
// The host must know the rows of each group, so training would wait for the device once a layer; the kernel does not.
// A group without rows makes no call. Its weight gradient is zero, or with `accumulate` what it was.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/kernels/matmul/matmul.h"

class LibraryLoop {
public:
    // offsets (groups + 1): first row of each group, and the end. N, K as in GroupedShape.
    LibraryLoop(Matmul& matmul, std::vector<std::int32_t> offsets, int N, int K)
        : matmul_(matmul), offsets_(std::move(offsets)), N_(N), K_(K) {}

    // Compute what the functions grouped_...() of the same names do.
    template <class T>
    void forward(T* out, const T* in, const T* weight, cudaStream_t stream) {
        each_group([&](const Group& g) {
            if (g.shape.M == 0) return;
            matmul_.forward<T>(out + g.row * N_, in + g.row * K_, weight + g.matrix, nullptr, g.shape, stream);
        });
    }
    template <class T>
    void input_gradient(T* dinp, const T* dout, const T* weight, bool accumulate, cudaStream_t stream) {
        each_group([&](const Group& g) {
            if (g.shape.M == 0) return;
            matmul_.input_gradient<T>(dinp + g.row * K_, dout + g.row * N_, weight + g.matrix, g.shape, accumulate,
                                      stream);
        });
    }
    template <class T, class G>
    void weight_gradient(G* dweight, const T* dout, const T* in, bool accumulate, cudaStream_t stream) {
        each_group([&](const Group& g) {
            G* const to = dweight + g.matrix;
            if (g.shape.M > 0) {
                matmul_.weight_gradient<T, G>(to, dout + g.row * N_, in + g.row * K_, g.shape, accumulate, stream);
            } else if (!accumulate) {
                const std::size_t elements = static_cast<std::size_t>(N_) * static_cast<std::size_t>(K_);
                CUDA_CHECK(cudaMemsetAsync(to, 0, sizeof(G) * elements, stream));
            }
        });
    }

private:
    struct Group {
        std::int64_t row, matrix;   // first row; elements before the group's matrix
        MatmulShape shape;
    };
    template <class Work>
    void each_group(Work work) {
        for (std::size_t g = 0; g + 1 < offsets_.size(); g++) {
            work(Group{offsets_[g], static_cast<std::int64_t>(g) * N_ * K_, {offsets_[g + 1] - offsets_[g], N_, K_}});
        }
    }

    Matmul& matmul_;
    std::vector<std::int32_t> offsets_;
    int N_, K_;
};
