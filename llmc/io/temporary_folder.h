// A folder for one test, gone when the test is over.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "llmc/base/error.h"

class TemporaryFolder {
public:
    TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "train_gpt_XXXXXX").string()) {
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
