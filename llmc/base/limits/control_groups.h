// The control groups (cgroups) that this process is in, as /proc tells them, for both versions of the kernel's
// interface.
//
// A limit of any group above a process holds for it: Slurm and systemd set theirs on a parent of the group that the
// process is in. Groups above a container's own cannot be seen from inside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Returns the folders of this process's groups, each followed by its parents up to the topmost that is visible. They
// need not have the files of the controller, nor exist. `controller` is "memory" or "cpu". `root` stands before every
// path that is read: a test gives a tree of its own.
std::vector<std::string> control_groups(const std::string& controller, const std::string& root = "");

// Returns the number that a file begins with; empty if there is no such file, or if it begins with another word ("max")
// or a negative number, by which the kernel says that there is no limit.
std::optional<std::uint64_t> number_in(const std::string& path);

// Returns the number behind `name` in a file of rows of names and numbers, as memory.stat and /proc/meminfo; empty if
// there is none.
std::optional<std::uint64_t> number_of(const std::string& path, const std::string& name);
