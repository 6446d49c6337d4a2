// Every operation of a save by four writers fails in turn, in many interleavings of them: the run is never lost, and
// what it resumes from is the old state or the new one, to the byte. And each rule of the protocol, broken alone, loses
// a run.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "llmc/checkpoint/checkpoint.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/safetensors.h"
#include "llmc/io/simulated_disk_testing.h"

namespace {

constexpr int kWriters = 4, kUnits = 6;
constexpr int kOldest = 3, kOld = 7, kNew = 14, kNext = 21, kDamaged = 30, kEmpty = 40;   // steps
const std::string kFolder = "run";

enum class Fault {
    none,
    error,      // the call fails, once
    no_space,   // this and all later calls that take space fail
    tear,       // a write puts down its half and fails
    kill,       // all writers end
    power,      // as `kill`, and unsynced content may be lost
};
constexpr Fault kFaults[] = {Fault::error, Fault::no_space, Fault::tear, Fault::kill, Fault::power};

// A rule of the protocol that is broken on purpose.
enum class Mutation {
    none,
    tensors_not_synced,
    small_files_not_synced,
    manifest_not_synced,
    temporary_folder_not_synced,
    new_name_not_synced,
    old_name_not_synced,
    no_barrier,
    renamed_before_manifest,
    deleted_in_place,
    one_hash_missing,
};
const std::pair<Mutation, std::string> kMutations[] = {
    {Mutation::tensors_not_synced, "files of tensors are not synced"},
    {Mutation::small_files_not_synced, "small files are not synced"},
    {Mutation::manifest_not_synced, "the manifest is not synced"},
    {Mutation::temporary_folder_not_synced, "the folder is not synced before it gets its name"},
    {Mutation::new_name_not_synced, "the new name is not synced"},
    {Mutation::old_name_not_synced, "the removal of a name is not synced"},
    {Mutation::no_barrier, "rank 0 does not wait for the others"},
    {Mutation::renamed_before_manifest, "the folder gets its name before the manifest is written"},
    {Mutation::deleted_in_place, "a checkpoint is deleted under its name"},
    {Mutation::one_hash_missing, "the manifest leaves a file out"}};

std::string unit_name(int unit) { return text("unit-", unit, ".safetensors"); }
std::string content_of(int step, int unit) { return text("unit ", unit, " after step ", step, std::string(100, '.')); }
const std::string small_content = "of step ";

// The disk as a writer sees it: calls in its turn, with a rule broken.
class WriterFiles : public ForwardingFiles {
public:
    WriterFiles(FileSystem& disk, Mutation mutation) : ForwardingFiles(disk), mutation_(mutation) {}

