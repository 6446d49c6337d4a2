// Limits of memory in invented trees of the kernel's files.
#include "llmc/base/limits/memory_limits.h"

#include <doctest/doctest.h>

#include "llmc/base/limits/invented_machine_testing.h"

namespace {

constexpr std::uint64_t mebibyte = 1 << 20;
constexpr OwnMemoryLimits kNoOwn = {UINT64_MAX, UINT64_MAX};

// What counts in an invented machine, in MiB: which limit is the smallest and which leaves the least.
struct Found {
    std::uint64_t smallest, free;
    std::string smallest_by, tightest_by;
};
Found found_in(const InventedMachine& machine, const OwnMemoryLimits& own = kNoOwn) {
    const MemoryLimits limits = memory_limits(machine.root(), own);
    auto name = [&](const std::string& by) {
        return by.starts_with(machine.root()) ? by.substr(machine.root().size()) : by;
    };
    return {limits.smallest().bytes / mebibyte, limits.tightest().free / mebibyte, name(limits.smallest().set_by),
            name(limits.tightest().set_by)};
}

std::string mebibytes(std::uint64_t count) { return std::to_string(count * mebibyte) + "\n"; }

}   // namespace

TEST_CASE("memory limits: without groups the machine's memory counts, and of it what is free, with swap") {
    InventedMachine machine;
    Found found = found_in(machine);
    CHECK(found.smallest == 8192);
    CHECK(found.smallest_by == "this machine's memory");
    CHECK(found.free == 6144);
    machine.write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nSwapFree: 1048576 kB\n");
    CHECK(found_in(machine).free == 7168);
    machine.write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nSwapFree: 9999999 kB\n");
    CHECK(found_in(machine).free == 8192);
}

TEST_CASE("memory limits: a parent group of version 2 is the tightest, and files of caches count as free") {
    InventedMachine machine;
    machine.mount_2("/", "/sys/fs/cgroup");
    machine.is_in("0::/job_7/step_0/task_0\n");
    machine.write("/sys/fs/cgroup/job_7/step_0/task_0/memory.max", "max\n");
    machine.write("/sys/fs/cgroup/job_7/step_0/memory.max", mebibytes(4096));
    machine.write("/sys/fs/cgroup/job_7/memory.max", mebibytes(400));
    machine.write("/sys/fs/cgroup/job_7/memory.current", mebibytes(300));
    machine.write("/sys/fs/cgroup/job_7/memory.stat",
                  "anon 1\nfile 1\ninactive_file " + mebibytes(150) + "active_file " + mebibytes(50));
    machine.write("/sys/fs/cgroup/job_8/memory.max", mebibytes(1));   // another job's
    Found found = found_in(machine);
    CHECK(found.smallest == 400);
    CHECK(found.smallest_by == "/sys/fs/cgroup/job_7/memory.max");
    CHECK(found.free == 300);
    CHECK(found.tightest_by == "/sys/fs/cgroup/job_7/memory.max");

    // a larger limit that others use up leaves less than the smallest
    machine.write("/sys/fs/cgroup/job_7/step_0/memory.current", mebibytes(5000));
    found = found_in(machine);
    CHECK(found.smallest_by == "/sys/fs/cgroup/job_7/memory.max");
    CHECK(found.free == 0);
    CHECK(found.tightest_by == "/sys/fs/cgroup/job_7/step_0/memory.max");
}

TEST_CASE("memory limits: a parent group of version 1, beside version 2 without the controller") {
    InventedMachine machine;
    machine.mount_1("cpu,cpuacct", "/", "/sys/fs/cgroup/cpu,cpuacct");
    machine.mount_1("memory", "/", "/sys/fs/cgroup/memory");
    machine.mount_2("/", "/sys/fs/cgroup/unified");
    machine.is_in("9:name=systemd:/a\n4:memory:/slurm/job_7/task_0\n2:cpu,cpuacct:/elsewhere\n0::/user.slice\n");
    const std::string group = "/sys/fs/cgroup/memory/slurm/job_7";
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    machine.write(group + "/task_0/memory.limit_in_bytes", "9223372036854771712\n");
    machine.write(group + "/memory.limit_in_bytes", mebibytes(512));
    machine.write(group + "/memory.usage_in_bytes", mebibytes(200));
    machine.write(group + "/memory.stat",
                  "inactive_file 0\ntotal_inactive_file " + mebibytes(60) + "total_active_file " + mebibytes(40));
    machine.write("/sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes", mebibytes(1));   // of another controller
    const Found found = found_in(machine);
    CHECK(found.smallest == 512);
    CHECK(found.smallest_by == group + "/memory.limit_in_bytes");
    CHECK(found.free == 412);
}

