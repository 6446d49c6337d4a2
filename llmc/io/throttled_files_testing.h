// For tests: a disk that takes a certain time for every byte of a file, of several files at once as well; it needs no
// processor meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "llmc/io/file.h"
#include "llmc/io/forwarding_files_testing.h"

class ThrottledFiles : public ForwardingFiles {
public:
    // Slows files that are created, not files that are appended to. `open`: counts files that are being written.
    ThrottledFiles(FileSystem& inner, double bytes_per_s, std::atomic<int>* open = nullptr)
        : ForwardingFiles(inner), bytes_per_s_(bytes_per_s), open_(open) {}
    std::unique_ptr<File> create(const std::string& path) override {
        return std::make_unique<ThrottledFile>(inner_.create(path), bytes_per_s_, open_);
    }

private:
    class ThrottledFile : public File {
    public:
        ThrottledFile(std::unique_ptr<File> inner, double bytes_per_s, std::atomic<int>* open)
            : inner_(std::move(inner)), bytes_per_s_(bytes_per_s), open_(open) {
            if (open_ != nullptr) ++*open_;
        }
        ~ThrottledFile() override {
            if (open_ != nullptr) --*open_;
        }
        const std::string& path() const override { return inner_->path(); }
        std::uint64_t size() const override { return inner_->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { inner_->read_at(offset, into); }
        void write(std::span<const std::byte> bytes) override {
            inner_->write(bytes);
            std::this_thread::sleep_for(
                std::chrono::duration<double>(static_cast<double>(bytes.size()) / bytes_per_s_));
        }
        void sync() override { inner_->sync(); }

    private:
        std::unique_ptr<File> inner_;
        double bytes_per_s_;
        std::atomic<int>* open_;
    };

    double bytes_per_s_;
    std::atomic<int>* open_;
};
