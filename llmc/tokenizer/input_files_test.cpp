#include "llmc/tokenizer/input_files.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"

namespace fs = std::filesystem;

namespace {

struct Found {
    std::string files, passed_over;   // paths without the folder's
};

class Tree {
public:
    void file(const std::string& name) {
        fs::create_directories(fs::path(folder_ / name).parent_path());
        write_whole(real_files(), folder_ / name, "text");
    }
    void link(const std::string& to, const std::string& name) {
        fs::create_directories(fs::path(folder_ / name).parent_path());
        fs::create_symlink(to, folder_ / name);
    }
    std::string path(const std::string& name) const { return folder_ / name; }

    Found find(const std::string& input) const {
        InputFiles found;
        found.add(folder_ / input);
        std::string files;
        for (const std::string& file : found.files) files += file + ";";
        return {relative(files), relative(found.passed_over.summary())};
    }

private:
    std::string relative(std::string text) const {
        for (std::size_t at; (at = text.find(folder_.path() + "/")) != text.npos;)
            text.erase(at, folder_.path().size() + 1);
        return text;
    }
    TemporaryFolder folder_;
};

}   // namespace

TEST_CASE("input files: a folder is the files below it in the order of their paths, linked ones too") {
    Tree tree;
    for (const char* name : {"in/b.txt", "in/a/z.txt", "in/a.txt", "store/c.txt", "store/deep/d.txt", "one.txt"})
        tree.file(name);
    tree.link("../store", "in/linked");
    tree.link("../one.txt", "in/one.txt");
    CHECK(tree.find("in").files == "in/a.txt;in/a/z.txt;in/b.txt;in/linked/c.txt;in/linked/deep/d.txt;in/one.txt;");
    CHECK(tree.find("in").passed_over == "");
    CHECK(tree.find("in/linked").files == "in/linked/c.txt;in/linked/deep/d.txt;");
    CHECK(tree.find("in/").files.starts_with("in/a.txt;"));
    CHECK(tree.find("in/one.txt").files == "in/one.txt;");
}

TEST_CASE("input files: loops of links end, each folder is read once, and what is passed over is told") {
    Tree tree;
    for (const char* name : {"in/a/1.txt", "in/b/2.txt", "far/3.txt"}) tree.file(name);
    tree.link("..", "in/a/up");
    tree.link(".", "in/b/self");
    tree.link("../../far", "in/a/far");
    tree.link("../in", "far/back");
    CHECK(tree.find("in").files == "in/a/1.txt;in/a/far/3.txt;in/b/2.txt;");
    CHECK(tree.find("in").passed_over == "3 read already by another link (the first: in/a/far/back)");
    // every folder is linked from every other one: n! ways, n folders
    Tree all;
    for (int i = 0; i < 12; i++) {
        all.file(text("in/", i, "/text"));
        for (int j = 0; j < 12; j++) all.link(text("../", j), text("in/", i, "/to", j));
    }
    CHECK(std::ranges::count(all.find("in").files, ';') == 12);

    tree.link("loop", "in/loop");
    tree.link("nothing", "in/z");
    REQUIRE(mkfifo(tree.path("in/pipe").c_str(), 0600) == 0);
    CHECK(tree.find("in").files == "in/a/1.txt;in/a/far/3.txt;in/b/2.txt;");
    CHECK(tree.find("in").passed_over.find("2 leading nowhere (the first: in/loop)") != std::string::npos);
    CHECK(tree.find("in").passed_over.find("1 neither file nor folder (in/pipe)") != std::string::npos);
}

TEST_CASE("input files: what cannot be looked at ends the call, and is not taken for a link that leads nowhere") {
    Tree tree;
    for (const char* name : {"in/a.txt", "one.txt"}) tree.file(name);
    tree.link("../one.txt/below", "in/z");
    tree.link("nothing/below", "in/y");
    tree.link("y", "in/x");
    CHECK(tree.find("in").files == "in/a.txt;");
    CHECK(tree.find("in").passed_over == "3 leading nowhere (the first: in/x)");
    tree.link(std::string(300, 'n'), "in/b/long");
    CHECK_THROWS_WITH_AS(tree.find("in"), doctest::Contains("in/b/long: File name too long"), Error);
    CHECK_THROWS_WITH_AS(tree.find("in/b/long"), doctest::Contains("in/b/long: File name too long"), Error);
}

TEST_CASE("input files: what is hidden or a cache is passed over and counted, unless it is named itself") {
    Tree tree;
    for (const char* name :
         {"in/a.txt", "in/.git/HEAD", "in/.git/config", "in/.ipynb_checkpoints/a-checkpoint.txt", "in/.gitattributes",
          "in/.cache/huggingface/a.metadata", "in/b/.hidden", "in/b/__pycache__/b.pyc", "in/blobs/kept", "in/refs/kept",
          "hub/datasets--x/blobs/0123", "hub/datasets--x/refs/main", "hub/datasets--x/.no_exist/y"}) {
        tree.file(name);
    }
    tree.link("../../blobs/0123", "hub/datasets--x/snapshots/v1/a.jsonl");
    CHECK(tree.find("in").files == "in/a.txt;in/blobs/kept;in/refs/kept;");
    CHECK(tree.find("in").passed_over == "5 hidden (the first: in/.cache); 1 of caches (in/b/__pycache__)");
    CHECK(tree.find("in/.git").files == "in/.git/HEAD;in/.git/config;");
    CHECK(tree.find("in/.gitattributes").files == "in/.gitattributes;");
    CHECK(tree.find("in/b/__pycache__").files == "in/b/__pycache__/b.pyc;");
    CHECK(tree.find("hub").files == "hub/datasets--x/snapshots/v1/a.jsonl;");
    CHECK(tree.find("hub").passed_over ==
          "1 hidden (hub/datasets--x/.no_exist); 2 of caches (the first: hub/datasets--x/blobs)");
    CHECK_THROWS_WITH_AS(tree.find("in/b"),
                         doctest::Contains("no file in this folder but what is passed over: 1 hidden ("), Error);
    CHECK_THROWS_WITH_AS(tree.find("none"), doctest::Contains("no file or folder"), Error);
}

TEST_CASE("input files: what several inputs pass over is one sum") {
    PassedOver first, second;
    first.add("hidden", "a/.x");
    second.add("hidden", "b/.y");
    second.add("of caches", "b/__pycache__");
    first.add(second);
    CHECK(first.summary() == "2 hidden (the first: a/.x); 1 of caches (b/__pycache__)");
    CHECK(PassedOver().summary() == "");
}

TEST_CASE("input files: a list names inputs, and a shuffled order depends on the names alone") {
    Tree tree;
    for (const char* name : {"in/a", "in/b", "in/c", "in/d", "in/e", "one"}) tree.file(name);
    write_whole(real_files(), tree.path("list"), tree.path("in") + "\n\n" + tree.path("one"));
    InputFiles listed, other;
    listed.add_listed(tree.path("list"));
    CHECK(listed.files.size() == 6);
    CHECK(listed.files.back() == tree.path("one"));
    CHECK_THROWS_AS(listed.add_listed(tree.path("none")), Error);
    other.files.assign(listed.files.rbegin(), listed.files.rend());
    listed.shuffle();
    other.shuffle();
    CHECK(listed.files == other.files);
}
