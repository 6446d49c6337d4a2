// One run at a time in an output folder: a second one would remove what the first is writing and mix the records of
// both.
//
// The lock is the kernel's (flock) on FOLDER/lock, so it ends with the process, however that ends; the file stays and
// says in text which process took it last. All ranks of a run hold it: those that outlive the first one for a moment
// may still be writing. File systems that know no such locks are used without.
#pragma once

#include <string>

class FolderLock {
public:
    enum class As { first, other };   // which rank of the run

    // The first rank makes the folder and takes it; then the others join. Error(usage) naming the process that has the
    // lock; Error(io) where the folder cannot be made.
    explicit FolderLock(const std::string& folder, As rank = As::first);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_ = -1;
};
