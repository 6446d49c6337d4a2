// Files that are read again and again, of which the last used stay open: more shards than a process may have open files
// can be read so.
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
    // `files` must outlive it; at most `most` stay open (beside those that a caller holds).
    explicit OpenFiles(const FileSystem& files, std::size_t most = 48) : files_(files), most_(most) {}

    // The file, opened anew where it is not open. Error(io). Several threads may call it.
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
    std::vector<std::shared_ptr<const File>> open_;   // the last used one last
};
