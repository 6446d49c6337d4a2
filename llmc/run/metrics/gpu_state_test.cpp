#include "llmc/run/metrics/gpu_state.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

TEST_CASE("GPU state: what a library of NVML's functions says, and nothing where one is missing or refuses") {
    namespace fs = std::filesystem;
    const fs::path folder =
        fs::temp_directory_path() / ("nvml" + std::to_string(std::rand()) + std::to_string(getpid()));
    fs::create_directories(folder);
    const std::string source = (folder / "nvml.c").string();
    std::ofstream(source) << R"(
int nvmlInit_v2(void) { return 0; }
#ifdef KNOWN
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) { *device = (void*)bus; return 0; }
#else
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) { return 6; }
#endif
int nvmlDeviceGetUtilizationRates(void* device, unsigned* used) { used[0] = 97; used[1] = 40; return 0; }
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) { *milliwatts = 651500; return 0; }
#ifndef OLD
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) { *celsius = 61 + sensor; return 0; }
#endif
)";
    auto state = [&](const std::string& name, const std::string& flags) {
        const std::string library = (folder / name).string();
        REQUIRE(std::system(("cc -w -shared -fPIC " + flags + " -o " + library + " " + source).c_str()) == 0);
        return GpuMonitor(library.c_str()).state();
    };
    const std::optional<GpuState> found = state("whole.so", "-DKNOWN");
    REQUIRE(found);
    CHECK(found->utilization == 97);
    CHECK(found->watts == doctest::Approx(651.5));
    CHECK(found->celsius == 61);
    CHECK(!state("unknown.so", ""));
    CHECK(!state("old.so", "-DKNOWN -DOLD"));
    CHECK(!GpuMonitor((folder / "missing.so").c_str()).state());
    fs::remove_all(folder);
}
