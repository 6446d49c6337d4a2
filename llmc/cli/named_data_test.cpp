#include "llmc/cli/named_data.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("named data: by the folder's name, by a part of it, and what is said where that is none or several") {
    TemporaryFolder root;
    for (const char* folder : {"local", "fineweb10B", "edu_fineweb10B", "tinyshakespeare", "empty"}) {
        real_files().make_folders(root / folder);
        if (std::string(folder) == "empty") continue;
        write_whole(real_files(), root / (std::string(folder) + "/tiny_train_000000.bin"), "");
    }
    auto find = [&](const std::string& name) { return find_named_data(name, "train", root.path()); };
    auto complaint = [&](const std::string& name) -> std::string {
        try {
            find(name);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::usage);
            return error.what();
        }
        return "";
    };
    CHECK(find("local") == root / "local/");
    CHECK(find("shakespeare") == root / "tinyshakespeare/");
    CHECK(find("edu") == root / "edu_fineweb10B/");
    CHECK(find("fineweb10B") == root / "fineweb10B/");   // the whole name wins
    CHECK(find(root / "local") == root / "local/");
    CHECK(find(root / "local/") == root / "local/");
    CHECK(find("local:0.7,edu:0.3") == root / "local/:0.7," + (root / "edu_fineweb10B/:0.3"));
    CHECK(complaint("fineweb").find("could be each of") != std::string::npos);
    CHECK(complaint("empty").find("no training shards") != std::string::npos);
    CHECK(complaint("wikipedia").find("there are: edu_fineweb10B, fineweb10B, local, tinyshakespeare.") !=
          std::string::npos);
    CHECK(complaint("").find("no training shards") != std::string::npos);
    CHECK(complaint("no/such").find("no training shards in no/such") != std::string::npos);
}

TEST_CASE("named data: a folder of that name in the working folder is pointed at") {
    TemporaryFolder root;
    const std::string here = std::filesystem::current_path().string();
    real_files().make_folders(root / "own");
    real_files().make_folders(root / "data");
    const std::shared_ptr<void> at_end(nullptr, [&](void*) { std::filesystem::current_path(here); });
    std::filesystem::current_path(root.path());
    for (const auto& [name, is_told] : {std::pair("own", true), std::pair("other", false), std::pair("./own", false)}) {
        CAPTURE(name);
        try {
            find_named_data(name, "train");
            FAIL("found");
        } catch (const Error& error) {
            CHECK((error.hint().find("For the folder ./own give --data ./own.") != std::string::npos) == is_told);
        }
    }
}

TEST_CASE("named data: a folder that is there is meant, whatever signs are in its name") {
    TemporaryFolder root;
    const std::vector<std::string> names{"run[1]", "[D_DATA]", "back\\slash", "a*b",
                                         "a?b",    "{x,y}",    "web:1",       "web:1,b:2"};
    for (const std::string& name : names) {
        real_files().make_folders(root / name);
        write_whole(real_files(), root / name + "/train_000000.bin", "");
    }
    for (const std::string& name : names) {
        CAPTURE(name);
        CHECK(find_named_data(root / name, "train") == root / name + "/");
        CHECK(find_named_data(name, "train", root.path()) == root / name + "/");
    }
}

TEST_CASE("named data: what lies beside the folder may be anything, the folder itself not") {
    TemporaryFolder root;
    for (const char* folder : {"web", "mixed", "broken"}) real_files().make_folders(root / folder);
    write_whole(real_files(), root / "web/train_000000.bin", "");
    write_whole(real_files(), root / "mixed/pretrain_000000.bin", "");
    write_whole(real_files(), root / "broken/manifest.json", "{");
    CHECK(find_named_data("web", "train", root.path()) == root / "web/");
    for (const char* name : {"mixed", "broken"}) {
        try {
            find_named_data(name, "train", root.path());
            FAIL(name);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
        }
    }
}

TEST_CASE("named data: a broken or foreign folder is meant by a part of its name only where no sound one is") {
    TemporaryFolder root;
    for (const char* folder : {"web10B", "web_broken", "web_app", "code_broken", "notes_a", "notes_b"}) {
        real_files().make_folders(root / folder);
    }
    write_whole(real_files(), root / "web10B/train_000000.bin", "");
    write_whole(real_files(), root / "web_broken/manifest.json", "{");
    write_whole(real_files(), root / "web_app/manifest.json", R"({"name": "an app", "icons": []})");
    write_whole(real_files(), root / "code_broken/manifest.json", "[]");
    write_whole(real_files(), root / "notes_a/manifest.json", "");
    write_whole(real_files(), root / "notes_b/manifest.json", "1");
    auto find = [&](const std::string& name) { return find_named_data(name, "train", root.path()); };
    CHECK(find("web") == root / "web10B/");
    CHECK(find("web:0.7,10B:0.3") == root / "web10B/:0.7," + (root / "web10B/:0.3"));
    CHECK_THROWS_WITH_AS(find("code"), doctest::Contains("code_broken/manifest.json"), Error);
    CHECK_THROWS_WITH_AS(find("notes"), doctest::Contains("could be each of notes_a, notes_b"), Error);
    CHECK_THROWS_WITH_AS(find("wiki"), doctest::Contains("there are: web10B."), Error);
}

TEST_CASE("named data: shards of the split that is read are asked for") {
    TemporaryFolder root;
    for (const char* folder : {"alone", "web_train", "web_val"}) real_files().make_folders(root / folder);
    write_whole(real_files(), root / "alone/val_000000.bin", "");
    write_whole(real_files(), root / "web_train/x_train_000000.bin", "");
    write_whole(real_files(), root / "web_val/x_val_000000.bin", "");
    CHECK(find_named_data(root / "alone", "val") == root / "alone/");
    CHECK(find_named_data("alone", "val", root.path()) == root / "alone/");
    CHECK(find_named_data("web", "val", root.path()) == root / "web_val/");
    CHECK(find_named_data("web", "train", root.path()) == root / "web_train/");
    CHECK_THROWS_WITH_AS(find_named_data(root / "alone", "train"), doctest::Contains("no training shards"), Error);
    CHECK_THROWS_WITH_AS(find_named_data("web_train", "val", root.path()), doctest::Contains("no validation shards in"),
                         Error);
}
