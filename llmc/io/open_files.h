// Keeps the most recently used files open, for files that are read again and again. So a process can read more shards
// than it may have open files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llmc/io/file.h"

class OpenFiles {
public:
    // `files` must outlive this object. At most `most` files stay open here (besides those that a caller holds).
    explicit OpenFiles(const FileSystem& files, std::size_t most = 48) : files_(files), most_(most) {}

    // Returns the file, and opens it if it is not open. Throws Error(io). Several threads may call it.
    std::shared_ptr<const File> open(const std::string& path) {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = open_.size(); i-- > 0;) {
            if (open_[i]->path() != path) continue;
            std::rotate(open_.begin() + static_cast<std::ptrdiff_t>(i),
                        open_.begin() + static_cast<std::ptrdiff_t>(i) + 1, open_.end());
            return open_.back();
        }
        if (open_.size() == most_) open_.erase(open_.begin());
        open_.push_back(files_.open(path));
        return open_.back();
    }

private:
    const FileSystem& files_;
    const std::size_t most_;
    std::mutex mutex_;
    std::vector<std::shared_ptr<const File>> open_;   // most recently used last
};
