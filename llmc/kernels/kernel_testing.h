// Shared by the tests of kernels: tensors on the device with guarded ends, random data, comparison with double loops.
//
// Tolerances come from the arithmetic: `unit<T>` is the largest relative error of one rounding to T, and every test
// says how large the numbers are that were rounded on the way.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <any>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"

using Doubles = std::vector<double>;

template <class T>
constexpr double unit = 0;
template <>
inline constexpr double unit<float> = 0x1p-24;
template <>
inline constexpr double unit<bf16> = 0x1p-8;

// x rounded to T. Volatile, because g++ 12 loses a double's way through float and back at the end of vectorised loops.
template <class T>
double rounded(double x) {
    volatile float single = static_cast<float>(x);
    return static_cast<double>(static_cast<float>(static_cast<T>(single)));
}

// n normal numbers times `scale`, each exactly representable in T, so that reference and kernel start alike.
template <class T>
Doubles random_values(std::size_t n, double scale, std::uint64_t seed) {
    Doubles values(n);
    for (std::size_t i = 0; i < n; i++) values[i] = rounded<T>(scale * normal(mix64(seed), i));
    return values;
}

// n elements on the device between guards, which must never be written. `shift` misaligns them by that many elements.
template <class T>
class TestTensor {
public:
    TestTensor(Arena& arena, cudaStream_t stream, const Doubles& values, std::size_t shift = 0)
        : stream_(stream), count_(values.size()), begin_(kGuard + shift) {
        std::vector<T> host(begin_ + count_ + kGuard, guard());
        for (std::size_t i = 0; i < count_; i++) host[begin_ + i] = static_cast<T>(static_cast<float>(values[i]));
        buffer_ = arena.allocate<T>("test/tensor", host.size());
        buffer_.upload(host, stream);
    }

    T* data() const { return buffer_.data() + begin_; }
    const DeviceBuffer<T>& buffer() const { return buffer_; }
    std::size_t size() const { return count_; }

    std::vector<T> raw() const {
        std::vector<T> host = buffer_.download(stream_);
        bool intact = true;
        for (std::size_t i = 0; i < host.size(); i++) {
            bool inside = i >= begin_ && i < begin_ + count_;
            T expected = guard();
            if (!inside && std::memcmp(&host[i], &expected, sizeof(T)) != 0) intact = false;
        }
        CHECK_MESSAGE(intact, "a kernel wrote outside its tensor of ", count_, " elements");
        return {host.begin() + static_cast<std::ptrdiff_t>(begin_),
                host.begin() + static_cast<std::ptrdiff_t>(begin_ + count_)};
    }

    Doubles values() const {
        std::vector<T> host = raw();
        Doubles result(host.size());
        for (std::size_t i = 0; i < host.size(); i++) result[i] = static_cast<double>(static_cast<float>(host[i]));
        return result;
    }

private:
    static constexpr std::size_t kGuard = 16;
    static T guard() { return static_cast<T>(-12345.0f); }

    cudaStream_t stream_;
    std::size_t count_, begin_;
    DeviceBuffer<T> buffer_;
};

// A stream and memory for one test. Tensors live as long as the test: kernels run after the calls that launch them.
class KernelTest {
public:
    KernelTest() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~KernelTest() {
        cudaStreamSynchronize(stream);   // before kept_ is freed
        cudaStreamDestroy(stream);
    }
    KernelTest(const KernelTest&) = delete;

    template <class T>
    TestTensor<T> tensor(const Doubles& values, std::size_t shift = 0) {
        TestTensor<T> result(arena, stream, values, shift);
        keep(result.buffer());
        return result;
    }
    template <class T>
    TestTensor<T> random(std::size_t n, double scale, std::uint64_t seed, std::size_t shift = 0) {
        return tensor<T>(random_values<T>(n, scale, seed), shift);
    }
    // Filled with a number no kernel should leave in its output.
    template <class T>
    TestTensor<T> output(std::size_t n, std::size_t shift = 0) {
        return tensor<T>(Doubles(n, 777.0), shift);
    }

    DeviceBuffer<int> ints(const std::vector<int>& values) {
        DeviceBuffer<int> buffer = arena.allocate<int>("test/ints", values.size());
        buffer.upload(values, stream);
        return keep(buffer);
    }
    // Frees `what` (a buffer or a table of them) only once the test's work is done.
    template <class What>
    const What& keep(const What& what) {
        kept_.push_back(what);
        return what;
    }

    Arena arena;
    cudaStream_t stream = nullptr;

private:
    std::vector<std::any> kept_;
};

// |actual - expected| <= error[i] for every element; says which is worst.
inline void check_close(const Doubles& actual, const Doubles& expected, const Doubles& error, const std::string& what) {
    REQUIRE(actual.size() == expected.size());
    REQUIRE(actual.size() == error.size());
    std::size_t worst = 0;
    double worst_ratio = 0;
    for (std::size_t i = 0; i < actual.size(); i++) {
        double difference = std::abs(actual[i] - expected[i]);
        double ratio = difference == 0 ? 0 : std::isfinite(difference) ? difference / error[i] : INFINITY;
        if (ratio > worst_ratio) {
            worst_ratio = ratio;
            worst = i;
        }
    }
    std::string message = actual.empty() ? what
                                         : text(what, ": element ", worst, " of ", actual.size(), " is ", actual[worst],
                                                ", expected ", expected[worst], " +- ", error[worst]);
    CHECK_MESSAGE(worst_ratio <= 1.0, message);
}

// The error of results stored in T that were computed in fp32 from terms of the given size: one rounding to T, and
// `operations` roundings of fp32 numbers no larger than `size`.
template <class T>
Doubles rounding_error(const Doubles& expected, const Doubles& size, double operations) {
    Doubles error(expected.size());
    for (std::size_t i = 0; i < error.size(); i++) {
        // denormal results lose digits: 2^-133 is the smallest number of bf16, 2^-149 that of float
        error[i] = unit<T> * std::abs(expected[i]) + operations * unit<float> * size[i] + 0x1p-133;
    }
    return error;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
