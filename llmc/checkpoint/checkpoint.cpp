#include "llmc/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <deque>
#include <map>
#include <tuple>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/io/hash.h"

namespace {

constexpr const char* format_name = "train_gpt checkpoint";
constexpr int format_version = 3, format_version_of_64_bits = 2;
constexpr const char* manifest_name = "manifest.json";
constexpr const char* temporary_suffix = ".tmp";
constexpr const char* removed_suffix = ".old";
constexpr char failed_share = '!';   // how the share of a rank that has failed begins; others are JSON
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

std::string hash_of(const File& file, bool of_64_bits) {
    const std::uint64_t bytes = file.size();
    Hash64 hash;
    std::vector<std::byte> piece(std::min<std::uint64_t>(bytes, read_piece));
    for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
        auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), bytes - at));
        file.read_at(at, part);
        hash.update(part.data(), part.size());
    }
    return of_64_bits ? hash_to_text(hash.digest()) : hash.digest_128();
}

// An error in words; `error` is one.
std::string words_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& known) {
        return known.message();
    } catch (const std::exception& other) {
        return other.what();
    }
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
        Json tensors;   // null: not of tensors
    };
    std::map<std::string, Entry> entries;   // by name
    std::map<std::string, Json> linked;     // what the manifest says of files that are not created

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

CheckpointWriter::CheckpointWriter(FileSystem& files, const std::string& folder, int step, const CheckpointRanks& ranks)
    : inner_(files),
      hashing_(std::make_unique<HashingFiles>(files)),
      folder_(folder),
      temporary_(folder + "/" + checkpoint_name(step) + temporary_suffix),
      step_(step),
      ranks_(ranks) {
    if (ranks.rank == 0) {
        attempt([&] {
            inner_.remove_all(temporary_);
            inner_.make_folders(temporary_);
        });
    }
    ranks.gather("");   // the folder is there
}

CheckpointWriter::~CheckpointWriter() {
    if (!finished_) remove_unfinished();
}

void CheckpointWriter::remove_unfinished() {
    if (ranks_.rank != 0) return;
    try {
        inner_.remove_all(temporary_);
    } catch (const std::exception&) {
        // the error that brought us here is the one to report; the next run removes the rest
    }
}

FileSystem& CheckpointWriter::files() { return *hashing_; }

void CheckpointWriter::write(const std::string& name, const std::string& content) {
    std::unique_ptr<File> file = hashing_->create(path(name));
    file->write(bytes_of(content));
    file->sync();
}

void CheckpointWriter::describe(const std::string& name, const std::vector<TensorEntry>& tensors) {
    Json all = Json::object();
    for (const TensorEntry& tensor : tensors) {
        all.add(tensor.name, Json::object({{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}}));
    }
    hashing_->entries.at(name).tensors = std::move(all);
}

void CheckpointWriter::link_files(const std::string& of_checkpoint, const std::vector<std::string>& but) {
    const Json manifest = parse_json(read_whole(inner_, of_checkpoint + "/" + manifest_name));
    for (const auto& [name, file] : manifest.at("files").members()) {
        if (std::find(but.begin(), but.end(), name) != but.end()) continue;
        inner_.link(of_checkpoint + "/" + name, path(name));
        hashing_->linked[name] = file;
    }
}

void CheckpointWriter::finish() {
    const std::vector<std::string> shares = ranks_.gather(share());
    if (ranks_.rank == 0) commit(shares);
    conclude(ranks_.gather(outcome()));
}

std::string CheckpointWriter::share() const {
    if (failure_) return failed_share + words_of(failure_);
    Json own = Json::object();
    for (const auto& [name, file] : hashing_->linked) own.add(name, file);
    for (const auto& [name, file] : hashing_->entries) {
        Json told = Json::object({{"bytes", file.bytes}, {"xxh3_128", file.hash.digest_128()}});
        if (!file.tensors.is_null()) told.add("tensors", file.tensors);
        own.add(name, std::move(told));
    }
    return to_text(own);
}

void CheckpointWriter::commit(const std::vector<std::string>& shares) {
    attempt([&] {
        for (std::size_t r = 0; r < shares.size(); r++) {
            if (shares[r][0] != failed_share) continue;
            throw Error(ErrorKind::resumable,
                        text("rank ", r, " could not write its files of ", temporary_, ": ", shares[r].substr(1)));
        }
        write_manifest(shares);
        inner_.sync_folder(temporary_);
        const std::string final_path = folder_ + "/" + checkpoint_name(step_);
        const std::string replaced = final_path + removed_suffix;
        const bool replaces = inner_.exists(final_path);
        if (replaces) {   // one that did not verify, or the best one of a run that goes on before it
            inner_.remove_all(replaced);
            inner_.rename(final_path, replaced);
        }
        inner_.rename(temporary_, final_path);
        finished_ = true;
        inner_.sync_folder(folder_);
        if (replaces) inner_.remove_all(replaced);
    });
    if (!finished_) remove_unfinished();
}

void CheckpointWriter::write_manifest(const std::vector<std::string>& shares) {
    std::map<std::string, Json> by_name;   // equal checkpoints have equal manifests
    for (const std::string& share : shares) {
        const Json files = parse_json(share);
        by_name.insert(files.members().begin(), files.members().end());
    }
    Json all = Json::object();
    for (const auto& [name, file] : by_name) all.add(name, file);
    const Json manifest =
        Json::object({{"format", format_name}, {"version", format_version}, {"step", step_}, {"files", all}});
    write(manifest_name, to_text(manifest, 2) + "\n");
}

std::string CheckpointWriter::outcome() const { return failure_ ? words_of(failure_) : ""; }

