#include "llmc/run/metrics/gpu_state.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <type_traits>

#include "llmc/base/check.h"
#include "llmc/base/log.h"

namespace {

// Returns the device's PCI address as NVML spells it; empty for the stand-in.
template <typename Properties>
std::string bus_of(const Properties& device) {
    if constexpr (requires { device.pciBusID; }) {
        return formatted("%08x:%02x:%02x.0", static_cast<unsigned>(device.pciDomainID),
                         static_cast<unsigned>(device.pciBusID), static_cast<unsigned>(device.pciDeviceID));
    } else {
        return "";
    }
}

}   // namespace

GpuMonitor::GpuMonitor(const char* library) {
    void* const nvml = dlopen(library, RTLD_NOW | RTLD_LOCAL);   // never closed
    if (nvml == nullptr) return;
    bool found = true;
    const auto find = [&](const char* name, auto& function) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(nvml, name));
        found = found && function != nullptr;
    };
    int (*begin)() = nullptr;
    int (*device_by_bus)(const char*, void**) = nullptr;
    find("nvmlInit_v2", begin);
    find("nvmlDeviceGetHandleByPciBusId_v2", device_by_bus);
    find("nvmlDeviceGetUtilizationRates", utilization_);
    find("nvmlDeviceGetPowerUsage", milliwatts_);
    find("nvmlDeviceGetTemperature", temperature_);
    const std::string bus = bus_of(device_properties());
    if (!found || begin() != 0 || device_by_bus(bus.c_str(), &device_) != 0) device_ = nullptr;
}

std::optional<GpuState> GpuMonitor::state() {
    if (device_ == nullptr || steady_seconds() - read_s_ < 1) return state_;
    read_s_ = steady_seconds();
    std::array<unsigned, 2> used{};   // % of the GPU and of its memory
    unsigned milliwatts = 0, celsius = 0;
    const bool answered = utilization_(device_, used.data()) == 0 && milliwatts_(device_, &milliwatts) == 0 &&
                          temperature_(device_, 0, &celsius) == 0;
    state_.reset();
    if (answered) state_ = {used[0], 1e-3 * milliwatts, celsius};
    return state_;
}
