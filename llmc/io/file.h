// Files and folders, behind an interface that can be made to fail on purpose.
//
// Everything that touches a disk goes through FileSystem, for two reasons: every failure becomes an Error(io) that
// names the file, the call and the cause; and a test can put FaultyFiles (faulty_files_test.h) in front, which fails,
// tears or stops at any chosen operation, so that what the program does then is tested and not hoped for.
//
// Reading is by offset (pread), never through a mapping: a file that shrinks under us is then an Error with its name,
// not a SIGBUS. Writing is sequential. Nothing here is buffered: callers hand over large pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// An open file, closed when destroyed. Not for use by two threads at once, except for read_at, and sync beside write.
class File {
public:
    virtual ~File() = default;
    virtual const std::string& path() const = 0;
    virtual std::uint64_t size() const = 0;   // bytes now

    // Fills `into` from byte `offset` on. A file that ends before that is Error(bad_data) with both lengths.
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
    virtual std::unique_ptr<File> append(const std::string& path) = 0;   // to write at the end, made if missing
    virtual void rename(const std::string& from, const std::string& to) = 0;   // atomic; replaces a file at `to`
    virtual void link(const std::string& from, const std::string& to) = 0;     // a second name of the same file
    virtual void remove_all(const std::string& path) = 0;     // a file or a whole folder; may be missing
    virtual void make_folders(const std::string& path) = 0;   // with its parents; may exist
    // Makes renames inside it lasting. A file system that cannot do that (EINVAL, ENOTSUP, ENOSYS) is no error:
    // unsynced_folder tells.
    virtual void sync_folder(const std::string& path) = 0;
    // The first folder that could not be synced, and why ("run: fsync: Operation not supported"); empty: all could.
    virtual std::string unsynced_folder() const { return {}; }
    virtual bool exists(const std::string& path) const = 0;
    virtual std::vector<std::string> list(const std::string& folder) const = 0;   // names inside, sorted
};

// Error(io) of a call of the system on a file; `code` is its errno.
[[noreturn]] void fail_on_file(const std::string& path, const char* call, int code);

// The machine's own files.
FileSystem& real_files();

// The bytes of a text, for File::write.
inline std::span<const std::byte> bytes_of(std::string_view content) { return std::as_bytes(std::span(content)); }

inline constexpr std::uint64_t largest_whole_file = std::uint64_t{1} << 32;

// Whole small files at once. write_whole leaves either the old content or all of the new one at `path`, whatever
// happens in between: temporary name beside it, sync, rename, sync of the folder.
std::string read_whole(const FileSystem& files, const std::string& path);   // of up to largest_whole_file bytes
void write_whole(FileSystem& files, const std::string& path, const std::string& content);

// The files matching a shell pattern ("data/train_*.bin"), sorted by name; none where nothing does. A file of just that
// name is meant itself, and so are folders at its begin that are there by just that name ("run[1]/*.bin").
std::vector<std::string> glob_files(const std::string& pattern);

// The same, for what an option names: Error(io) where nothing matches, saying why.
std::vector<std::string> matching_files(const std::string& flag, const std::string& pattern);

// Error(io) of what never ends, or waits for who writes to it: devices and folders, and where asked pipes that lie in a
// folder. What a shell or a launcher hands over (/dev/stdin, /dev/fd/N) is no such pipe.
void refuse_device(const std::string& path, const std::string& flag = "", bool pipes_too = false);

// Tries whether a file can be written later, so that hours of work are not lost for a wrong path. Error(usage) where
// something else than a file is there, Error(io) where nothing can be written.
void try_output_file(FileSystem& files, const std::string& flag, const std::string& path);
