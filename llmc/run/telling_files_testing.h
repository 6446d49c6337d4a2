// For tests: files that tell whenever a line of metrics.jsonl is written, which happens at known places of a run.
#pragma once

#include <functional>
#include <utility>

#include "llmc/io/file.h"
#include "llmc/io/forwarding_files_testing.h"

class TellingFiles : public ForwardingFiles {
public:
    TellingFiles(FileSystem& inner, std::function<void()> tell) : ForwardingFiles(inner), tell_(std::move(tell)) {}
    std::unique_ptr<File> append(const std::string& path) override {
        auto file = inner_.append(path);
        if (!path.ends_with("metrics.jsonl")) return file;
        return std::make_unique<TellingFile>(std::move(file), tell_);
    }

private:
    struct TellingFile : File {
        TellingFile(std::unique_ptr<File> its_inner, std::function<void()> its_tell)
            : inner(std::move(its_inner)), tell(std::move(its_tell)) {}
        const std::string& path() const override { return inner->path(); }
        std::uint64_t size() const override { return inner->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { inner->read_at(offset, into); }
        void write(std::span<const std::byte> bytes) override {
            inner->write(bytes);
            if (!bytes.empty()) tell();   // else it only looks whether the file is there
        }
        void sync() override { inner->sync(); }
        std::unique_ptr<File> inner;
        std::function<void()> tell;
    };
    std::function<void()> tell_;
};
