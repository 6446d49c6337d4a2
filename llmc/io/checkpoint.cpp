#include "llmc/io/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/io/hash.h"

namespace {

constexpr const char* format_name = "train_gpt checkpoint";
constexpr int format_version = 2;
constexpr const char* manifest_name = "manifest.json";
constexpr const char* temporary_suffix = ".tmp";
constexpr std::size_t read_piece = std::size_t{1} << 22;

// The step of a checkpoint's name, or nothing.
std::optional<int> step_of(const std::string& name) {
    const std::string prefix = "step_";
    int step = 0;
    if (!name.starts_with(prefix)) return std::nullopt;
    auto [end, code] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (code != std::errc{} || name != checkpoint_name(step)) return std::nullopt;
    return step;
}

FileRecord record_of(const FileSystem& files, const std::string& path) {
    std::unique_ptr<File> file = files.open(path);
    FileRecord record;
    record.bytes = file->size();
    Hash64 hash;
    std::vector<std::byte> piece(std::min<std::uint64_t>(record.bytes, read_piece));
    for (std::uint64_t at = 0; at < record.bytes; at += piece.size()) {
        auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), record.bytes - at));
        file->read_at(at, part);
        hash.update(part.data(), part.size());
    }
    record.hash = hash.digest();
    return record;
}

[[noreturn]] void broken(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": ", what), "This checkpoint cannot be used; an older one may be.");
}

}   // namespace

std::string checkpoint_name(int step) { return formatted("step_%08d", step); }

