#include "llmc/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/hash.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

void write_checkpoint(FileSystem& files, const std::string& folder, int step, const std::string& content) {
    CheckpointWriter writer(files, folder, step);
    writer.write("config.json", "{}");
    {
        std::unique_ptr<File> file = writer.create("state.bin");
        file->write(bytes_of(content.substr(0, 3)));   // in pieces
        file->write(bytes_of(content.substr(3)));
        file->sync();
    }
    writer.finish();
}

std::optional<int> newest(const std::string& folder, std::string* why = nullptr) {
    std::vector<PassedOver> passed_over;
    auto found = newest_checkpoint(real_files(), folder, passed_over);
    if (why != nullptr) {
        for (const PassedOver& one : passed_over) *why += one.damage + "\n";
    }
    return found ? std::optional(found->step) : std::nullopt;
}

}   // namespace

TEST_CASE("checkpoint: the newest is found and verifies; other names are left alone") {
    TemporaryFolder folder;
    CHECK(!newest(folder / "missing"));
    CHECK(!newest(folder.path()));
    for (int step : {7, 100, 14})
        write_checkpoint(real_files(), folder.path(), step, "state of " + std::to_string(step));
    real_files().make_folders(folder / "step_7");
    real_files().make_folders(folder / "step_00000200x");
    CHECK(list_checkpoints(real_files(), folder.path()) == std::vector<int>{7, 14, 100});
    CHECK(newest(folder.path()) == 100);
    CHECK(read_whole(real_files(), folder / "step_00000100/state.bin") == "state of 100");

    write_checkpoint(real_files(), folder.path(), 100, "again");   // replaces
    CHECK(read_whole(real_files(), folder / "step_00000100/state.bin") == "again");
    CHECK(newest(folder.path()) == 100);
}

TEST_CASE("checkpoint: one that was damaged is passed over, with the reason") {
    struct Damage {
        const char* file;
        const char* content;   // null: removed
        const char* reason;
    };
    const Damage damages[] = {
        {"state.bin", "state 0f 14", "state.bin: hash "},
        {"state.bin", "state", "state.bin: 5 bytes, manifest.json says 11"},
        {"state.bin", nullptr, "state.bin: missing; manifest.json names it"},
        {"manifest.json", nullptr, "no readable manifest"},
        {"manifest.json", "{\"format\":", "not a manifest"},
        {"manifest.json", "{}", "manifest.json"},
        {"manifest.json", "{\"format\":\"train_gpt checkpoint\",\"version\":1}", "version 1, expected 3"},
    };
    for (const Damage& damage : damages) {
        TemporaryFolder folder;
        write_checkpoint(real_files(), folder.path(), 7, "state of 7");
        write_checkpoint(real_files(), folder.path(), 14, "state of 14");
        const std::string file = folder / "step_00000014/" + damage.file;
        if (damage.content == nullptr) {
            real_files().remove_all(file);
        } else {
            write_whole(real_files(), file, damage.content);
        }
        std::string why;
        CHECK(newest(folder.path(), &why) == 7);
        CAPTURE(why);
        CHECK(why.find(damage.reason) != std::string::npos);
        CHECK(why.find("step_00000014") != std::string::npos);
    }
}

namespace {

// A checkpoint of step 7 with tensors.
void write_tensors(const std::string& folder) {
    CheckpointWriter writer(real_files(), folder, 7);
    for (const char* name : {"config.json", "run.json", "model.safetensors.index.json"}) writer.write(name, "{}");
    const float values[3] = {};
    for (const char* name : {"model-1.safetensors", "optimizer-1.safetensors"}) {
        SafetensorsWriter file = writer.create(name, {{"a", TensorType::F32, {2, 1}}, {"b", TensorType::I32, {1}}}, {});
        file.write_values(std::span<const float>(values));
        file.finish();
    }
    writer.finish();
}

}   // namespace

