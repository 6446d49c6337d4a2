// Files and folders, behind an interface that tests can make fail.
//
// Everything that touches a disk goes through FileSystem, for two reasons: every failure becomes an Error(io) that
// names the file, the call and the cause; and a test can put FaultyFiles (faulty_files_testing.h) in front, which
// fails, tears a write or stops at any chosen operation.
//
// Reading is by offset (pread), never through a mapping: a file that shrinks while it is read gives an Error with its
// name, not a SIGBUS. Writing is sequential. Nothing is buffered here: callers pass large pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// An open file, closed when destroyed. Two threads must not use it at once, except for read_at(), and for sync() beside
// write().
class File {
public:
    virtual ~File() = default;
    virtual const std::string& path() const = 0;
    virtual std::uint64_t size() const = 0;   // bytes now

    // Fills `into` from byte `offset` on. Throws Error(bad_data) with both lengths if the file ends before that.
    virtual void read_at(std::uint64_t offset, std::span<std::byte> into) const = 0;

    virtual void write(std::span<const std::byte> bytes) = 0;   // appends all of them
    virtual void sync() = 0;                                    // returns once they are on the disk
};

class FileSystem {
public:
    virtual ~FileSystem() = default;
    virtual std::unique_ptr<File> open(
        const std::string& path) const = 0;                              // to read; a regular file, or a link to one
    virtual std::unique_ptr<File> create(const std::string& path) = 0;   // to write, empty
    virtual std::unique_ptr<File> append(const std::string& path) = 0;   // to write at the end; creates a missing file
    virtual void rename(const std::string& from, const std::string& to) = 0;   // atomic; replaces a file at `to`
    virtual void link(const std::string& from, const std::string& to) = 0;     // a second name of the same file
    virtual void remove_all(const std::string& path) = 0;     // a file or a whole folder; may be missing
    virtual void make_folders(const std::string& path) = 0;   // with its parents; may exist
    // Makes renames inside the folder durable. A file system that cannot do that (EINVAL, ENOTSUP, ENOSYS) is no error;
    // unsynced_folder() tells.
    virtual void sync_folder(const std::string& path) = 0;
    // Returns the first folder that could not be synced, and why ("run: fsync: Operation not supported"); empty: none.
    virtual std::string unsynced_folder() const { return {}; }
    virtual bool exists(const std::string& path) const = 0;
    virtual std::vector<std::string> list(const std::string& folder) const = 0;   // names inside, sorted
};

// Throws Error(io) for a system call that failed on a file; `code` is its errno.
[[noreturn]] void fail_on_file(const std::string& path, const char* call, int code);

// Returns the machine's own file system.
FileSystem& real_files();

// Keeps a folder open while it exists: real_files() finds paths below `folder` in the folder that is there now, though
// it is moved in between, and makes nothing anew where it was. Throws Error(io) if the folder cannot be opened. Does
// nothing where there is no /proc.
class HeldFolder {
public:
    explicit HeldFolder(const std::string& folder);
    ~HeldFolder();
    HeldFolder(const HeldFolder&) = delete;
    HeldFolder& operator=(const HeldFolder&) = delete;

private:
    int descriptor_ = -1;
};

// Views a text as bytes, for File::write.
inline std::span<const std::byte> bytes_of(std::string_view content) { return std::as_bytes(std::span(content)); }

// Limits on what is read into memory: of files that people and programs write once, and of those that grow with a run.
inline constexpr std::uint64_t largest_small_file = std::uint64_t{1} << 26;
inline constexpr std::uint64_t largest_whole_file = std::uint64_t{1} << 32;

// Read or write a whole regular file. The two that read differ in their limit alone. write_whole leaves either the old
// content or all of the new one at `path`, whatever happens in between: it writes a temporary file beside it, syncs,
// renames, and syncs the folder. Git LFS pointers are refused.
std::string read_whole(const FileSystem& files, const std::string& path);   // up to largest_small_file bytes
std::string read_large(const FileSystem& files, const std::string& path);   // up to largest_whole_file bytes
void write_whole(FileSystem& files, const std::string& path, const std::string& content);

// Returns whether the folder lists this name, as it does a link that leads nowhere.
bool has_entry(const FileSystem& files, const std::string& folder, const std::string& name);

// Returns the files that match a shell pattern ("data/train_*.bin"), sorted by name; none if nothing does. A file with
// exactly this name is the only result, and folders at the pattern's begin that exist are taken by just that name
// ("run[1]/*.bin").
std::vector<std::string> glob_files(const std::string& pattern);

// Like glob_files(), for the value of an option: throws Error(io) if nothing matches, or a folder or a device does.
std::vector<std::string> matching_files(const std::string& flag, const std::string& pattern);

// Throws Error(io) for a folder, device or socket, and, if `pipes_too`, for a named pipe: reading it may never end.
// Pipes that a shell or a launcher passes (/dev/stdin, /dev/fd/N) are allowed.
void refuse_device(const std::string& path, const std::string& flag = "", bool pipes_too = false);

// Reads a small text that may also come through a pipe. Throws Error(io) if it cannot be read, Error(bad_data) beyond
// largest_small_file bytes.
std::string read_small_or_pipe(const std::string& path, const std::string& flag);

// Checks that a file can be written later, so that hours of work are not lost for a wrong path. Throws Error(usage) if
// something other than a file is there, Error(io) if nothing can be written.
void try_output_file(FileSystem& files, const std::string& flag, const std::string& path);
