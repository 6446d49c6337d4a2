#include "llmc/base/limits/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace {

// A mounted hierarchy of groups.
struct Hierarchy {
    std::string name;     // the controllers of version 1, separated by commas; empty for version 2
    std::string top;      // the group that is visible at `folder`, as /proc/self/cgroup names groups
    std::string folder;   // mount point
};

std::optional<std::uint64_t> number_from(const std::string& word) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

bool contains(const std::string& content, const std::string& part) { return content.find(part) != std::string::npos; }
// Tells whether a list with commas has a name.
bool lists(const std::string& names, const std::string& name) { return contains("," + names + ",", "," + name + ","); }

// /proc writes a blank in a path as \040.
std::string without_escapes(const std::string& path) {
    std::string result;
    for (std::size_t i = 0; i < path.size(); i++) {
        int byte = 0;
        if (path[i] == '\\' && i + 3 < path.size() &&
            std::from_chars(&path[i + 1], &path[i + 4], byte, 8).ptr == &path[i + 4]) {
            result += static_cast<char>(byte);
            i += 3;
        } else {
            result += path[i];
        }
    }
    return result;
}

// Returns the hierarchies that may limit `controller`: its own of version 1, and that of version 2. Where /proc names
// none (a container with a /proc of its own making) they are where every distribution mounts them.
std::vector<Hierarchy> hierarchies(const std::string& controller, const std::string& root) {
    std::vector<Hierarchy> result;
    std::ifstream mounts(root + "/proc/self/mountinfo");
    for (std::string row; std::getline(mounts, row);) {
        std::istringstream words(row);
        std::string skipped, top, folder, type, options;
        words >> skipped >> skipped >> skipped >> top >> folder;
        while (words >> skipped && skipped != "-") {
        }
        words >> type >> skipped >> options;
        const bool wanted = type == "cgroup2" || (type == "cgroup" && lists(options, controller));
        if (words && wanted) {
            result.push_back({type == "cgroup2" ? "" : controller, without_escapes(top), without_escapes(folder)});
        }
    }
    if (result.empty()) result = {{"", "/", "/sys/fs/cgroup"}, {controller, "/", "/sys/fs/cgroup/" + controller}};
    return result;
}

// Returns this process's group in a hierarchy, as /proc/self/cgroup names it; "/" if it does not.
std::string group_in(const Hierarchy& hierarchy, const std::string& root) {
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string row; std::getline(groups, row);) {   // number:controllers:group
        const std::size_t names = row.find(':') + 1, group = row.find(':', names) + 1;
        if (names == 0 || group == 0) continue;
        const std::string controllers = row.substr(names, group - 1 - names);
        if (hierarchy.name.empty() ? controllers.empty() : lists(controllers, hierarchy.name)) return row.substr(group);
    }
    return "/";
}

// Returns `group` relative to the group that is visible at the top of a hierarchy, "" or beginning with a slash. A
// group that is not below it (/../.., seen from a namespace of groups, or the host's name for a container) cannot be
// found: then the top stands for it, because what is mounted in a container is the container's.
std::string below(const std::string& top, const std::string& group) {
    const std::string above = top == "/" ? "" : top;
    if (!(group + "/").starts_with(above + "/")) return "";
    const std::string rest = group.substr(above.size());
    return rest == "/" || contains(rest + "/", "/../") ? "" : rest;
}

}   // namespace

std::vector<std::string> control_groups(const std::string& controller, const std::string& root) {
    std::vector<std::string> result;
    for (const Hierarchy& hierarchy : hierarchies(controller, root)) {
        std::string group = below(hierarchy.top, group_in(hierarchy, root));
        for (; !group.empty(); group.resize(group.rfind('/'))) result.push_back(root + hierarchy.folder + group);
        result.push_back(root + hierarchy.folder);
    }
    return result;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
    std::ifstream file(path);
    std::string word;
    return file >> word ? number_from(word) : std::nullopt;
}

std::optional<std::uint64_t> number_of(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    for (std::string row; std::getline(file, row);) {
        std::istringstream words(row);
        std::string first, second;
        if (words >> first >> second && first == name) return number_from(second);
    }
    return {};
}