TEST_CASE("checkpoint: a manifest that does not list what is there, or other tensors, is damaged") {
    TemporaryFolder folder;
    write_tensors(folder.path());
    const std::string path = folder / "step_00000007", file = path + "/manifest.json";
    auto why_not = [&](CheckpointUse use) { return find_damage(real_files(), path, use); };
    CHECK(why_not(CheckpointUse::resume) == "");
    for (const char* beside : {"tokenizer.json", "README.md", ".notes"})
        write_whole(real_files(), path + "/" + beside, "x");
    CHECK(why_not(CheckpointUse::resume) == "");

    const Json sound = parse_json(read_whole(real_files(), file));
    auto write_files = [&](const Json& listed) {
        const Json manifest =
            Json::object({{"format", sound.at("format")}, {"version", 3}, {"step", 7}, {"files", listed}});
        write_whole(real_files(), file, to_text(manifest));
    };
    write_files(Json::object());
    for (const CheckpointUse use : {CheckpointUse::resume, CheckpointUse::model, CheckpointUse::any_model})
        CHECK(why_not(use).find("manifest.json: it does not list config.json, which is there") != std::string::npos);
    for (const auto& [left_out, unused] : sound.at("files").members()) {
        Json listed = Json::object();
        for (const auto& [name, record] : sound.at("files").members()) {
            if (name != left_out) listed.add(name, record);
        }
        write_files(listed);
        CHECK(why_not(CheckpointUse::resume).find("it does not list " + left_out) != std::string::npos);
        CHECK((why_not(CheckpointUse::model) == "") == left_out.starts_with("optimizer-"));
    }

    const std::string content = to_text(sound);
    const char* changes[][3] = {
        {"[2,1]", "[1,2]",
         "tensor a: {\"dtype\":\"F32\",\"shape\":[2,1]}, manifest.json says {\"dtype\":\"F32\",\"shape\":[1,2]}"},
        {"I32", "F32", "tensor b: {\"dtype\":\"I32\",\"shape\":[1]}, manifest.json says {\"dtype\":\"F32\""},
        {"\"b\":", "\"c\":", "tensor b: {\"dtype\":\"I32\",\"shape\":[1]}, manifest.json says nothing of it"},
        {"\"tensors\":{", "\"tensors\":{\"c\":{},", "model-1.safetensors: no tensor c; manifest.json names it"}};
    for (const auto& [from, to, message] : changes) {
        std::string changed = content;
        REQUIRE(changed.find(from) != std::string::npos);
        write_whole(real_files(), file, changed.replace(changed.find(from), std::string_view(from).size(), to));
        const std::string why = why_not(CheckpointUse::resume);
        INFO(why);
        CHECK(why.find(message) != std::string::npos);
    }
}

TEST_CASE("checkpoint: a model is read from an intact one only, of any name, with or without what a run resumes from") {
    TemporaryFolder folder;
    const std::string path = folder / "copy";
    auto why_not = [&] { return find_damage(real_files(), path, CheckpointUse::any_model); };
    CheckpointWriter writer(real_files(), folder.path(), 7);
    for (const char* name : {"config.json", "model.safetensors", "optimizer-1.safetensors"}) writer.write(name, name);
    writer.finish();
    real_files().rename(folder / "step_00000007", path);
    CHECK(why_not() == "");
    write_whole(real_files(), path + "/optimizer-1.safetensors", "optimizer-2.safetensors");
    CHECK(why_not() == "");
    write_whole(real_files(), path + "/model.safetensors", "model,safetensors");
    CHECK(why_not().find("copy/model.safetensors: hash ") != std::string::npos);

    real_files().remove_all(path + "/manifest.json");
    CHECK(why_not() == "");   // a folder of another program
    std::filesystem::create_symlink("nowhere", path + "/manifest.json");
    CHECK(why_not().find("no readable manifest") != std::string::npos);
}

TEST_CASE("checkpoint: hashes have 128 bits; a manifest of another version is damaged") {
    TemporaryFolder folder;
    write_checkpoint(real_files(), folder.path(), 7, "content");
    const std::string manifest = folder / "step_00000007/manifest.json";
    std::string content = read_whole(real_files(), manifest);
    const std::size_t hash = content.find("\"xxh3_128\": \"");
    REQUIRE(hash != std::string::npos);
    CHECK(content.find('"', hash + 13) == hash + 13 + 32);
    const std::size_t version = content.find("\"version\": 3");
    REQUIRE(version != std::string::npos);
    content[version + 11] = '2';
    write_whole(real_files(), manifest, content);
    CHECK(!newest(folder.path()).has_value());
}

