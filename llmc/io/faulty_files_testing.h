// For tests: a file system that fails, tears or stops at a chosen operation.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/forwarding_files_testing.h"

// The fault of FaultyFiles at the chosen operation.
enum class FileFault {
    fail,   // the call fails as on a full disk: Error(io), nothing was done
    tear,   // a write puts down only its first half, then fails; any other call fails
    stop,   // as if the power went off before this call: Error(io), and every later call fails too
};

// Operation number `at` (counted from 0) meets `fault`. Counted are the operations that change the disk: create,
// append, write, sync, rename, link, remove, make and sync folders; with `count_reads` also open and read.
class FaultyFiles : public ForwardingFiles {
public:
    explicit FaultyFiles(FileSystem& inner, std::uint64_t at = UINT64_MAX, FileFault fault = FileFault::fail,
                         bool count_reads = false)
        : ForwardingFiles(inner), plan_(std::make_shared<Plan>(at, fault, count_reads)) {}

    std::uint64_t operations() const { return plan_->next; }   // counted so far

    std::unique_ptr<File> open(const std::string& path) const override {
        if (plan_->count_reads) plan_->meet(path, "open");
        return std::make_unique<FaultyFile>(inner_.open(path), plan_);
    }
    std::unique_ptr<File> create(const std::string& path) override {
        plan_->meet(path, "create");
        return std::make_unique<FaultyFile>(inner_.create(path), plan_);
    }
    std::unique_ptr<File> append(const std::string& path) override {
        plan_->meet(path, "create");
        return std::make_unique<FaultyFile>(inner_.append(path), plan_);
    }
    void rename(const std::string& from, const std::string& to) override {
        plan_->meet(text(from, " -> ", to), "rename");
        inner_.rename(from, to);
    }
    void link(const std::string& from, const std::string& to) override {
        plan_->meet(text(from, " -> ", to), "link");
        inner_.link(from, to);
    }
    void remove_all(const std::string& path) override {
        plan_->meet(path, "remove");
        inner_.remove_all(path);
    }
    void make_folders(const std::string& path) override {
        plan_->meet(path, "mkdir");
        inner_.make_folders(path);
    }
    void sync_folder(const std::string& path) override {
        plan_->meet(path, "fsync");
        inner_.sync_folder(path);
    }

private:
    struct Plan {
        Plan(std::uint64_t its_at, FileFault its_fault, bool its_reads)
            : at(its_at), fault(its_fault), count_reads(its_reads) {}
        std::uint64_t at;
        FileFault fault;
        bool count_reads;
        std::uint64_t next = 0;
        bool stopped = false;
        std::mutex mutex;   // a checkpoint is written beside the run

        // Counts one operation. True when it is the one to tear; throws when it is to fail.
        bool meet(const std::string& path, const char* call, bool is_write = false) {
            std::lock_guard lock(mutex);
            bool hit = next++ == at;
            if (hit && fault == FileFault::stop) stopped = true;
            if (hit && fault == FileFault::tear && is_write) return true;
            if (hit || stopped) fail_on_file(path, call, stopped ? EIO : ENOSPC);
            return false;
        }
    };

    class FaultyFile : public File {
    public:
        FaultyFile(std::unique_ptr<File> inner, std::shared_ptr<Plan> plan)
            : inner_(std::move(inner)), plan_(std::move(plan)) {}

        const std::string& path() const override { return inner_->path(); }
        std::uint64_t size() const override { return inner_->size(); }

        void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
            if (plan_->count_reads) plan_->meet(path(), "read");
            inner_->read_at(offset, into);
        }

        void write(std::span<const std::byte> bytes) override {
            if (plan_->meet(path(), "write", true)) {
                inner_->write(bytes.first(bytes.size() / 2));
                fail_on_file(path(), "write", ENOSPC);
            }
            inner_->write(bytes);
        }

        void sync() override {
            plan_->meet(path(), "fsync");
            inner_->sync();
        }

    private:
        std::unique_ptr<File> inner_;
        std::shared_ptr<Plan> plan_;
    };

    std::shared_ptr<Plan> plan_;   // shared with the files it opened
};
