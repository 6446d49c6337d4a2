// For tests: a disk in memory that knows what would be left of it if the power went off, and several writers that use
// it in an order drawn from a seed, one operation at a time.
//
// What is not synced may be on the disk or not: of a file its content as it was synced, all of it, or a beginning; of a
// folder each change to its names by itself. A folder that is removed loses its files one by one.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/io/file.h"

// The process of a writer is gone: thrown by every operation from then on.
struct Killed : std::exception {
    const char* what() const noexcept override { return "killed"; }
};

class SimulatedDisk : public FileSystem {
public:
    // Called before every operation that changes the disk, with what it is. Returns the share of its bytes that a write
    // puts down before it fails; 1: it does not fail. May throw: then nothing is done.
    using Before = std::function<double(const char* call, const std::string& path)>;
    Before before;

    SimulatedDisk() : root_(std::make_shared<Node>(true)) {}

    // Another disk with the same content, all of it lasting.
    std::unique_ptr<SimulatedDisk> copy() const {
        auto result = std::make_unique<SimulatedDisk>();
        result->root_ = settled(
            *root_, [](const Node& file) { return file.content; }, [] { return true; });
        return result;
    }

    // Returns the disk's content after a power loss.
    std::unique_ptr<SimulatedDisk> after_power_loss(std::uint64_t seed) const {
        std::uint64_t counter = 0;
        auto draw = [&](std::uint64_t n) { return mix64(seed + counter++) % n; };
        const bool drops_all = draw(2) == 0;
        auto content = [&](const Node& file) {
            const std::uint64_t choice = drops_all || file.synced == file.content ? 0 : draw(3);
            return choice == 0 ? file.synced : file.content.substr(0, choice == 1 ? std::string::npos : draw(100));
        };
        auto result = std::make_unique<SimulatedDisk>();
        result->root_ = settled(*root_, content, [&] { return !drops_all && draw(2) == 0; });
        return result;
    }

    // ---- FileSystem

    std::unique_ptr<File> open(const std::string& path) const override {
        std::shared_ptr<Node> node = find(path);
        if (!node || node->is_folder) fail(path, "open");
        return std::make_unique<SimulatedFile>(const_cast<SimulatedDisk&>(*this), path, node);
    }
    std::unique_ptr<File> create(const std::string& path) override {
        meet("create", path);
        const auto [folder, name] = place(path, "create");
        auto& node = folder->names[name];
        if (!node) {
            node = std::make_shared<Node>(false);
            folder->changes.push_back({{name, node}});
        }
        node->content.clear();
        return std::make_unique<SimulatedFile>(*this, path, node);
    }
    std::unique_ptr<File> append(const std::string& path) override {
        if (!find(path)) return create(path);
        return std::make_unique<SimulatedFile>(*this, path, find(path));
    }
    void rename(const std::string& from, const std::string& to) override {
        meet("rename", to);
        const auto [folder, name] = place(from, "rename");
        const auto [target, new_name] = place(to, "rename");
        const std::shared_ptr<Node> node = find(from), old = find(to);
        if (!node || target != folder || (old && old->is_folder && !old->names.empty())) fail(to, "rename");
        folder->names.erase(name);
        folder->names[new_name] = node;
        folder->changes.push_back({{name, nullptr}, {new_name, node}});
    }
    void link(const std::string& from, const std::string& to) override {
        meet("link", to);
        const auto [folder, name] = place(to, "link");
        const std::shared_ptr<Node> node = find(from);
        if (!node || node->is_folder || folder->names.contains(name)) fail(to, "link");
        folder->names[name] = node;
        folder->changes.push_back({{name, node}});
    }
    void remove_all(const std::string& path) override {
        const std::shared_ptr<Node> node = find(path);
        if (!node) return;
        if (node->is_folder) {
            for (const std::string& name : list(path)) remove_all(path + "/" + name);
        }
        meet("remove", path);
        const auto [folder, name] = place(path, "remove");
        folder->names.erase(name);
        folder->changes.push_back({{name, nullptr}});
    }
    void make_folders(const std::string& path) override {
        if (find(path)) return;
        if (const std::size_t slash = path.rfind('/'); slash != std::string::npos) make_folders(path.substr(0, slash));
        meet("mkdir", path);
        const auto [folder, name] = place(path, "mkdir");
        folder->names[name] = std::make_shared<Node>(true);
        folder->changes.push_back({{name, folder->names[name]}});
    }
    void sync_folder(const std::string& path) override {
        meet("sync folder", path);
        const std::shared_ptr<Node> node = find(path);
        if (!node || !node->is_folder) fail(path, "fsync");
        node->synced_names = node->names;
        node->changes.clear();
    }
    bool exists(const std::string& path) const override {
        return find(path.ends_with("/.") ? path.substr(0, path.size() - 2) : path) != nullptr;
    }
    std::vector<std::string> list(const std::string& folder) const override {
        const std::shared_ptr<Node> node = find(folder);
        if (!node || !node->is_folder) fail(folder, "opendir");
        std::vector<std::string> names;
        for (const auto& [name, child] : node->names) names.push_back(name);
        return names;
    }

private:
    struct Node {
        explicit Node(bool folder) : is_folder(folder) {}
        bool is_folder;
        std::string content, synced;
        using Names = std::map<std::string, std::shared_ptr<Node>>;
        Names names, synced_names;
        std::vector<std::vector<Names::value_type>> changes;   // since the last sync, each as a whole; null: removed
    };

