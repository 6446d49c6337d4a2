// Shared by the stand-in's tests: a device per test, so that faults and memory of one test do not affect another.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <utility>

#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/queue/device.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

// Returns the strict checks; streams run in order of creation.
inline Checks strict_checks() {
    Checks checks = parse_checks("memory,poison,races,shape");
    checks.no_progress_seconds = 0.05;
    return checks;
}

// Binds a fresh device to this thread, under the given checks, and restores both at the end.
class TestDevice {
public:
    explicit TestDevice(const Checks& wanted = strict_checks()) : previous_(checks()), bind_(device_) {
        set_checks(wanted);
        cudaGetLastError();   // clears an earlier test's error
    }
    ~TestDevice() {
        device_.take_fault();
        set_checks(previous_);
    }
    TestDevice(const TestDevice&) = delete;
    TestDevice& operator=(const TestDevice&) = delete;
    Device* operator->() { return &device_; }

    cudaStream_t stream() {
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        return stream;
    }
    template <class T>
    T* allocate(std::size_t count) {
        T* pointer = nullptr;
        cudaMalloc(&pointer, count * sizeof(T));
        return pointer;
    }

private:
    Checks previous_;
    Device device_;
    BindDevice bind_;
};

// Returns an operation that declares `accesses` and runs `body`.
inline Operation operation(
    std::string name, std::vector<Access> accesses, std::function<void()> body = [] {},
    const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    Operation result{std::move(name), file, line, std::move(accesses), {}, {}, {}};
    result.step = [body = std::move(body)] { return body(), true; };
    return result;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}   // namespace host
