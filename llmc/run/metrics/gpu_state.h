// Reads the GPU's load, power and temperature from NVML, which comes with the driver: beside MFU they show whether the
// GPU waits for work or is slowed down.
#pragma once

#include <optional>

struct GpuState {
    unsigned utilization;   // % of the last sampling period in which a kernel ran
    double watts;
    unsigned celsius;
};

class GpuMonitor {
public:
    // Watches the current device. state() is empty if the library cannot be loaded or does not know the device.
    explicit GpuMonitor(const char* library = "libnvidia-ml.so.1");

    // Reads at most once a second; in between it returns the last reading.
    std::optional<GpuState> state();

private:
    void* device_ = nullptr;   // NVML's handle; null: unknown
    int (*utilization_)(void*, unsigned*) = nullptr;
    int (*milliwatts_)(void*, unsigned*) = nullptr;
    int (*temperature_)(void*, int, unsigned*) = nullptr;
    double read_s_ = -1e9;
    std::optional<GpuState> state_;
};
