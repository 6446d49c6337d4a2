#include "llmc/base/limits/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
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

std::string core_mask() {
    // the kernel refuses a mask that is too small for its number of cores
    for (std::size_t cores = CPU_SETSIZE; cores <= 1 << 20; cores *= 2) {
        std::vector<cpu_set_t> sets(cores / CPU_SETSIZE);
        const std::size_t bytes = sets.size() * sizeof(cpu_set_t);
        if (sched_getaffinity(0, bytes, sets.data()) != 0) continue;
        std::string mask((cores + 7) / 8, '\0');
        for (std::size_t core = 0; core < cores; core++) {
            if (CPU_ISSET_S(core, bytes, sets.data()))
                mask[core / 8] = static_cast<char>(mask[core / 8] | 1 << core % 8);
        }
        return mask.substr(0, mask.find_last_not_of('\0') + 1);
    }
    return "";
}

int allowed_cores() {
    int cores = 0;
    for (const char byte : core_mask()) cores += std::popcount(static_cast<unsigned char>(byte));
    return cores > 0 ? cores : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int share_of_cores(const std::string& own, const std::vector<std::string>& masks) {
    auto has = [](const std::string& mask, std::size_t core) {
        return core / 8 < mask.size() && (mask[core / 8] >> core % 8 & 1) != 0;
    };
    double share = 0;
    for (std::size_t core = 0; core < 8 * own.size(); core++) {
        if (!has(own, core)) continue;
        share += 1.0 / static_cast<double>(
                           std::ranges::count_if(masks, [&](const std::string& mask) { return has(mask, core); }));
    }
    if (own.empty()) share = static_cast<double>(allowed_cores()) / static_cast<double>(masks.size());
    return std::max(1, static_cast<int>(share + 1e-6));   // thirds add up to a little less than a whole
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
