// A file system in front of another one, for tests that watch or disturb what goes through.
#pragma once

#include "llmc/io/file.h"

// Passes every call through to another file system; what derives from it changes some of them.
class ForwardingFiles : public FileSystem {
public:
    explicit ForwardingFiles(FileSystem& inner) : inner_(inner) {}
    std::unique_ptr<File> open(const std::string& path) const override { return inner_.open(path); }
    std::unique_ptr<File> create(const std::string& path) override { return inner_.create(path); }
    std::unique_ptr<File> append(const std::string& path) override { return inner_.append(path); }
    void rename(const std::string& from, const std::string& to) override { inner_.rename(from, to); }
    void link(const std::string& from, const std::string& to) override { inner_.link(from, to); }
    void remove_all(const std::string& path) override { inner_.remove_all(path); }
    void make_folders(const std::string& path) override { inner_.make_folders(path); }
    void sync_folder(const std::string& path) override { inner_.sync_folder(path); }
    bool exists(const std::string& path) const override { return inner_.exists(path); }
    std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }

protected:
    FileSystem& inner_;
};
