// A folder for one test, gone when the test is over. In memory where the machine offers that, so that syncs cost
// nothing.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "llmc/base/error.h"

class TemporaryFolder {
public:
    TemporaryFolder() {
        const bool in_memory = getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK) == 0;
        path_ = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/train_gpt_XXXXXX";
        if (mkdtemp(path_.data()) == nullptr) throw Error(ErrorKind::io, text(path_, ": mkdtemp failed"));
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};
