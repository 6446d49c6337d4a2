#include "llmc/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/io/file.h"

namespace {

std::string host_name() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

// Tries to take the lock. Returns false only if another process holds it; true if the file system has no such locks.
bool lock(int descriptor, int kind) {
    int status;
    do {
        status = ::flock(descriptor, kind | LOCK_NB);
    } while (status != 0 && errno == EINTR);
    return status == 0 || errno != EWOULDBLOCK;
}

}   // namespace

FolderLock::FolderLock(const std::string& folder, As rank) {
    if (rank == As::first) real_files().make_folders(folder);
    const std::string path = folder + "/lock";
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw Error(ErrorKind::io, text(path, ": create failed: ", std::strerror(errno)));
    // takes the lock alone for a moment, then shares it with the other ranks
    if ((rank == As::first && !lock(descriptor_, LOCK_EX)) || !lock(descriptor_, LOCK_SH)) {
        char holder[320] = "";
        const ssize_t length = ::pread(descriptor_, holder, sizeof holder - 1, 0);
        ::close(descriptor_);
        throw Error(ErrorKind::usage,
                    text("--output-dir ", folder, ": another run is writing there",
                         length > 0 ? text(" (", holder, ")") : std::string()),
                    "Wait until it and all its ranks have ended, stop them, or give another folder.");
    }
    held_.emplace(folder);
    if (rank == As::other) return;
    const std::string own = text("process ", ::getpid(), " on ", host_name());
    if (::ftruncate(descriptor_, 0) == 0)
        (void)!::pwrite(descriptor_, own.data(), own.size(), 0);   // for people to read
}

FolderLock::~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
}