TEST_CASE("checkpoint: what a resumed run passes over is set aside, and pruning takes nothing that is good") {
    const std::pair<const char*, void (*)(const std::string&)> damages[] = {
        {"a damaged file", [](const std::string& path) { std::filesystem::resize_file(path + "/state.bin", 1); }},
        {"an empty folder",
         [](const std::string& path) {
             std::filesystem::remove_all(path);
             std::filesystem::create_directory(path);
         }},
        {"a file",
         [](const std::string& path) {
             std::filesystem::remove_all(path);
             write_whole(real_files(), path, "mine");
         }},
        {"a link that leads nowhere", [](const std::string& path) {
             std::filesystem::remove_all(path);
             std::filesystem::create_symlink("nowhere", path);
         }}};
    const Log silent(false);
    for (const auto& [what, damage] : damages) {
        for (int keep : {1, 2}) {
            CAPTURE(what);
            CAPTURE(keep);
            TemporaryFolder folder;
            for (int step : {20, 30, 40, 50}) write_checkpoint(real_files(), folder.path(), step, "state");
            for (int step : {40, 50}) damage(folder / checkpoint_name(step));
            std::vector<PassedOver> passed_over;
            const auto found = newest_checkpoint(real_files(), folder.path(), passed_over);
            REQUIRE(found);
            CHECK(found->step == 30);
            CHECK(passed_over.size() == 2);
            set_aside(real_files(), folder.path(), passed_over, silent);
            const std::vector<std::string> names = real_files().list(folder.path());
            CHECK(std::ranges::count(names, "step_00000040.damaged") == 1);
            CHECK(std::ranges::count(names, "step_00000050.damaged") == 1);
            for (int step : {36, 40, 44}) {   // also where the damaged one was
                write_checkpoint(real_files(), folder.path(), step, "new");
                prune_checkpoints(real_files(), folder.path(), step, {keep, 0, 30});
                CHECK(newest(folder.path()) == step);
            }
            CHECK(list_checkpoints(real_files(), folder.path()) ==
                  (keep == 1 ? std::vector<int>{30, 44} : std::vector<int>{30, 40, 44}));

            // and another of the same name
            damage(folder / checkpoint_name(44));
            real_files().rename(folder / checkpoint_name(44), folder / checkpoint_name(50));
            set_aside(real_files(), folder.path(), {{50, "damage"}}, silent);
            CHECK(std::ranges::count(real_files().list(folder.path()), "step_00000050.damaged-2") == 1);
        }
    }
}

TEST_CASE("checkpoint: entries that are no checkpoints, and later ones, do not count for pruning") {
    TemporaryFolder folder;
    for (int step : {10, 20, 30, 90}) write_checkpoint(real_files(), folder.path(), step, "state");
    for (int step : {25, 80}) real_files().make_folders(folder / checkpoint_name(step));
    prune_checkpoints(real_files(), folder.path(), 30, {2});
    CHECK(list_checkpoints(real_files(), folder.path()) == std::vector<int>{20, 25, 30, 80, 90});
}

TEST_CASE("checkpoint: a link that leads nowhere is replaced where a checkpoint is due") {
    TemporaryFolder folder;
    std::filesystem::create_symlink("nowhere", folder / "step_00000014");
    write_checkpoint(real_files(), folder.path(), 14, "state of 14");
    CHECK(newest(folder.path()) == 14);
    CHECK(real_files().list(folder.path()).size() == 1);
}

namespace {

// A run beside: it saves step 50 and prunes step 40 when somebody opens a file of that.
class PrunedBeside : public ForwardingFiles {
public:
    explicit PrunedBeside(std::string folder) : ForwardingFiles(real_files()), folder_(std::move(folder)) {}
    std::unique_ptr<File> open(const std::string& path) const override {
        if (path.find("step_00000040/state.bin") != std::string::npos) {
            write_checkpoint(real_files(), folder_, 50, "state of 50");
            prune_checkpoints(real_files(), folder_, 50, {1});
        }
        return inner_.open(path);
    }

private:
    std::string folder_;
};

}   // namespace

TEST_CASE("checkpoint: the newest is found while a run beside saves and prunes") {
    TemporaryFolder folder;
    for (int step : {30, 40}) write_checkpoint(real_files(), folder.path(), step, "state");
    std::vector<PassedOver> passed_over;
    const auto found = newest_checkpoint(PrunedBeside(folder.path()), folder.path(), passed_over);
    REQUIRE(found);
    CHECK(found->step == 50);
    CHECK(passed_over.empty());
}

