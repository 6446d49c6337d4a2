// Locks what a program writes: a second one would remove files that the first is writing, and mix what both write.
//
// A lock is the kernel's (flock) on a file, so it ends with the process, however that ends; the file names the process
// that took it last. File systems without such locks are used without one.
#pragma once

#include <optional>
#include <string>

#include "llmc/io/file.h"

// Locks the output folder of a run, by FOLDER/lock, which stays. All ranks of a run hold it, because a rank that
// outlives the first one for a moment may still be writing. A run that has the lock holds the folder too (HeldFolder):
// if it is moved, all that is written goes where it was moved to.
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

// Locks what one process writes, by the file `path`, which it removes at its end: nothing but the results is left. The
// folder of `path` must be there. `output`: the option and its value, for messages. Throws Error(usage) naming the
// process that holds the lock, Error(io) if the file cannot be made.
class OutputLock {
public:
    OutputLock(const std::string& path, const std::string& output);
    ~OutputLock();
    OutputLock(const OutputLock&) = delete;
    OutputLock& operator=(const OutputLock&) = delete;

private:
    std::string path_;
    int descriptor_ = -1;
};
