#include "llmc/base/limits/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/limits/control_groups.h"
#include "llmc/base/log.h"

int UsableCores::count() const {
    return quota > 0 ? std::clamp(static_cast<int>(std::ceil(std::min(quota, 1e6))), 1, allowed) : allowed;
}

std::string UsableCores::words() const {
    return quota > 0 && quota < allowed ? formatted("%.4g cores' time by ", quota) + set_by
                                        : text(allowed, " cores that it may run on");
}

int allowed_cores() {
    // the kernel refuses a mask that is too small for its number of cores
    for (std::size_t cores = 1024; cores <= 1 << 20; cores *= 2) {
        std::vector<cpu_set_t> mask(cores / CPU_SETSIZE);
        const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
        if (sched_getaffinity(0, bytes, mask.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, mask.data()));
    }
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

UsableCores usable_cores(const std::string& root, int allowed) {
    UsableCores cores;
    cores.allowed = allowed;
    auto limit = [&](const std::string& path, double time, double period) {
        const double quota = time / period;
        if (time > 0 && period > 0 && (cores.quota == 0 || quota < cores.quota))
            cores.quota = quota, cores.set_by = path;
    };
    for (const std::string& folder : control_groups("cpu", root)) {
        double time = 0, period = 0;
        if (std::ifstream file(folder + "/cpu.max"); file >> time >> period) limit(folder + "/cpu.max", time, period);
        const auto quota = number_in(folder + "/cpu.cfs_quota_us"), of = number_in(folder + "/cpu.cfs_period_us");
        if (quota && of) limit(folder + "/cpu.cfs_quota_us", static_cast<double>(*quota), static_cast<double>(*of));
    }
    return cores;
}
