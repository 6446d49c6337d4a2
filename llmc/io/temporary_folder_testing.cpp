#include "llmc/io/temporary_folder_testing.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "llmc/base/error.h"

TemporaryFolder::TemporaryFolder() {
    const bool in_memory = getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK) == 0;
    path_ = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/train_gpt_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) throw Error(ErrorKind::io, text(path_, ": mkdtemp failed"));
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}