    class SimulatedFile : public File {
    public:
        SimulatedFile(SimulatedDisk& disk, std::string path, std::shared_ptr<Node> node)
            : disk_(disk), path_(std::move(path)), node_(std::move(node)) {}
        const std::string& path() const override { return path_; }
        std::uint64_t size() const override { return node_->content.size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
            if (offset + into.size() > size()) throw Error(ErrorKind::bad_data, path_ + ": it ends before");
            std::copy_n(reinterpret_cast<const std::byte*>(node_->content.data()) + offset, into.size(), into.begin());
        }
        void write(std::span<const std::byte> bytes) override {
            const double share = disk_.meet("write", path_);
            const auto count = static_cast<std::size_t>(share * static_cast<double>(bytes.size()));
            node_->content.append(reinterpret_cast<const char*>(bytes.data()), count);
            if (share < 1) fail(path_, "write");
        }
        void sync() override {
            disk_.meet("sync", path_);
            node_->synced = node_->content;
        }

    private:
        SimulatedDisk& disk_;
        std::string path_;
        std::shared_ptr<Node> node_;
    };

    [[noreturn]] static void fail(const std::string& path, const char* call) {
        throw Error(ErrorKind::io, text(path, ": ", call, " failed"));
    }
    double meet(const char* call, const std::string& path) { return before ? before(call, path) : 1; }

    std::shared_ptr<Node> find(const std::string& path) const {
        std::shared_ptr<Node> node = root_;
        for (std::size_t begin = 0; node && begin < path.size();) {
            const std::size_t end = std::min(path.find('/', begin), path.size());
            const auto found = node->names.find(path.substr(begin, end - begin));
            node = found == node->names.end() ? nullptr : found->second;
            begin = end + 1;
        }
        return node;
    }
    std::pair<std::shared_ptr<Node>, std::string> place(const std::string& path, const char* call) const {
        const std::size_t slash = path.rfind('/');
        std::shared_ptr<Node> folder = slash == std::string::npos ? root_ : find(path.substr(0, slash));
        if (!folder || !folder->is_folder) fail(path, call);
        return {folder, path.substr(slash == std::string::npos ? 0 : slash + 1)};
    }

    // A tree of which everything is lasting: files as content() has them, changes of names that lasts() says.
    template <class Content, class Lasts>
    static std::shared_ptr<Node> settled(const Node& from, Content&& content, Lasts&& lasts) {
        auto result = std::make_shared<Node>(from.is_folder);
        if (!from.is_folder) {
            result->content = result->synced = content(from);
            return result;
        }
        Node::Names names = from.synced_names;
        for (const auto& change : from.changes) {
            if (!lasts()) continue;
            for (const auto& [name, node] : change) {
                if (node) {
                    names[name] = node;
                } else {
                    names.erase(name);
                }
            }
        }
        for (const auto& [name, node] : names) result->names[name] = settled(*node, content, lasts);
        result->synced_names = result->names;
        return result;
    }

    std::shared_ptr<Node> root_;
};
