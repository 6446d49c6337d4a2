#include "llmc/io/lfs_pointer.h"

#include <algorithm>
#include <span>

#include "llmc/base/error.h"

void refuse_lfs_pointer(const std::string& path, std::string_view beginning) {
    if (!beginning.starts_with("version https://git-lfs.github.com/spec/")) return;
    throw Error(ErrorKind::bad_data, text(path, ": this is a Git LFS pointer, the file itself has not been fetched"),
                "Run `git lfs pull` in its repository, or download the file.");
}

void refuse_lfs_pointer(const File& file) {
    std::string beginning(std::min<std::uint64_t>(file.size(), 64), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(beginning)));
    refuse_lfs_pointer(file.path(), beginning);
}