TEST_CASE("checkpoint: one that its run prunes while it is read is replaced by the next; other failures stay") {
    TemporaryFolder folder;
    for (int step : {30, 40}) write_checkpoint(real_files(), folder.path(), step, "state");
    const std::string first = folder / "step_00000030", second = folder / "step_00000040";
    std::vector<std::string> read;
    const auto fails = [&](const std::string& path) {
        read.push_back(path);
        if (path == first) real_files().remove_all(path);
        if (path == first) throw Error(ErrorKind::io, "open failed");
    };
    CHECK(read_while_there(real_files(), first, {}, fails, [&] { return second; }) == second);
    CHECK(read == std::vector{first, second});
    const auto damaged = [](const std::string&) { throw Error(ErrorKind::bad_data, "damaged"); };
    CHECK_THROWS_WITH_AS(read_while_there(real_files(), second, {}, damaged, [&] { return first; }), "damaged", Error);
    // another rank has failed: this one reads again, too
    int meetings = 0;
    const CheckpointRanks ranks{0, 2, [&](const std::string& own) {
                                    return std::vector<std::string>{own, meetings++ == 0 ? "gone" : ""};
                                }};
    read.clear();
    read_while_there(
        real_files(), second, ranks, [&](const std::string& path) { read.push_back(path); }, [&] { return second; });
    CHECK(read.size() == 2);
}

TEST_CASE("checkpoint: a copy under another name is not taken for that step") {
    TemporaryFolder folder;
    write_checkpoint(real_files(), folder.path(), 7, "state of 7");
    real_files().rename(folder / "step_00000007", folder / "step_00000008");
    std::string why;
    CHECK(!newest(folder.path(), &why));
    CHECK(why.find("it says step 7") != std::string::npos);
    for (const CheckpointUse use : {CheckpointUse::model, CheckpointUse::any_model}) {
        CHECK(find_damage(real_files(), folder / "step_00000008/", use).find("it says step 7") != std::string::npos);
    }
}

TEST_CASE("checkpoint: whatever operation fails, the newest that verifies is the old one or the new one") {
    std::uint64_t operations = 0;
    {
        TemporaryFolder folder;
        FaultyFiles counter(real_files());
        write_checkpoint(counter, folder.path(), 14, "state of 14");
        operations = counter.operations();
    }
    REQUIRE(operations > 10);
    for (FileFault fault : {FileFault::fail, FileFault::tear, FileFault::stop}) {
        for (std::uint64_t at = 0; at < operations; at++) {
            TemporaryFolder folder;
            write_checkpoint(real_files(), folder.path(), 7, "state of 7");
            FaultyFiles faulty(real_files(), at, fault);
            CHECK_THROWS_AS(write_checkpoint(faulty, folder.path(), 14, "state of 14"), Error);
            const std::optional<int> found = newest(folder.path());
            CHECK((found == 7 || (found == 14 && at == operations - 1)));   // the last one syncs the folder of both

            remove_unfinished_checkpoints(real_files(), folder.path());
            for (const std::string& name : real_files().list(folder.path())) CHECK(!name.ends_with(".tmp"));
            write_checkpoint(real_files(), folder.path(), 14, "state of 14");   // the next attempt succeeds
            CHECK(newest(folder.path()) == 14);
        }
    }
}

namespace {

// Moves a folder before the operation of this number.
class MovingFiles : public ForwardingFiles {
public:
    MovingFiles(std::string from, std::string to, int at)
        : ForwardingFiles(real_files()), from_(std::move(from)), to_(std::move(to)), left_(at) {}
    std::unique_ptr<File> create(const std::string& path) override { return count(), inner_.create(path); }
    void rename(const std::string& from, const std::string& to) override { count(), inner_.rename(from, to); }
    void remove_all(const std::string& path) override { count(), inner_.remove_all(path); }
    void make_folders(const std::string& path) override { count(), inner_.make_folders(path); }
    void sync_folder(const std::string& path) override { count(), inner_.sync_folder(path); }
    bool has_moved() const { return left_ < 0; }

private:
    void count() {
        if (left_-- == 0) REQUIRE(::rename(from_.c_str(), to_.c_str()) == 0);
    }
    std::string from_, to_;
    int left_;
};

}   // namespace

