// How busy and how warm the GPU is, by NVML, which comes with the driver: to see beside MFU whether it waits for work
// or was slowed down.
#pragma once

#include <optional>

struct GpuState {
    unsigned utilization;   // % of the last moments in which a kernel ran
    double watts;
    unsigned celsius;
};

class GpuMonitor {
public:
    // Of the device at hand. Where the library cannot be loaded, or does not know the device, there is no state.
    explicit GpuMonitor(const char* library = "libnvidia-ml.so.1");

    // Asked anew once a second at most.
    std::optional<GpuState> state();

private:
    void* device_ = nullptr;   // NVML's; null: not known
    int (*utilization_)(void*, unsigned*) = nullptr;
    int (*milliwatts_)(void*, unsigned*) = nullptr;
    int (*temperature_)(void*, int, unsigned*) = nullptr;
    double read_s_ = -1e9;
    std::optional<GpuState> state_;
};