std::vector<int> list_checkpoints(const FileSystem& files, const std::string& folder) {
    std::vector<int> steps;
    if (!files.exists(folder)) return steps;
    for (const std::string& name : files.list(folder)) {
        if (auto step = step_of(name)) steps.push_back(*step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

// Remembers size and hash of every file that is created.
class CheckpointWriter::HashingFiles : public ForwardingFiles {
public:
    using ForwardingFiles::ForwardingFiles;

    std::unique_ptr<File> create(const std::string& path) override {
        Entry& entry = entries[path.substr(path.rfind('/') + 1)];
        entry = Entry();
        return std::make_unique<HashingFile>(inner_.create(path), entry);
    }

    struct Entry {
        std::uint64_t bytes = 0;
        Hash64 hash;
    };
    std::map<std::string, Entry> entries;   // by name

private:
    class HashingFile : public File {
    public:
        HashingFile(std::unique_ptr<File> inner, Entry& entry) : file_(std::move(inner)), entry_(entry) {}
        const std::string& path() const override { return file_->path(); }
        std::uint64_t size() const override { return file_->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { file_->read_at(offset, into); }
        void write(std::span<const std::byte> bytes) override {
            file_->write(bytes);
            entry_.bytes += bytes.size();
            entry_.hash.update(bytes.data(), bytes.size());
        }
        void sync() override { file_->sync(); }

    private:
        std::unique_ptr<File> file_;
        Entry& entry_;
    };
};

CheckpointWriter::CheckpointWriter(FileSystem& files, const std::string& folder, int step, bool leads)
    : inner_(files),
      hashing_(std::make_unique<HashingFiles>(files)),
      folder_(folder),
      temporary_(folder + "/" + checkpoint_name(step) + temporary_suffix),
      step_(step),
      leads_(leads) {
    if (!leads) return;
    inner_.remove_all(temporary_);
    inner_.make_folders(temporary_);
}

CheckpointWriter::~CheckpointWriter() {
    if (finished_ || !leads_) return;
    try {
        inner_.remove_all(temporary_);
    } catch (const Error&) {
        // the error that brought us here is the one to report; the next run removes the rest
    }
}

FileSystem& CheckpointWriter::files() { return *hashing_; }

void CheckpointWriter::write(const std::string& name, const std::string& content) {
    std::unique_ptr<File> file = hashing_->create(path(name));
    file->write(bytes_of(content));
    file->sync();
}

FileRecord CheckpointWriter::record(const std::string& name) const {
    const auto found = hashing_->entries.find(name);
    return found == hashing_->entries.end() ? FileRecord{}
                                            : FileRecord{found->second.bytes, found->second.hash.digest()};
}

void CheckpointWriter::finish() {
    ENSURE(leads_, "a checkpoint is finished by the rank that leads");
    OrderedJson manifest{
        {"format", format_name}, {"version", format_version}, {"step", step_}, {"files", OrderedJson::object()}};
    std::map<std::string, FileRecord> records = others_;   // by name: equal checkpoints have equal manifests
    for (const auto& [name, _] : hashing_->entries) records[name] = record(name);
    for (const auto& [name, record] : records) {
        manifest["files"][name] = {{"bytes", record.bytes}, {"xxh3", hash_to_text(record.hash)}};
    }
    write(manifest_name, to_text(manifest, 2) + "\n");
    inner_.sync_folder(temporary_);
    const std::string final_path = folder_ + "/" + checkpoint_name(step_);
    if (inner_.exists(final_path))
        inner_.remove_all(final_path);   // one that did not verify, or the run would not be here
    inner_.rename(temporary_, final_path);
    finished_ = true;
    inner_.sync_folder(folder_);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

void verify_checkpoint(const FileSystem& files, const std::string& path, int rank, int ranks) {
    const std::string manifest_path = path + "/" + manifest_name;
    std::string content;
    try {
        content = read_whole(files, manifest_path);
    } catch (const Error& error) {
        broken(path, text("no readable manifest: ", error.message()));
    }
    try {
        const OrderedJson manifest = parse_ordered_json(content);
        if (manifest.at("format") != format_name) broken(manifest_path, "not a manifest");
        if (manifest.at("version") != format_version) {
            broken(manifest_path, text("version ", to_text(manifest.at("version")), ", expected ", format_version));
        }
        if (path.substr(path.rfind('/') + 1) != checkpoint_name(manifest.at("step").get<int>())) {
            broken(manifest_path, text("it says step ", to_text(manifest.at("step"))));
        }
        int next = 0;
        for (const auto& [name, entry] : manifest.at("files").items()) {
            if (next++ % ranks != rank) continue;
            const std::string file = path + "/" + name;
            if (!files.exists(file)) broken(file, "missing");
            const FileRecord found = record_of(files, file);
            const std::uint64_t bytes = entry.at("bytes").get<std::uint64_t>();
            if (found.bytes != bytes) broken(file, text(found.bytes, " bytes, the manifest says ", bytes));
            const std::string hash = entry.at("xxh3").get<std::string>();
            if (hash_to_text(found.hash) != hash) {
                broken(file, text("hash ", hash_to_text(found.hash), ", the manifest says ", hash));
            }
        }
    } catch (const Json::parse_error&) {
        broken(manifest_path, "not a manifest");
    } catch (const Json::exception& error) {
        broken(manifest_path, error.what());
    }
}

std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<std::string>& skipped, const Searchers& searchers) {
    std::vector<int> steps;
    if (searchers.rank == 0) steps = list_checkpoints(files, folder);
    while (true) {
        const std::string name = searchers.gather(steps.empty() ? "" : checkpoint_name(steps.back()))[0];
        if (name.empty()) return std::nullopt;
        const std::string path = folder + "/" + name;
        std::string wrong;
        try {
            verify_checkpoint(files, path, searchers.rank, searchers.ranks);
        } catch (const Error& error) {
            wrong = error.message();
        }
        const std::vector<std::string> reasons = searchers.gather(wrong);
        const auto reason = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
        if (reason == reasons.end()) return FoundCheckpoint{step_of(name).value(), path};
        skipped.push_back(*reason);
        if (!steps.empty()) steps.pop_back();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Removing

std::vector<std::string> remove_unfinished_checkpoints(FileSystem& files, const std::string& folder) {
    std::vector<std::string> removed;
    if (!files.exists(folder)) return removed;
    for (const std::string& name : files.list(folder)) {
        if (!name.ends_with(temporary_suffix)) continue;
        if (!step_of(name.substr(0, name.size() - std::string(temporary_suffix).size()))) continue;
        const std::string path = folder + "/" + name;
        if (!files.exists(path + "/.")) continue;   // a file: not ours
        files.remove_all(path);
        removed.push_back(name);
    }
    return removed;
}

void prune_checkpoints(FileSystem& files, const std::string& folder, int keep, int major_every) {
    if (keep <= 0) return;
    const std::vector<int> steps = list_checkpoints(files, folder);
    const std::size_t older = steps.size() - std::min(steps.size(), static_cast<std::size_t>(keep));
    for (std::size_t i = 0; i < older; i++) {
        const bool major = major_every > 0 && steps[i] % major_every == 0;
        if (!major) files.remove_all(folder + "/" + checkpoint_name(steps[i]));
    }
}
