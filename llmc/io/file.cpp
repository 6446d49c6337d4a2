#include "llmc/io/file.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "llmc/base/error.h"
#include "llmc/io/lfs_pointer.h"

void fail_on_file(const std::string& path, const char* call, int code) {
    std::string hint;
    if (code == ENOENT) hint = "Check the path; relative paths start at the folder the program was started in.";
    if (code == EACCES || code == EPERM || code == EROFS) hint = "Check the permissions of the file and its folder.";
    if (code == ENOSPC || code == EDQUOT) hint = "Free some space, or write elsewhere with --output-dir.";
    if (code == EMFILE || code == ENFILE) hint = "Raise the limit on open files (ulimit -n).";
    throw Error(ErrorKind::io, text(path, ": ", call, " failed: ", std::strerror(code)), hint);
}

namespace {

const char* kind_of(const struct stat& info) {
    return S_ISDIR(info.st_mode)    ? "folder"
           : S_ISFIFO(info.st_mode) ? "pipe"
           : S_ISSOCK(info.st_mode) ? "socket"
                                    : "device";
}

// Throws Error(io) for pipes, sockets, devices and folders: files are read by offset and need a size.
void check_regular(const std::string& path, const struct stat& info) {
    if (S_ISREG(info.st_mode)) return;
    if (S_ISDIR(info.st_mode) && ::access((path + "/.").c_str(), F_OK) != 0 && errno == EACCES) {
        fail_on_file(path, "open", errno);
    }
    throw Error(ErrorKind::io, text(path, ": is a ", kind_of(info), ", expected a file"),
                "Give a regular file, or a link to one.");
}

// Folders that are held open, the newest last.
class HeldFolders {
public:
    void add(std::string folder, int descriptor) {
        while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
        const std::lock_guard lock(mutex_);
        all_.emplace_back(std::move(folder), descriptor);
    }
    void remove(int descriptor) {
        const std::lock_guard lock(mutex_);
        std::erase_if(all_, [descriptor](const auto& held) { return held.second == descriptor; });
    }
    // Returns a path that leads to the same place through the handle of the folder that holds it.
    std::string through_handle(const std::string& path) const {
        const std::lock_guard lock(mutex_);
        for (auto held = all_.rbegin(); held != all_.rend(); ++held) {
            const std::string& folder = held->first;
            if (path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/')) {
                return text("/proc/self/fd/", held->second, path.size() == folder.size() ? "/." : "",
                            path.substr(folder.size()));
            }
        }
        return path;
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::pair<std::string, int>> all_;
};
HeldFolders& held_folders() {
    static HeldFolders folders;
    return folders;
}
std::string place_of(const std::string& path) { return held_folders().through_handle(path); }

class RealFile : public File {
public:
    RealFile(std::string path, int descriptor, bool grows = false)
        : path_(std::move(path)), descriptor_(descriptor), grows_(grows) {}
    ~RealFile() override { ::close(descriptor_); }
    RealFile(const RealFile&) = delete;
    RealFile& operator=(const RealFile&) = delete;

    const std::string& path() const override { return path_; }

    std::uint64_t size() const override { return static_cast<std::uint64_t>(status().st_size); }

    struct stat status() const {
        struct stat info {};
        if (::fstat(descriptor_, &info) != 0) fail_on_file(path_, "fstat", errno);
        return info;
    }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        std::size_t done = 0;
        while (done < into.size()) {
            ssize_t n = ::pread(descriptor_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail_on_file(path_, "read", errno);
            if (n == 0) {
                throw Error(ErrorKind::bad_data,
                            text(path_, ": the file ends at byte ", std::min(size(), offset + done), ", expected ",
                                 into.size(), " bytes from byte ", offset, " on"),
                            "The file is truncated or was changed while in use: copy or prepare it again.");
            }
            done += static_cast<std::size_t>(n);
        }
    }

    void write(std::span<const std::byte> bytes) override {
        while (!bytes.empty()) {
            ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail_on_file(path_, "write", errno);
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        }
        if (grows_) check_still_there();
    }