    std::unique_ptr<File> create(const std::string& path) override {
        const bool is_manifest = path.ends_with("/manifest.json");
        if (is_manifest && mutation_ == Mutation::renamed_before_manifest) {
            return std::make_unique<KeptFile>(path, [this](const std::string& content) { late_manifest_ = content; });
        }
        if (is_manifest && mutation_ == Mutation::one_hash_missing) {
            return std::make_unique<KeptFile>(path, [this, path](std::string content) {
                const std::size_t at = content.find("    \"" + unit_name(2));
                content.erase(at, content.find("\n    \"", at) + 1 - at);   // up to the next file
                put(path, content);
            });
        }
        auto file = inner_.create(path);
        const bool synced = is_manifest                     ? mutation_ != Mutation::manifest_not_synced
                            : path.ends_with("safetensors") ? mutation_ != Mutation::tensors_not_synced
                                                            : mutation_ != Mutation::small_files_not_synced;
        return synced ? std::move(file) : std::make_unique<UnsyncedFile>(std::move(file));
    }
    void rename(const std::string& from, const std::string& to) override {
        removes_ = to.ends_with(".old");
        if (removes_ && mutation_ == Mutation::deleted_in_place) return inner_.remove_all(from);
        inner_.rename(from, to);
        if (!late_manifest_.empty()) put(to + "/manifest.json", std::exchange(late_manifest_, ""));
    }
    void sync_folder(const std::string& path) override {
        const Mutation left_out = path.ends_with(".tmp") ? Mutation::temporary_folder_not_synced
                                  : removes_             ? Mutation::old_name_not_synced
                                                         : Mutation::new_name_not_synced;
        if (mutation_ != left_out) inner_.sync_folder(path);
    }

private:
    struct KeptFile : File {
        KeptFile(std::string its_path, std::function<void(const std::string&)> its_end)
            : name(std::move(its_path)), end(std::move(its_end)) {}
        const std::string& path() const override { return name; }
        std::uint64_t size() const override { return content.size(); }
        void read_at(std::uint64_t, std::span<std::byte>) const override {}
        void write(std::span<const std::byte> bytes) override {
            content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        }
        void sync() override { end(content); }
        std::string name, content;
        std::function<void(const std::string&)> end;
    };
    struct UnsyncedFile : File {
        explicit UnsyncedFile(std::unique_ptr<File> its_inner) : inner(std::move(its_inner)) {}
        const std::string& path() const override { return inner->path(); }
        std::uint64_t size() const override { return inner->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { inner->read_at(offset, into); }
        void write(std::span<const std::byte> bytes) override { inner->write(bytes); }
        void sync() override {}
        std::unique_ptr<File> inner;
    };
    void put(const std::string& path, const std::string& content) {
        const auto file = inner_.create(path);
        file->write(bytes_of(content));
        file->sync();
    }

