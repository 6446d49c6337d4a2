// A tree of the files by which the kernel tells of limits, as a test invents them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "llmc/io/temporary_folder_testing.h"

class InventedMachine {
public:
    // The machine has 8 GiB of memory, 6 of them free, and no swap.
    InventedMachine() { write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nSwapFree: 0 kB\n"); }

    const std::string& root() const { return folder_.path(); }

    // Writes a file, and the folders above it.
    void write(const std::string& path, const std::string& content) const {
        std::filesystem::create_directories(std::filesystem::path(root() + path).parent_path());
        std::ofstream(root() + path) << content;
    }
    // Mounts version 2 at `folder`, which shows the group `top` and those below it.
    void mount_2(const std::string& top, const std::string& folder) {
        mount(top + " " + folder + " rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate");
    }
    // Mounts the hierarchy of some controllers of version 1.
    void mount_1(const std::string& controllers, const std::string& top, const std::string& folder) {
        mount(top + " " + folder + " rw - cgroup cgroup rw," + controllers);
    }
    void is_in(const std::string& rows) const { write("/proc/self/cgroup", rows); }

private:
    void mount(const std::string& row) {
        mounts_ += "31 23 0:28 " + row + "\n";
        write("/proc/self/mountinfo", "30 23 0:27 / / rw - ext4 /dev/sda rw\n" + mounts_);
    }

    TemporaryFolder folder_;
    std::string mounts_;
};