    void sync() override {
        const int code = try_sync();
        if (code != 0 && code != EINVAL) fail_on_file(path_, "fsync", code);   // EINVAL: a pipe or device
    }
    int try_sync() const { return ::fsync(descriptor_) == 0 ? 0 : errno; }

private:
    // Throws Error(io) if the path no longer leads to this file, so that a run of days does not write where nobody
    // finds it.
    void check_still_there() const {
        const struct stat own = status();
        struct stat found {};
        if (::stat(path_.c_str(), &found) != 0) {
            if (errno != ENOENT && errno != ENOTDIR) fail_on_file(path_, "stat", errno);
        } else if (found.st_ino == own.st_ino && found.st_dev == own.st_dev) {
            return;
        }
        throw Error(ErrorKind::io, text(path_, ": it was removed or moved while it was written to"),
                    own.st_nlink > 0
                        ? "What was written is where it was moved to, checkpoints too: resume it there."
                        : "What it held is lost; checkpoints beside it that are still there can be resumed.");
    }

    std::string path_;
    int descriptor_;
    bool grows_;   // open for appending
};

class RealFiles : public FileSystem {
public:
    RealFiles() { ::signal(SIGXFSZ, SIG_IGN); }   // exceeding a limit on file size is then an error of write

    std::unique_ptr<File> open(const std::string& path) const override {
        struct stat info {};
        if (::stat(place_of(path).c_str(), &info) == 0)
            check_regular(path, info);   // first: opening a device can have effects
        std::unique_ptr<RealFile> file =
            open_with(path, O_RDONLY | O_NONBLOCK);   // O_NONBLOCK: does not hang if the path is a pipe by now
        check_regular(path, file->status());
        return file;
    }
    std::unique_ptr<File> create(const std::string& path) override {
        return open_with(path, O_WRONLY | O_CREAT | O_TRUNC);
    }
    std::unique_ptr<File> append(const std::string& path) override {
        return open_with(path, O_WRONLY | O_CREAT | O_APPEND, true);
    }

    void rename(const std::string& from, const std::string& to) override {
        if (::rename(place_of(from).c_str(), place_of(to).c_str()) != 0)
            fail_on_file(text(from, " -> ", to), "rename", errno);
    }

    void link(const std::string& from, const std::string& to) override {
        if (::link(place_of(from).c_str(), place_of(to).c_str()) != 0)
            fail_on_file(text(from, " -> ", to), "link", errno);
    }

    void remove_all(const std::string& path) override {
        std::error_code code;
        std::filesystem::remove_all(place_of(path), code);
        if (code) fail_on_file(path, "remove", code.value());
    }

    void make_folders(const std::string& path) override {
        std::error_code code;
        std::filesystem::create_directories(place_of(path), code);
        if (code) fail_on_file(path, "mkdir", code.value());
    }

    void sync_folder(const std::string& path) override {
        const auto folder = open_with(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY);
        const int code = folder->try_sync();
        if (code == 0) return;
        if (code != EINVAL && code != ENOTSUP && code != ENOSYS) fail_on_file(folder->path(), "fsync", code);
        const std::lock_guard lock(mutex_);
        if (unsynced_.empty()) unsynced_ = text(folder->path(), ": fsync: ", std::strerror(code));
    }
    std::string unsynced_folder() const override {
        const std::lock_guard lock(mutex_);
        return unsynced_;
    }

    bool exists(const std::string& path) const override { return ::access(place_of(path).c_str(), F_OK) == 0; }

    std::vector<std::string> list(const std::string& folder) const override {
        std::error_code code;
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(place_of(folder), code)) {
            names.push_back(entry.path().filename().string());
        }
        if (code) fail_on_file(folder, "opendir", code.value());
        std::sort(names.begin(), names.end());
        return names;
    }

private:
    mutable std::mutex mutex_;   // a thread writes checkpoints
    std::string unsynced_;

    static std::unique_ptr<RealFile> open_with(const std::string& path, int flags, bool grows = false) {
        int descriptor;
        do {
            descriptor = ::open(place_of(path).c_str(), flags | O_CLOEXEC, 0644);
        } while (descriptor < 0 && errno == EINTR);
        if (descriptor < 0) fail_on_file(path, (flags & O_CREAT) != 0 ? "create" : "open", errno);
        return std::make_unique<RealFile>(path, descriptor, grows);
    }
};

}   // namespace

FileSystem& real_files() {
    static RealFiles files;
    return files;
}

HeldFolder::HeldFolder(const std::string& folder) {
    descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) fail_on_file(folder, "open", errno);
    if (::access(text("/proc/self/fd/", descriptor_, "/.").c_str(), F_OK) == 0) held_folders().add(folder, descriptor_);
}

HeldFolder::~HeldFolder() {
    held_folders().remove(descriptor_);
    ::close(descriptor_);
}

