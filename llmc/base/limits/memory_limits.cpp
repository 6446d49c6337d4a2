#include "llmc/base/limits/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/limits/control_groups.h"

namespace {

std::uint64_t rest(std::uint64_t limit, std::uint64_t used) { return limit - std::min(limit, used); }

// Adds the limits of one group. A file that is not there, or says "max", limits nothing; version 1 says so by a number
// beyond all memory.
void add_group(MemoryLimits& limits, const std::string& folder) {
    const std::string stat = folder + "/memory.stat";
    auto add = [&](std::vector<MemoryLimit>& to, const char* file, const char* usage, const std::string& of_all) {
        const auto limit = number_in(folder + "/" + file);
        if (!limit) return;
        // the kernel drops cached files before it kills
        const std::uint64_t cached = number_of(stat, of_all + "inactive_file").value_or(0) +
                                     number_of(stat, of_all + "active_file").value_or(0),
                            used = number_in(folder + "/" + usage).value_or(0);
        to.push_back({folder + "/" + file, *limit, rest(*limit, rest(used, cached))});
    };
    add(limits.all, "memory.max", "memory.current", "");
    add(limits.slowing, "memory.high", "memory.current", "");
    add(limits.all, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");   // total_: with the groups below
}

// A container of version 1 does not see the groups above its own, but its own says the least limit of them all.
void add_hidden_groups(MemoryLimits& limits, const std::string& folder) {
    const std::string stat = folder + "/memory.stat";
    const auto limit = number_of(stat, "hierarchical_memory_limit");
    if (!limit || *limit >= limits.smallest().bytes) return;
    const std::uint64_t used = number_of(stat, "total_rss").value_or(0);
    limits.all.push_back({stat + " (hierarchical_memory_limit)", *limit, rest(*limit, used)});
}

void add_machine(MemoryLimits& limits, const std::string& root) {
    const std::string path = root + "/proc/meminfo";
    auto bytes_of = [&](const char* name) -> std::optional<std::uint64_t> {
        const auto kibibytes = number_of(path, name);
        return kibibytes ? std::optional(*kibibytes << 10) : std::nullopt;
    };
    const std::uint64_t all = bytes_of("MemTotal:")
                                  .value_or(static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                            static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))),
                        available = bytes_of("MemAvailable:").value_or(all) + bytes_of("SwapFree:").value_or(0);
    limits.all.push_back({"this machine's memory", all, std::min(all, available)});
    const auto commit = bytes_of("CommitLimit:"), committed = bytes_of("Committed_AS:");
    if (number_in(root + "/proc/sys/vm/overcommit_memory") == 2 && commit && committed) {
        limits.all.push_back({"CommitLimit (vm.overcommit_memory 2)", *commit, rest(*commit, *committed)});
    }
}

void add_process(MemoryLimits& limits, const std::string& root, const OwnMemoryLimits& own) {
    std::uint64_t pages[6] = {};   // all addresses, three others, shared, data and stacks
    std::ifstream file(root + "/proc/self/statm");
    for (std::uint64_t& count : pages) file >> count;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    auto add = [&](const char* name, std::uint64_t limit, std::uint64_t used) {
        if (limit != UINT64_MAX) limits.all.push_back({name, limit, rest(limit, used)});
    };
    add("ulimit -v, this process's address space", own.addresses, page * pages[0]);
    add("ulimit -d, this process's data", own.data, page * pages[5]);
}

std::uint64_t limit_of(int resource) {
    rlimit limit{};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

}   // namespace

std::string MemoryLimit::words() const { return text(bytes >> 20, " MiB by ", set_by); }

const MemoryLimit& MemoryLimits::smallest() const { return *std::ranges::min_element(all, {}, &MemoryLimit::bytes); }
const MemoryLimit& MemoryLimits::tightest() const { return *std::ranges::min_element(all, {}, &MemoryLimit::free); }

OwnMemoryLimits own_memory_limits() { return {limit_of(RLIMIT_AS), limit_of(RLIMIT_DATA)}; }

MemoryLimits memory_limits(const std::string& root, const OwnMemoryLimits& own) {
    MemoryLimits limits;
    add_machine(limits, root);
    const std::vector<std::string> groups = control_groups("memory", root);
    for (const std::string& folder : groups) add_group(limits, folder);
    for (const std::string& folder : groups) add_hidden_groups(limits, folder);
    add_process(limits, root, own);
    return limits;
}
