#include "llmc/checkpoint/checkpoint.h"

#include <algorithm>
#include <climits>
#include <deque>
#include <map>
#include <set>

#include "llmc/base/error.h"
#include "llmc/checkpoint/checkpoint_manifest.h"
#include "llmc/io/hash.h"

namespace {

constexpr const char* temporary_suffix = ".tmp";
constexpr const char* removed_suffix = ".old";
constexpr const char* damaged_suffix = ".damaged";
constexpr char failed_share = '!';   // first byte of a failed rank's share(); other shares are JSON

// Returns the message of a caught exception; `error` must not be null.
std::string words_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& known) {
        return known.message();
    } catch (const std::exception& other) {
        return other.what();
    }
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

namespace {

// Hashes all that is written. Each sync() sets `record` to the manifest's entry for the file.
class HashedFile : public File {
public:
    HashedFile(std::unique_ptr<File> inner, const Json& tensors, Json& record)
        : file_(std::move(inner)), tensors_(tensors), record_(record) {}
    const std::string& path() const override { return file_->path(); }
    std::uint64_t size() const override { return file_->size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override { file_->read_at(offset, into); }
    void write(std::span<const std::byte> bytes) override {
        file_->write(bytes);
        bytes_ += bytes.size();
        hash_.update(bytes.data(), bytes.size());
    }
    void sync() override {
        file_->sync();
        record_ = Json::object({{"bytes", bytes_}, {"xxh3_128", hash_.digest_128()}});
        if (!tensors_.is_null()) record_.add("tensors", tensors_);
    }

private:
    std::unique_ptr<File> file_;
    std::uint64_t bytes_ = 0;
    Hash64 hash_;
    Json tensors_;   // null: the file has none
    Json& record_;
};

}   // namespace

CheckpointWriter::CheckpointWriter(FileSystem& files, const std::string& folder, int step, const CheckpointRanks& ranks)
    : files_(files),
      folder_(folder),
      temporary_(folder + "/" + checkpoint_name(step) + temporary_suffix),
      step_(step),
      ranks_(ranks) {
    if (ranks.rank == 0) {
        attempt([&] {
            files_.remove_all(temporary_);
            files_.make_folders(temporary_);
        });
    }
    ranks.gather("");   // the folder exists from here on
}

CheckpointWriter::~CheckpointWriter() {
    join();
    while (afterwards_ && ranks_.ranks == 1 && !is_over()) advance();   // completes what is written
    if (!committed_) remove_unfinished();
}

void CheckpointWriter::remove_unfinished() {
    if (ranks_.rank != 0) return;
    try {
        files_.remove_all(temporary_);
    } catch (const std::exception&) {
        // the first error is the one to report; the next run removes the folder
    }
}

std::unique_ptr<File> CheckpointWriter::create(const std::string& name, const Json& tensors) {
    return std::make_unique<HashedFile>(files_.create(temporary_ + "/" + name), tensors, manifest_[name]);
}

SafetensorsWriter CheckpointWriter::create(const std::string& name, const std::vector<TensorEntry>& tensors,
                                           const TensorMetadata& metadata) {
    Json all = Json::object();
    for (const TensorEntry& tensor : tensors) all.add(tensor.name, type_and_shape(tensor));
    return {create(name, all), tensors, metadata};
}

void CheckpointWriter::write(const std::string& name, const std::string& content) {
    const std::unique_ptr<File> file = create(name);
    file->write(bytes_of(content));
    file->sync();
}

void CheckpointWriter::link_files(const std::string& of_checkpoint, const std::vector<std::string>& but) {
    const Json manifest = parse_json(read_whole(files_, of_checkpoint + "/" + manifest_name));
    for (const auto& [name, record] : manifest.at("files").members()) {
        if (std::ranges::count(but, name) > 0) continue;
        files_.link(of_checkpoint + "/" + name, temporary_ + "/" + name);
        manifest_[name] = record;
    }
}

void CheckpointWriter::start(std::function<void()> work, std::function<void()> afterwards) {
    afterwards_ = std::move(afterwards);
    run_in_thread([this, work = std::move(work)] { attempt(work); });
}

void CheckpointWriter::run_in_thread(std::function<void()> work) {
    works_ = true;
    thread_ = std::thread([this, work = std::move(work)] {
        work();
        works_ = false;
    });
}

void CheckpointWriter::join() {
    if (!thread_.joinable()) return;
    const auto waits = ranks_.disk_wait();
    thread_.join();
}

void CheckpointWriter::advance() {
    join();
    if (phase_ == Phase::writing) {
        const std::vector<std::string> shares = ranks_.gather(share());
        phase_ = Phase::committing;
        if (ranks_.rank == 0) run_in_thread([this, shares] { commit(shares); });
    } else if (phase_ == Phase::committing) {
        const std::string of_first = ranks_.gather(outcome())[0];
        phase_ = Phase::over;
        attempt([&] {
            if (of_first.empty()) return;
            throw Error(ErrorKind::resumable, of_first, "Start again with --resume to go on from the last checkpoint.");
        });
    }
}

void CheckpointWriter::finish() {
    while (!is_over()) advance();
    if (failure_) std::rethrow_exception(failure_);
}

std::string CheckpointWriter::share() const {
    if (failure_) return failed_share + words_of(failure_);
    Json own = Json::object();
    for (const auto& [name, record] : manifest_) own.add(name, record);
    return to_text(own);
}

void CheckpointWriter::commit(const std::vector<std::string>& shares) {
    attempt([&] {
        std::map<std::string, Json> by_name;   // sorted by name, so equal checkpoints have equal manifests
        for (std::size_t r = 0; r < shares.size(); r++) {
            if (shares[r][0] == failed_share) {
                throw Error(ErrorKind::resumable,
                            text("rank ", r, " could not write its files of ", temporary_, ": ", shares[r].substr(1)));
            }
            const Json records = parse_json(shares[r]);
            by_name.insert(records.members().begin(), records.members().end());
        }
        Json all = Json::object();
        for (const auto& [name, record] : by_name) all.add(name, record);
        const Json manifest =
            Json::object({{"format", format_name}, {"version", format_version}, {"step", step_}, {"files", all}});
        write(manifest_name, to_text(manifest, 2) + "\n");
        files_.sync_folder(temporary_);
        const std::string final_path = folder_ + "/" + checkpoint_name(step_);
        const std::string replaced = final_path + removed_suffix;
        // whatever has the name: the best one of a run that resumed before its step, a link that leads nowhere
        const bool replaces = has_entry(files_, folder_, checkpoint_name(step_));
        if (replaces) {
            files_.remove_all(replaced);
            files_.rename(final_path, replaced);
        }
        files_.rename(temporary_, final_path);
        committed_ = true;
        files_.sync_folder(folder_);
        if (replaces) files_.remove_all(replaced);
    });
    if (!committed_) remove_unfinished();
    if (failure_ || !afterwards_) return;
    try {
        afterwards_();
    } catch (const std::exception& error) {
        afterwards_failure_ = error.what();
    }
}

std::string CheckpointWriter::outcome() const { return failure_ ? words_of(failure_) : ""; }

// ---------------------------------------------------------------------------------------------------------------------
// Reading

std::string find_damage(const FileSystem& files, const std::string& path, CheckpointUse use,
                        const CheckpointRanks& ranks) {
    const std::string own = damage_of_checkpoint(files, path, use, ranks.rank, ranks.ranks);
    for (const std::string& damage : ranks.gather(own)) {
        if (!damage.empty()) return damage;
    }
    return "";
}

std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<PassedOver>& passed_over, const CheckpointRanks& ranks,
                                                 CheckpointUse use) {
    // rank 0: names that are there now, for a run beside may save and prune
    const auto listed = [&] { return ranks.rank == 0 ? list_checkpoints(files, folder) : std::vector<int>{}; };
    std::set<int> seen;
    while (true) {
        std::vector<int> steps = listed();
        std::erase_if(steps, [&](int step) { return seen.contains(step); });
        const std::string name = ranks.gather(steps.empty() ? "" : checkpoint_name(steps.back()))[0];
        if (name.empty()) return std::nullopt;
        const std::string path = folder + "/" + name;
        const int step = step_of(name).value();
        const std::string damage = find_damage(files, path, use, ranks);
        if (damage.empty()) return FoundCheckpoint{step, path};
        seen.insert(step);
        const bool is_there = !ranks.gather(std::ranges::count(listed(), step) > 0 ? "there" : "")[0].empty();
        if (is_there) passed_over.push_back({step, damage});
    }
}

