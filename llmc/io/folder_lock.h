// One run at a time in an output folder: a second one would remove what the first is writing and mix the records of
// both.
//
// The lock is the kernel's (flock) on FOLDER/lock, so it ends with the process, however that ends; the file stays and
// says in text which process held it last. File systems that know no such locks are used without.
#pragma once

#include <string>

class FolderLock {
public:
    // Makes the folder. Error(usage) naming the process that has the lock; Error(io) where the folder cannot be made.
    explicit FolderLock(const std::string& folder);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_ = -1;
};