TEST_CASE("checkpoint: before whatever operation its folder is moved, it is whole there and nothing is where it was") {
    int at = 0;
    for (bool moved = true; moved; at++) {
        INFO("operation ", at);
        TemporaryFolder folder;
        const std::string run = folder / "run", away = folder / "away";
        std::filesystem::create_directory(run);
        const HeldFolder held(run);
        MovingFiles files(run, away, at);
        write_checkpoint(files, run, 7, "state of 7");
        write_checkpoint(files, run, 14, "state of 14");
        write_checkpoint(files, run, 14, "another state of 14");   // replaces it
        moved = files.has_moved();
        CHECK(std::filesystem::exists(run) == !moved);
        const std::string now = moved ? away : run;
        CHECK(real_files().list(now) == std::vector<std::string>{"step_00000007", "step_00000014"});
        CHECK(newest(now) == 14);
        CHECK(read_whole(real_files(), now + "/step_00000014/state.bin") == "another state of 14");
    }
    CHECK(at > 20);
}

TEST_CASE("checkpoint: ranks that verify one together share its bytes, however the files are named") {
    TemporaryFolder folder;
    {
        CheckpointWriter writer(real_files(), folder.path(), 7);
        for (const char* name : {"a", "c"}) writer.write(name, std::string(1000, 'x'));
        for (const char* name : {"b", "d"}) writer.write(name, "small");
        writer.finish();
    }
    const std::string path = folder / "step_00000007";
    for (const char* name : {"a", "c"}) write_whole(real_files(), path + "/" + name, std::string(1000, 'y'));
    for (int rank : {0, 1}) CHECK(find_damage(real_files(), path, CheckpointUse::resume, {rank, 2}) != "");
}

TEST_CASE("checkpoint: retention keeps the newest and the major ones") {
    TemporaryFolder folder;
    for (int step = 5; step <= 40; step += 5) write_checkpoint(real_files(), folder.path(), step, "state");
    prune_checkpoints(real_files(), folder.path(), 40, {0, 10});
    CHECK(list_checkpoints(real_files(), folder.path()).size() == 8);
    prune_checkpoints(real_files(), folder.path(), 40, {2, 20});
    CHECK(list_checkpoints(real_files(), folder.path()) == std::vector<int>{20, 35, 40});
    prune_checkpoints(real_files(), folder.path(), 40, {1, 0, 20});
    CHECK(list_checkpoints(real_files(), folder.path()) == std::vector<int>{20, 40});
    prune_checkpoints(real_files(), folder.path(), 40, {1});
    CHECK(list_checkpoints(real_files(), folder.path()) == std::vector<int>{40});
}

TEST_CASE("checkpoint: how many more a folder will hold is what saving and pruning shows") {
    for (int every : {0, 2, 3, 5}) {
        for (int keep : {0, 1, 2, 4}) {
            for (int major : {0, 2, 6}) {
                for (int after : {0, 4, 9}) {
                    INFO("every ", every, ", keep ", keep, ", major ", major, ", after ", after);
                    TemporaryFolder folder;
                    std::vector<int> saved;
                    for (int step : {1, 2, 4, 6, 9}) {
                        if (step <= after) saved.push_back(step);
                    }
                    const Retention retention{keep, major, after};
                    auto make = [&](int step) {
                        const std::string path = folder / checkpoint_name(step);
                        real_files().make_folders(path);
                        real_files().create(path + "/manifest.json");
                    };
                    for (int step : saved) make(step);
                    std::size_t most = saved.size();
                    for (int step = after + 1; step <= 17; step++) {
                        if (step != 17 && (every == 0 || step % every != 0)) continue;
                        make(step);
                        most = std::max(most, list_checkpoints(real_files(), folder.path()).size());
                        prune_checkpoints(real_files(), folder.path(), step, retention);
                    }
                    CHECK(checkpoints_to_come(saved, 17, every, retention) == most - saved.size());
                }
            }
        }
    }
    CHECK(checkpoints_to_come({}, 2000000000, 1, {}) == 2000000000);
    CHECK(checkpoints_to_come({3}, 3, 1, {0, 0, 3}) == 0);
}