std::string read_while_there(const FileSystem& files, std::string path, const CheckpointRanks& ranks,
                             const std::function<void(const std::string&)>& read,
                             const std::function<std::string()>& next) {
    while (true) {
        std::exception_ptr failure;
        try {
            read(path);
        } catch (const Error&) {
            failure = std::current_exception();
        }
        const std::vector<std::string> gone = ranks.gather(failure && !files.exists(path) ? "gone" : "");
        if (std::ranges::all_of(gone, &std::string::empty)) {
            if (failure) std::rethrow_exception(failure);
            return path;
        }
        path = next();
    }
}

void warn_of(const std::vector<PassedOver>& passed_over, const Log& log) {
    for (const PassedOver& one : passed_over) log.warning("checkpoint passed over: %s", one.damage.c_str());
}

// ---------------------------------------------------------------------------------------------------------------------
// Removing

namespace {

// Returns true for a checkpoint that stays however old it is.
bool stays(std::int64_t step, const Retention& retention) {
    return step == retention.origin || (retention.major_every > 0 && step % retention.major_every == 0);
}

}   // namespace

void remove_checkpoint(FileSystem& files, const std::string& folder, int step) {
    const std::string path = folder + "/" + checkpoint_name(step), away = path + removed_suffix;
    files.remove_all(away);
    files.rename(path, away);
    files.sync_folder(folder);
    files.remove_all(away);
}