namespace {

[[noreturn]] void too_large(const std::string& path, const std::string& found, std::uint64_t most) {
    throw Error(ErrorKind::bad_data, text(path, ": ", found, " bytes, expected at most ", most),
                "Files of this kind are small: is this another one?");
}

std::string read_up_to(std::uint64_t most, const FileSystem& files, const std::string& path) {
    std::unique_ptr<File> file = files.open(path);
    if (file->size() > most) too_large(path, text(file->size()), most);
    std::string content(file->size(), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(content)));
    refuse_lfs_pointer(path, content);
    return content;
}

}   // namespace

std::string read_whole(const FileSystem& files, const std::string& path) {
    return read_up_to(largest_small_file, files, path);
}
std::string read_large(const FileSystem& files, const std::string& path) {
    return read_up_to(largest_whole_file, files, path);
}

std::string read_small_or_pipe(const std::string& path, const std::string& flag) {
    refuse_device(path, flag);
    const std::string place = text(flag, " ", path);
    std::ifstream file(path, std::ios::binary);
    if (!file) fail_on_file(place, "open", errno);
    std::string content, block(1 << 16, '\0');
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
        content.append(block, 0, static_cast<std::size_t>(file.gcount()));
        if (content.size() > largest_small_file)
            too_large(place, text("more than ", largest_small_file), largest_small_file);
    }
    if (file.bad()) fail_on_file(place, "read", errno);
    return content;
}

void write_whole(FileSystem& files, const std::string& path, const std::string& content) {
    const std::string temporary = path + ".tmp";
    {
        std::unique_ptr<File> file = files.create(temporary);
        file->write(bytes_of(content));
        file->sync();
    }
    files.rename(temporary, path);
    files.sync_folder(std::filesystem::path(path).parent_path().string());
}

namespace {

// Escapes the folders at the pattern's begin that are there by just these names, so that they stand for themselves.
std::string with_literal_folders(const std::string& pattern) {
    struct stat info {};
    std::size_t end = 0;   // end of the folders that exist
    for (std::size_t slash = pattern.find('/'); slash != std::string::npos; slash = pattern.find('/', slash + 1)) {
        if (::stat(pattern.substr(0, slash + 1).c_str(), &info) != 0) break;
        end = slash + 1;
    }
    std::string escaped;
    for (const char c : pattern.substr(0, end)) {
        if (std::string_view("*?[]\\").find(c) != std::string_view::npos) escaped += '\\';
        escaped += c;
    }
    return escaped + pattern.substr(end);
}

}   // namespace

bool has_entry(const FileSystem& files, const std::string& folder, const std::string& name) {
    return std::ranges::count(files.list(folder), name) > 0;
}

std::vector<std::string> glob_files(const std::string& pattern) {
    struct stat info {};
    if (::stat(pattern.c_str(), &info) == 0) return {pattern};
    glob_t found{};
    int status = ::glob(with_literal_folders(pattern).c_str(), 0, nullptr, &found);   // sorts by name
    std::vector<std::string> paths;
    if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (status == GLOB_ABORTED) throw Error(ErrorKind::io, text(pattern, ": a folder of this pattern cannot be read"));
    return paths;
}

std::vector<std::string> matching_files(const std::string& flag, const std::string& pattern) {
    std::vector<std::string> paths = glob_files(pattern);
    for (const std::string& path : paths) {
        struct stat info {};
        if (path != pattern && ::stat(path.c_str(), &info) == 0)
            check_regular(text(flag, " ", pattern, ": ", path), info);
    }
    if (!paths.empty()) return paths;
    throw Error(ErrorKind::io, text(flag, " ", pattern, ": no file matches this pattern"),
                "Check the path (quote patterns so that the shell leaves them alone), or prepare the data with the "
                "tokenize tool.");
}

void refuse_device(const std::string& path, const std::string& flag, bool pipes_too) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || path == "/dev/stdin") return;   // opening it will tell
    const bool is_named = !path.starts_with("/dev/") && !path.starts_with("/proc/");
    if (!S_ISFIFO(info.st_mode) || (pipes_too && is_named))
        check_regular(flag.empty() ? path : flag + " " + path, info);
}

void try_output_file(FileSystem& files, const std::string& flag, const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
        throw Error(ErrorKind::usage, text(flag, " ", path, ": is a ", kind_of(info), ", expected the name of a file"),
                    "Name a new file, or one to replace.");
    }
    const std::string temporary = path + ".tmp";
    files.create(temporary);
    files.remove_all(temporary);
}
