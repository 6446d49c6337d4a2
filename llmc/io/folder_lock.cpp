#include "llmc/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

int open_lock(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) throw Error(ErrorKind::io, text(path, ": create failed: ", std::strerror(errno)));
    return descriptor;
}

// Closes the file. Throws Error(usage) that names the process which holds the lock.
[[noreturn]] void refuse_second(int descriptor, const std::string& output, const char* hint) {
    char holder[320] = "";
    const ssize_t length = ::pread(descriptor, holder, sizeof holder - 1, 0);
    ::close(descriptor);
    throw Error(ErrorKind::usage,
                text(output, ": another run is writing there", length > 0 ? text(" (", holder, ")") : std::string()),
                hint);
}

// Writes this process into the file, for people to read.
void write_holder(int descriptor) {
    const std::string own = text("process ", ::getpid(), " on ", host_name());
    if (::ftruncate(descriptor, 0) == 0) (void)!::pwrite(descriptor, own.data(), own.size(), 0);
}

bool is_at(int descriptor, const std::string& path) {
    struct stat own = {}, there = {};
    return ::fstat(descriptor, &own) == 0 && ::stat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

}   // namespace

FolderLock::FolderLock(const std::string& folder, As rank) {
    if (rank == As::first) real_files().make_folders(folder);
    descriptor_ = open_lock(folder + "/lock");
    // takes the lock alone for a moment, then shares it with the other ranks
    if ((rank == As::first && !lock(descriptor_, LOCK_EX)) || !lock(descriptor_, LOCK_SH)) {
        refuse_second(descriptor_, "--output-dir " + folder,
                      "Wait until it and all its ranks have ended, stop them, or give another folder.");
    }
    held_.emplace(folder);
    if (rank == As::first) write_holder(descriptor_);
}

FolderLock::~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

OutputLock::OutputLock(const std::string& path, const std::string& output) : path_(path) {
    for (;;) {
        descriptor_ = open_lock(path);
        if (!lock(descriptor_, LOCK_EX)) {
            refuse_second(descriptor_, output, "Wait until it has ended, stop it, or write to another place.");
        }
        if (is_at(descriptor_, path)) break;
        ::close(descriptor_);   // its holder has removed it since it was opened
    }
    write_holder(descriptor_);
}

OutputLock::~OutputLock() {
    ::unlink(path_.c_str());   // while it is locked: who has opened it before sees that it is gone
    ::close(descriptor_);
}
