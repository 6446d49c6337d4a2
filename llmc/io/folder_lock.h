// Locks an output folder for one run: a second run would remove files that the first is writing, and mix the records of
// both.
//
// The lock is the kernel's (flock) on FOLDER/lock, so it ends with the process, however that ends; the file stays and
// names the process that took it last. All ranks of a run hold it, because a rank that outlives the first one for a
// moment may still be writing. File systems without such locks are used without one. A run that has the lock holds the
// folder too (HeldFolder): if it is moved, all that is written goes where it was moved to.
#pragma once

#include <optional>
#include <string>

#include "llmc/io/file.h"

class FolderLock {
public:
    enum class As { first, other };   // role of this rank in the run

    // Takes the lock: the first rank makes the folder and locks it, then the others join. Throws Error(usage) naming
    // the process that holds the lock, Error(io) if the folder cannot be made.
    explicit FolderLock(const std::string& folder, As rank = As::first);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_ = -1;
    std::optional<HeldFolder> held_;
};
