// Limits of cores in invented trees of the kernel's files.
#include "llmc/base/limits/usable_cores.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>

#include "llmc/base/limits/invented_machine_testing.h"

TEST_CASE("usable cores: the mask, and the least quota of a group or its parents, a part of a core as one") {
    InventedMachine machine;
    machine.mount_2("/", "/sys/fs/cgroup");
    machine.is_in("0::/job/task\n");
    auto count = [&] { return usable_cores(machine.root(), 8).count(); };
    CHECK(count() == 8);
    CHECK(usable_cores(machine.root(), 8).words() == "8 cores that it may run on");
    machine.write("/sys/fs/cgroup/job/task/cpu.max", "max 100000\n");
    CHECK(count() == 8);
    machine.write("/sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    CHECK(count() == 3);
    CHECK(usable_cores(machine.root(), 8).words() ==
          "2.5 cores' time by " + machine.root() + "/sys/fs/cgroup/job/cpu.max");
    CHECK(usable_cores(machine.root(), 2).count() == 2);
    CHECK(usable_cores(machine.root(), 2).words() == "2 cores that it may run on");
    machine.write("/sys/fs/cgroup/job/task/cpu.max", "20000 100000\n");
    CHECK(count() == 1);
    machine.write("/sys/fs/cgroup/job/task/cpu.max", "400000 100000\n");
    CHECK(count() == 3);
    for (const std::string content : {"", "0 0", "5", "-1 100000", "x y"}) {
        CAPTURE(content);
        machine.write("/sys/fs/cgroup/job/cpu.max", content);
        CHECK(count() == 4);
    }
}

TEST_CASE("usable cores: quotas of version 1") {
    InventedMachine machine;
    machine.mount_1("cpu,cpuacct", "/", "/sys/fs/cgroup/cpu,cpuacct");
    machine.is_in("4:memory:/other\n2:cpu,cpuacct:/job/task\n");
    const std::string group = "/sys/fs/cgroup/cpu,cpuacct/job";
    machine.write(group + "/task/cpu.cfs_quota_us", "-1\n");
    machine.write(group + "/task/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(machine.root(), 8).count() == 8);
    machine.write(group + "/cpu.cfs_quota_us", "200000\n");
    CHECK(usable_cores(machine.root(), 8).count() == 8);   // no period
    machine.write(group + "/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(machine.root(), 8).count() == 2);
}

TEST_CASE("usable cores: the scheduler's mask of a thread") {
    const int before = allowed_cores();
    CHECK(before >= 1);
    int with_one = 0;
    std::thread([&] {   // which is bound, and not the test's own thread
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0) with_one = allowed_cores();
    })
        .join();
    CHECK(with_one == 1);
    CHECK(allowed_cores() == before);
}

TEST_CASE("usable cores: each core is divided among the processes that may run on it") {
    const std::string all = "\xff", low = "\x0f", high = "\xf0", none;
    CHECK(share_of_cores(all, {all}) == 8);
    CHECK(share_of_cores(all, {all, all}) == 4);
    CHECK(share_of_cores(all, {all, all, all}) == 2);
    CHECK(share_of_cores("\x07", {"\x07", "\x07", "\x07"}) == 1);
    CHECK(share_of_cores(low, {low, high}) == 4);   // bound to cores of their own
    CHECK(share_of_cores(low, {low, low, high}) == 2);
    CHECK(share_of_cores(all, {all, low}) == 6);
    CHECK(share_of_cores("\x01", {all, "\x01", all}) == 1);
    CHECK(share_of_cores(std::string("\0\xff", 2), {std::string("\0\xff", 2), all}) == 8);
    CHECK(share_of_cores(none, {none, none}) == std::max(1, allowed_cores() / 2));
    CHECK(share_of_cores(core_mask(), {core_mask()}) == allowed_cores());
}