void set_aside(FileSystem& files, const std::string& folder, const std::vector<PassedOver>& passed_over,
               const Log& log) {
    for (const PassedOver& one : passed_over) {
        const std::string name = checkpoint_name(one.step);
        std::string aside = name + damaged_suffix;
        for (int i = 2; has_entry(files, folder, aside); i++) aside = text(name, damaged_suffix, "-", i);
        files.rename(folder + "/" + name, folder + "/" + aside);
        log.warning("checkpoint passed over, and renamed to %s: %s", aside.c_str(), one.damage.c_str());
    }
    if (!passed_over.empty()) files.sync_folder(folder);
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

void prune_checkpoints(FileSystem& files, const std::string& folder, int saved, const Retention& retention) {
    if (retention.keep <= 0) return;
    std::vector<int> steps = list_checkpoints(files, folder);
    std::erase_if(steps, [&](int step) {
        return step > saved || !files.exists(folder + "/" + checkpoint_name(step) + "/" + manifest_name);
    });
    const std::size_t older = steps.size() - std::min(steps.size(), static_cast<std::size_t>(retention.keep));
    for (std::size_t i = 0; i < older; i++) {
        if (!stays(steps[i], retention)) remove_checkpoint(files, folder, steps[i]);
    }
}

std::uint64_t checkpoints_to_come(const std::vector<int>& saved, int last, int every, const Retention& retention) {
    const int after = retention.origin;
    const std::int64_t multiple = every > 0 ? every : INT_MAX;
    auto save_after = [&](std::int64_t step) { return std::min<std::int64_t>((step / multiple + 1) * multiple, last); };
    if (retention.keep <= 0)
        return last <= after ? 0
                             : static_cast<std::uint64_t>(last / multiple - after / multiple + (last % multiple != 0));
    std::deque<std::int64_t> newest(saved.begin(), saved.end());
    std::uint64_t held = saved.size(), most = held;
    for (std::int64_t step = after; step < last;) {
        step = save_after(step);
        newest.push_back(step);
        most = std::max(most, ++held);
        for (; newest.size() > static_cast<std::size_t>(retention.keep); newest.pop_front()) {
            if (!stays(newest.front(), retention)) held--;
        }
    }
    return most - saved.size();
}