    Mutation mutation_;
    std::string late_manifest_;
    bool removes_ = false;
};

struct Saved {
    std::uint64_t operations = 0;   // that were begun
    bool told = false;              // rank 0 knows that it is saved
};

// A writer's remaining work, piece by piece.
using Script = std::vector<std::function<void()>>;

void add_unit(Script& script, CheckpointWriter& checkpoint, int step, int unit) {
    auto content = std::make_shared<std::string>(content_of(step, unit));
    auto file = std::make_shared<std::optional<SafetensorsWriter>>();
    auto add = [&](auto&& work) { script.emplace_back([&checkpoint, work] { checkpoint.attempt(work); }); };
    add([&checkpoint, content, file, unit] {
        const auto bytes = static_cast<std::int64_t>(content->size());
        file->emplace(checkpoint.create(unit_name(unit), {{"t", TensorType::U8, {bytes}}}, {}));
    });
    add([content, file] { (*file)->write(bytes_of(*content).first(50)); });
    add([content, file] { (*file)->write(bytes_of(*content).subspan(50)); });
    add([file] { (*file)->finish(); });
}

// Calls that change the disk until the fault, and what happens then.
std::function<double(const char*, const std::string&)> faults(std::uint64_t& operations, std::uint64_t at,
                                                              Fault fault) {
    auto killed = std::make_shared<bool>(false), full = std::make_shared<bool>(false);
    return [=, &operations](const char* call, const std::string& path) -> double {
        const bool hit = operations++ == at, is_write = std::string(call) == "write";
        *full |= hit && fault == Fault::no_space;
        *killed |= hit && (fault == Fault::kill || fault == Fault::power);
        if (*killed) throw Killed();
        if (hit && fault == Fault::tear && is_write) return 0.5;
        const bool takes_space = is_write || std::string(call) == "create" || std::string(call) == "mkdir";
        if ((*full && takes_space) || (hit && fault != Fault::none)) {
            throw Error(ErrorKind::io, text(path, ": ", call, " failed"));
        }
        return 1;
    };
}

// A save by all writers in an order drawn from the seed, of which operation `at` meets the fault. Checkpoints but the
// newest are then removed.
Saved save(SimulatedDisk& disk, int step, std::uint64_t seed, std::uint64_t at = UINT64_MAX, Fault fault = Fault::none,
           Mutation mutation = Mutation::none) {
    Saved result;
    disk.before = faults(result.operations, at, fault);
    WriterFiles files(disk, mutation);
    std::vector<std::unique_ptr<CheckpointWriter>> writers;
    std::vector<Script> scripts(kWriters);
    std::size_t left = 0;
    for (int rank = 0; rank < kWriters; rank++) {
        CheckpointWriter& own = *writers.emplace_back(std::make_unique<CheckpointWriter>(
            files, kFolder, step,
            CheckpointRanks{rank, kWriters, [](const std::string& said) { return std::vector{said}; }}));
        Script& script = scripts[static_cast<std::size_t>(rank)];
        for (int unit = rank; unit < kUnits; unit += kWriters) add_unit(script, own, step, unit);
        for (const char* name : {"config.json", "run.json"}) {
            if (rank > 0) continue;
            script.emplace_back(
                [&own, name, step] { own.attempt([&] { own.write(name, text(name, " ", small_content, step)); }); });
        }
        left += script.size();
    }
    auto commit = [&] {
        std::vector<std::string> shares;
        for (const auto& writer : writers) shares.push_back(writer->share());
        writers[0]->commit(shares);
    };
    std::uint64_t draws = 0;
    std::vector<std::size_t> done(kWriters);
    for (const std::size_t early = mutation == Mutation::no_barrier ? 1 + mix64(seed) % left : 0; left > 0;) {
        if (left == early) commit();
        const std::size_t writer = mix64(seed ^ (++draws << 20)) % kWriters;
        if (done[writer] == scripts[writer].size()) continue;
        scripts[writer][done[writer]++]();
        left--;
    }
    if (mutation != Mutation::no_barrier) commit();
    result.told = writers[0]->outcome().empty();
    if (result.told) {
        try {
            prune_checkpoints(files, kFolder, step, {1});
        } catch (const std::exception&) {
            // the disk is checked below
        }
    }
    writers.clear();
    disk.before = nullptr;
    return result;
}

// The step of a checkpoint, or what is wrong with it though it verifies.
std::string judge(const FileSystem& disk, const FoundCheckpoint& found) {
    for (int unit = 0; unit < kUnits; unit++) {
        const std::string path = found.path + "/" + unit_name(unit);
        if (!disk.exists(path)) return path + " is missing";
        const SafetensorsFile file(disk, path);
        std::string content(file.entry("t").bytes(), ' ');
        file.read(file.entry("t"), 0, std::as_writable_bytes(std::span(content)));
        if (content != content_of(found.step, unit)) return path + " has another content";
    }
    for (const char* name : {"config.json", "run.json"}) {
        if (read_whole(disk, found.path + "/" + name) != text(name, " ", small_content, found.step)) return name;
    }
    return "";
}

// Returns the damage on the disk after a save of step kNew; empty: none.
std::string loss(SimulatedDisk& disk, const Saved& saved) {
    std::vector<PassedOver> passed_over;
    const auto found = newest_checkpoint(disk, kFolder, passed_over);
    for (int step : list_checkpoints(disk, kFolder)) {
        const std::string damage = find_damage(disk, kFolder + "/" + checkpoint_name(step));
        if (!damage.empty()) return "damaged under its name: " + damage;
    }
    if (!found) return "no checkpoint is left";
    if (found->step != kNew && (found->step != kOld || saved.told)) return text("step ", found->step, " is the newest");
    if (const std::string wrong = judge(disk, *found); !wrong.empty()) return wrong;
    if (found->step == kNew) {   // a byte that changes later is noticed
        for (const std::string& name : disk.list(found->path)) {
            const auto damaged = disk.copy();
            const std::string path = found->path + "/" + name;
            std::string content = read_whole(disk, path);
            content[content.size() / 2] ^= 1;
            damaged->create(path)->write(bytes_of(content));
            const auto other = newest_checkpoint(*damaged, kFolder, passed_over);
            if (name != "manifest.json" && other && other->step == kNew) return name + " can change";
        }
    }
    remove_unfinished_checkpoints(disk, kFolder);
    for (const std::string& name : disk.list(kFolder)) {
        if (name.ends_with(".tmp") || name.ends_with(".old")) return name + " stays";
    }
    return "";
}

// All faults at every `stride`-th operation of a save in one interleaving. What is lost, in words, up to the first.
std::optional<std::string> try_all(std::uint64_t seed, std::uint64_t stride, Mutation mutation, int* points = nullptr) {
    SimulatedDisk origin;
    origin.make_folders(kFolder);
    origin.sync_folder("");
    for (int step : {kOldest, kOld}) save(origin, step, seed);
    const std::uint64_t operations = save(*origin.copy(), kNew, seed, UINT64_MAX, Fault::none, mutation).operations;
    REQUIRE(operations > 30);
    for (std::uint64_t at = seed % stride; at <= operations; at += stride) {   // the last one is not met
        for (Fault fault : kFaults) {
            auto disk = origin.copy();
            const Saved saved = save(*disk, kNew, seed, at, fault, mutation);
            if (fault == Fault::power) disk = disk->after_power_loss(mix64(seed) + at);
            std::string wrong = loss(*disk, saved);
            if (wrong.empty() && mutation == Mutation::none) {   // and the run goes on
                std::vector<PassedOver> passed_over;
                save(*disk, kNext, seed + 1);
                const auto next = newest_checkpoint(*disk, kFolder, passed_over);
                if (!next || next->step != kNext || !judge(*disk, *next).empty()) wrong = "the next save is lost";
            }
            if (points) ++*points;
            if (!wrong.empty())
                return text("seed ", seed, ", operation ", at, ", fault ", static_cast<int>(fault), ": ", wrong);
        }
    }
    return std::nullopt;
}

void check_crash_points(int seeds, std::uint64_t stride, int least) {
    int points = 0;
    for (int seed = 0; seed < seeds; seed++) {
        const auto lost = try_all(static_cast<std::uint64_t>(seed), stride, Mutation::none, &points);
        CHECK_MESSAGE(!lost, lost.value_or(""));
    }
    MESSAGE(points << " points");
    CHECK(points >= least);
}

// By one writer; the files of units are those of the checkpoint `linked`, unless empty.
void save_alone(FileSystem& files, const std::string& folder, int step, const std::string& linked) {
    CheckpointWriter own(files, folder, step);
    Script script;
    if (linked.empty()) {
        for (int unit = 0; unit < kUnits; unit++) add_unit(script, own, step, unit);
        script.emplace_back(
            [&] { own.attempt([&] { own.write("config.json", text("config.json ", small_content, step)); }); });
    } else {
        script.emplace_back([&] { own.attempt([&] { own.link_files(linked, {"run.json"}); }); });
    }
    script.emplace_back([&] { own.attempt([&] { own.write("run.json", text("run.json ", small_content, step)); }); });
    for (const auto& piece : script) piece();
    own.finish();
}

}   // namespace

TEST_CASE("crash points: no operation can lose a run, nor the best state, where a checkpoint shares its files") {
    SimulatedDisk origin;
    origin.make_folders(kFolder + "/best");
    origin.sync_folder("");
    origin.sync_folder(kFolder);
    save(origin, kOld, 1);
    const FoundCheckpoint best{kNew, kFolder + "/best/" + checkpoint_name(kNew)};
    save_alone(origin, kFolder + "/best", kNew, "");
    std::uint64_t operations = UINT64_MAX;
    for (std::uint64_t at = 0; at <= operations; at++) {
        for (Fault fault : kFaults) {
            CAPTURE(at);
            CAPTURE(static_cast<int>(fault));
            auto disk = origin.copy();
            Saved saved;
            disk->before = faults(saved.operations, at, fault);
            try {
                save_alone(*disk, kFolder, kNew, best.path);
                saved.told = true;
            } catch (const std::exception&) {
                // the disk is checked below
            }
            disk->before = nullptr;
            if (saved.told) operations = std::min(operations, saved.operations);
            if (fault == Fault::power) disk = disk->after_power_loss(mix64(at));
            CHECK(loss(*disk, saved) == "");
            CHECK(find_damage(*disk, best.path) == "");
            CHECK(judge(*disk, best) == "");
        }
    }
    CHECK(operations > 10);
    // and either may be removed without the other
    save_alone(origin, kFolder, kNew, best.path);
    remove_checkpoint(origin, kFolder + "/best", kNew);
    CHECK(judge(origin, {kNew, kFolder + "/" + checkpoint_name(kNew)}) == "");
    CHECK(origin.list(kFolder + "/best").empty());
}

namespace {

// A run that resumes, saves step kNew, and prunes to one checkpoint.
void resume_and_save(SimulatedDisk& disk) {
    remove_unfinished_checkpoints(disk, kFolder);
    std::vector<PassedOver> passed_over;
    const auto found = newest_checkpoint(disk, kFolder, passed_over);
    if (!found) return;   // nothing is touched: the disk is checked afterwards
    set_aside(disk, kFolder, passed_over, Log(false));
    if (found->step < kNew) save_alone(disk, kFolder, kNew, "");
    prune_checkpoints(disk, kFolder, kNew, {1, 0, found->step});
}

// Returns what is lost of the run, empty: nothing. Its damaged checkpoints stay too, under one name or another.
std::string loss_beside_damaged(const SimulatedDisk& disk, bool told) {
    std::vector<PassedOver> passed_over;
    const auto found = newest_checkpoint(disk, kFolder, passed_over);
    if (!found) return "no checkpoint is left";
    if (found->step != kNew && (found->step != kOld || told)) return text("step ", found->step, " is the newest");
    if (const std::string wrong = judge(disk, *found); !wrong.empty()) return wrong;
    int damaged = 0;
    for (const std::string& name : disk.list(kFolder)) {
        const bool is_one = name.starts_with(checkpoint_name(kDamaged)) || name.starts_with(checkpoint_name(kEmpty));
        if (is_one && disk.exists(kFolder + "/" + name)) damaged++;
    }
    return damaged == 2 ? "" : "a damaged checkpoint is gone";
}

}   // namespace

TEST_CASE("crash points: no operation of a run that resumes beside damaged checkpoints can lose a good one") {
    SimulatedDisk origin;
    origin.make_folders(kFolder + "/" + checkpoint_name(kEmpty));
    origin.sync_folder("");
    for (int step : {kOld, kDamaged}) save_alone(origin, kFolder, step, "");
    origin.create(kFolder + "/" + checkpoint_name(kDamaged) + "/" + unit_name(1))->write(bytes_of("torn"));
    std::uint64_t operations = UINT64_MAX;
    for (std::uint64_t at = 0; at <= operations; at++) {
        for (Fault fault : kFaults) {
            CAPTURE(at);
            CAPTURE(static_cast<int>(fault));
            auto disk = origin.copy();
            std::uint64_t begun = 0;
            bool told = false;
            disk->before = faults(begun, at, fault);
            try {
                resume_and_save(*disk);
                told = true;
                operations = std::min(operations, begun);
            } catch (const std::exception&) {
                // the disk is checked below
            }
            disk->before = nullptr;
            if (fault == Fault::power) disk = disk->after_power_loss(mix64(at));
            CHECK(loss_beside_damaged(*disk, told) == "");
            resume_and_save(*disk);   // and the run goes on
            CHECK(loss_beside_damaged(*disk, true) == "");
            CHECK(list_checkpoints(*disk, kFolder).back() == kNew);
        }
    }
    CHECK(operations > 30);
}

TEST_CASE("crash points: no operation of a save by four writers can lose a run") { check_crash_points(5, 1, 1000); }
TEST_CASE("crash points: the same in 40 interleavings" * doctest::skip()) { check_crash_points(40, 1, 10000); }

TEST_CASE("crash points: each rule of the protocol, broken alone, loses a run") {
    for (const auto& [mutation, what] : kMutations) {
        const std::string& name = what;
        CAPTURE(name);
        std::optional<std::string> lost;
        for (std::uint64_t seed = 0; !lost && seed < 6; seed++) lost = try_all(seed, 1, mutation);
        CHECK(lost.has_value());
        if (lost) MESSAGE(name << ": " << *lost);
    }
}