TEST_CASE("memory limits: what a container sees of its own group") {
    for (const std::string in : {"/", "/../..", "/../../other/x", "/docker/abc", ""}) {
        for (const std::string top : {"/", "/../..", "/docker/abc"}) {
            CAPTURE(in);
            CAPTURE(top);
            InventedMachine machine;
            machine.mount_2(top, "/sys/fs/cgroup");
            if (!in.empty()) machine.is_in("0::" + in + "\n");
            machine.write("/sys/fs/cgroup/memory.max", mebibytes(700));
            machine.write("/sys/other/x/memory.max", mebibytes(1));   // reached by going up from the folder
            CHECK(found_in(machine).smallest == 700);
        }
    }
    // a group below the one that is mounted is found under its own name
    InventedMachine machine;
    machine.mount_2("/docker/abc", "/sys/fs/cgroup");
    machine.is_in("0::/docker/abc/inner\n");
    machine.write("/sys/fs/cgroup/memory.max", mebibytes(700));
    machine.write("/sys/fs/cgroup/inner/memory.max", mebibytes(600));
    CHECK(found_in(machine).smallest == 600);
    machine.is_in("0::/docker/abcinner\n");   // only begins alike
    CHECK(found_in(machine).smallest == 700);
}

TEST_CASE("memory limits: a container of version 1 tells of groups above its own by the least limit of them") {
    InventedMachine machine;
    machine.mount_1("memory", "/docker/abc", "/sys/fs/cgroup/memory");
    machine.is_in("4:memory:/docker/abc\n");
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", mebibytes(1000));
    machine.write("/sys/fs/cgroup/memory/memory.stat",
                  "total_rss " + mebibytes(50) + "hierarchical_memory_limit " + mebibytes(300));
    const Found found = found_in(machine);
    CHECK(found.smallest == 300);
    CHECK(found.smallest_by == "/sys/fs/cgroup/memory/memory.stat (hierarchical_memory_limit)");
    CHECK(found.free == 250);
}

TEST_CASE("memory limits: folders of other names, and no list of mounts") {
    InventedMachine elsewhere;
    elsewhere.mount_2("/", "/run/the\\040groups");
    elsewhere.is_in("0::/a:b c/d\n");   // a group's name may hold colons and blanks
    elsewhere.write("/run/the groups/a:b c/memory.max", mebibytes(123));
    CHECK(found_in(elsewhere).smallest == 123);

    InventedMachine without;   // as distributions mount them
    without.is_in("0::/job\n");
    without.write("/sys/fs/cgroup/job/memory.max", mebibytes(321));
    CHECK(found_in(without).smallest == 321);
    without.is_in("5:memory:/job\n0::/\n");
    without.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", mebibytes(111));
    CHECK(found_in(without).smallest == 111);
}

TEST_CASE("memory limits: files that cannot be understood limit nothing") {
    InventedMachine machine;
    machine.mount_2("/", "/sys/fs/cgroup");
    machine.is_in("rubbish\n0:\n\n0::/job\n");
    for (const std::string content : {"", "max", "-1", "12x", "99999999999999999999999", "\n\n"}) {
        CAPTURE(content);
        machine.write("/sys/fs/cgroup/job/memory.max", content);
        CHECK(found_in(machine).smallest == 8192);
    }
    machine.write("/sys/fs/cgroup/job/memory.max", "0\n");   // this one is a limit
    CHECK(found_in(machine).free == 0);
    machine.write("/proc/meminfo", "nothing known\n");
    CHECK(found_in(machine).smallest_by == "/sys/fs/cgroup/job/memory.max");
}

TEST_CASE("memory limits: memory.high is kept apart from what kills") {
    InventedMachine machine;
    machine.mount_2("/", "/sys/fs/cgroup");
    machine.is_in("0::/job/task\n");
    machine.write("/sys/fs/cgroup/job/memory.high", mebibytes(100));
    machine.write("/sys/fs/cgroup/job/memory.current", mebibytes(30));
    machine.write("/sys/fs/cgroup/job/task/memory.high", "max\n");
    const MemoryLimits limits = memory_limits(machine.root(), kNoOwn);
    CHECK(limits.smallest().bytes == 8192 * mebibyte);
    REQUIRE(limits.slowing.size() == 1);
    CHECK(limits.slowing[0].free == 70 * mebibyte);
    CHECK(limits.slowing[0].words() == "100 MiB by " + machine.root() + "/sys/fs/cgroup/job/memory.high");
}

TEST_CASE("memory limits: of the process, and of a machine that does not overcommit") {
    InventedMachine machine;
    const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)), pages = mebibyte / page;
    machine.write("/proc/self/statm", std::to_string(90 * pages) + " 9 8 7 0 " + std::to_string(20 * pages) + " 0\n");
    Found found = found_in(machine, {.addresses = 1000 * mebibyte, .data = UINT64_MAX});
    CHECK(found.free == 910);
    CHECK(found.smallest_by == "ulimit -v, this process's address space");
    found = found_in(machine, {.addresses = 1000 * mebibyte, .data = 100 * mebibyte});
    CHECK(found.free == 80);
    CHECK(found.smallest_by == "ulimit -d, this process's data");

    machine.write(
        "/proc/meminfo",
        "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nCommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB\n");
    machine.write("/proc/sys/vm/overcommit_memory", "0\n");
    CHECK(found_in(machine).free == 6144);
    machine.write("/proc/sys/vm/overcommit_memory", "2\n");
    CHECK(found_in(machine).free == 1024);
}