void CheckpointWriter::conclude(const std::vector<std::string>& outcomes) const {
    if (failure_) std::rethrow_exception(failure_);
    if (outcomes[0].empty()) return;
    throw Error(ErrorKind::resumable, outcomes[0], "Start again with --resume to go on from the last checkpoint.");
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

namespace {

// `of_model`: what verify_model_folder looks at.
void verify(const FileSystem& files, const std::string& path, bool of_model, int rank, int ranks) {
    const std::string manifest_path = path + "/" + manifest_name;
    std::string content;
    try {
        content = read_whole(files, manifest_path);
    } catch (const Error& error) {
        broken(path, text("no readable manifest: ", error.message()));
    }
    try {
        const Json manifest = parse_json(content);
        if (manifest.at("format") != format_name) broken(manifest_path, "not a manifest");
        const bool of_64_bits = manifest.at("version") == format_version_of_64_bits;
        if (manifest.at("version") != format_version && !of_64_bits) {
            broken(manifest_path, text("version ", quoted(manifest.at("version")), ", expected ", format_version));
        }
        const int step = static_cast<int>(manifest.at("step").as_whole(INT_MAX));
        if (!of_model && path.substr(path.rfind('/') + 1) != checkpoint_name(step)) {
            broken(manifest_path, text("it says step ", step));
        }
        std::vector<std::tuple<std::uint64_t, std::string, std::string>> records;   // bytes, name, hash
        for (const auto& [name, entry] : manifest.at("files").members()) {
            if (of_model && name.starts_with("optimizer-")) continue;
            records.emplace_back(entry.at("bytes").as_whole(UINT64_MAX), name,
                                 entry.at(of_64_bits ? "xxh3" : "xxh3_128").as_text());
        }
        std::sort(records.rbegin(), records.rend());   // the largest first
        for (auto i = static_cast<std::size_t>(rank); i < records.size(); i += static_cast<std::size_t>(ranks)) {
            const auto& [bytes, name, hash] = records[i];
            const std::string file_path = path + "/" + name;
            if (!files.exists(file_path)) broken(file_path, "missing");
            const std::unique_ptr<File> file = files.open(file_path);
            if (file->size() != bytes) broken(file_path, text(file->size(), " bytes, the manifest says ", bytes));
            const std::string found = hash_of(*file, of_64_bits);
            if (found != hash) broken(file_path, text("hash ", found, ", the manifest says ", hash));
        }
    } catch (const JsonSyntaxError&) {
        broken(manifest_path, "not a manifest");
    } catch (const JsonError& error) {
        broken(manifest_path, error.what());
    }
}

}   // namespace

void verify_checkpoint(const FileSystem& files, const std::string& path, int rank, int ranks) {
    verify(files, path, false, rank, ranks);
}

void verify_model_folder(const FileSystem& files, const std::string& path, int rank, int ranks) {
    if (!files.exists(path + "/.")) return;
    const std::vector<std::string> names = files.list(path);
    if (std::find(names.begin(), names.end(), manifest_name) != names.end()) verify(files, path, true, rank, ranks);
}

std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<std::string>& skipped, const CheckpointRanks& ranks,
                                                 CheckpointUse use) {
    std::vector<int> steps;
    if (ranks.rank == 0) steps = list_checkpoints(files, folder);
    while (true) {
        const std::string name = ranks.gather(steps.empty() ? "" : checkpoint_name(steps.back()))[0];
        if (name.empty()) return std::nullopt;
        const std::string path = folder + "/" + name;
        std::string wrong;
        try {
            verify(files, path, use == CheckpointUse::model, ranks.rank, ranks.ranks);
        } catch (const Error& error) {
            wrong = error.message();
        }
        const std::vector<std::string> reasons = ranks.gather(wrong);
        const auto reason = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
        if (reason == reasons.end()) return FoundCheckpoint{step_of(name).value(), path};
        skipped.push_back(*reason);
        if (!steps.empty()) steps.pop_back();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Removing

void remove_checkpoint(FileSystem& files, const std::string& folder, int step) {
    const std::string path = folder + "/" + checkpoint_name(step), away = path + removed_suffix;
    files.remove_all(away);
    files.rename(path, away);
    files.sync_folder(folder);
    files.remove_all(away);
}

std::vector<std::string> remove_unfinished_checkpoints(FileSystem& files, const std::string& folder) {
    std::vector<std::string> removed;
    if (!files.exists(folder)) return removed;
    for (const std::string& name : files.list(folder)) {
        if (!name.ends_with(temporary_suffix) && !name.ends_with(removed_suffix)) continue;
        if (!step_of(name.substr(0, name.rfind('.')))) continue;
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
        if (!major) remove_checkpoint(files, folder, steps[i]);
    }
}

std::uint64_t checkpoints_to_come(const std::vector<int>& saved, int after, int last, int every, int keep,
                                  int major_every) {
    const std::int64_t multiple = every > 0 ? every : INT_MAX;
    auto save_after = [&](std::int64_t step) { return std::min<std::int64_t>((step / multiple + 1) * multiple, last); };
    if (keep <= 0)
        return last <= after ? 0
                             : static_cast<std::uint64_t>(last / multiple - after / multiple + (last % multiple != 0));
    std::deque<std::int64_t> newest(saved.begin(), saved.end());
    std::uint64_t held = saved.size(), most = held;
    for (std::int64_t step = after; step < last;) {
        step = save_after(step);
        newest.push_back(step);
        most = std::max(most, ++held);
        for (; newest.size() > static_cast<std::size_t>(keep); newest.pop_front()) {
            const bool major = major_every > 0 && newest.front() % major_every == 0;
            if (!major) held--;
        }
    }
    return most - saved.size();
}
