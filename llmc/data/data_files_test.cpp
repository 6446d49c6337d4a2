#include "llmc/data/data_files.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/data/corpus/manifest.h"
#include "llmc/data/mixture.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

using Names = std::vector<std::string>;

void touch(const TemporaryFolder& folder, const Names& names) {
    for (const std::string& name : names) write_whole(real_files(), folder / name, "");
}

Names names_of(const std::vector<std::string>& paths) {
    Names names;
    for (const std::string& path : paths) names.push_back(path.substr(path.rfind('/') + 1));
    return names;
}

void list_in_manifest(const TemporaryFolder& folder, const Names& train, const Names& val) {
    CorpusManifest manifest;
    manifest.tokenizer_name = "bytes", manifest.vocab_size = 257, manifest.token_bytes = 2;
    for (const std::string& name : train) manifest.shards.push_back({name, "train", 3, 0});
    for (const std::string& name : val) manifest.shards.push_back({name, "val", 3, 0});
    write_manifest(manifest, folder.path());
}

std::string complaint(const std::string& flag, const std::string& pattern, ErrorKind kind) {
    try {
        data_files(flag, pattern);
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        return error.message();
    }
}

}   // namespace

TEST_CASE("data files: where nothing matches, the option and its pattern are named") {
    TemporaryFolder folder;
    CHECK(complaint("--train-data", folder / "*.bin", ErrorKind::io) ==
          text("--train-data ", folder.path(), "/*.bin: no file matches this pattern"));
    CHECK(find_data_files("--train-data", folder / "*.bin").empty());
    write_whole(real_files(), folder / "a.bin", "");
    CHECK(data_files("--train-data", folder / "*.bin").size() == 1);
    real_files().make_folders(folder / "b.bin");
    CHECK(complaint("--train-data", folder / "*.bin", ErrorKind::io) ==
          text("--train-data ", folder.path(), "/*.bin: ", folder.path(), "/b.bin: is a folder, expected a file"));
}

TEST_CASE("data files: a manifest says which shards of its folder are which, whatever their names") {
    for (const char* name : {"", "web_", "pretrain_", "constrained_", "train_", "eval_", "retrieval_", "val_"}) {
        TemporaryFolder folder;
        const std::string prefix = name;
        const Names train{prefix + "train_000000.bin", prefix + "train_000001.bin"}, val{prefix + "val_000000.bin"};
        touch(folder, train), touch(folder, val), touch(folder, {"tokenizer.bin", "old_train_000000.bin"});
        list_in_manifest(folder, train, val);
        CAPTURE(prefix);
        for (const std::string& asked : {folder.path(), folder.path() + "/"}) {
            CHECK(names_of(data_files("--train-data", asked)) == train);
            CHECK(names_of(data_files("--val-data", asked)) == val);
            CHECK(names_of(data_files("--train-data web", asked)) == train);   // a mixture's source
            CHECK(names_of(data_files("--val-data web", asked)) == val);
        }
    }
    TemporaryFolder exchanged;   // even so
    touch(exchanged, {"train_0.bin", "val_0.bin"});
    list_in_manifest(exchanged, {"val_0.bin"}, {"train_0.bin"});
    CHECK(names_of(data_files("--train-data", exchanged.path())) == Names{"val_0.bin"});
    CHECK(names_of(data_files("--val-data", exchanged.path())) == Names{"train_0.bin"});
}

TEST_CASE("data files: patterns mean what they say, beside a manifest too") {
    TemporaryFolder folder;
    touch(folder, {"train_0.bin", "val_0.bin"});
    list_in_manifest(folder, {"train_0.bin"}, {"val_0.bin"});
    CHECK(names_of(data_files("--val-data", folder / "*train*.bin")) == Names{"train_0.bin"});
    CHECK(names_of(data_files("--train-data", folder / "*.bin")) == Names{"train_0.bin", "val_0.bin"});
    CHECK(names_of(data_files("--train-data", folder / "val_0.bin")) == Names{"val_0.bin"});
}

TEST_CASE("data files: without a manifest whole words of the names say it") {
    TemporaryFolder folder;
    touch(folder, {"tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin", "fineweb_train_000001.bin",
                   "fineweb_val_000000.bin", "train0.bin", "1val2.bin", "pretrain-train-0.bin", "eval_val_0.bin",
                   "tokenizer.bin", "gpt2_124M.bin", "train.txt", "pretrain.txt"});
    CHECK(names_of(data_files("--train-data", folder.path())) ==
          Names{"fineweb_train_000001.bin", "pretrain-train-0.bin", "tiny_shakespeare_train.bin", "train0.bin"});
    CHECK(names_of(data_files("--val-data", folder.path())) ==
          Names{"1val2.bin", "eval_val_0.bin", "fineweb_val_000000.bin", "tiny_shakespeare_val.bin"});
}

TEST_CASE("data files: without a manifest a name that can mean either is refused, and a folder without the split too") {
    for (const char* name : {"pretrain_000000.bin", "constrained.bin", "eval_0.bin", "retrieval_0.bin", "trainval.bin",
                             "train_val_000000.bin", "val_train_000000.bin"}) {
        TemporaryFolder folder;
        touch(folder, {"train_0.bin", "val_0.bin", name});
        for (const char* flag : {"--train-data", "--val-data"}) {
            const std::string said = complaint(flag, folder.path(), ErrorKind::bad_data);
            CHECK_MESSAGE(said.find(text(name, " can be training or validation data")) != std::string::npos, said);
        }
        CHECK(data_files("--train-data", folder / "*.bin").size() == 3);
    }
    TemporaryFolder folder;
    touch(folder, {"train_0.bin"});
    CHECK(complaint("--val-data", folder.path(), ErrorKind::io) ==
          text("--val-data ", folder.path(), ": there are no validation shards in this folder"));
}

TEST_CASE("data files: a folder among the sources of a mixture is called by its own name") {
    TemporaryFolder folder;
    for (const char* name : {"web", "code"}) real_files().make_folders(folder / name);
    for (const char* slash : {"", "/"}) {
        const auto sources =
            data_sources("--train-data", text(folder / "web", slash, ":0.7,", folder / "code", slash, ":0.3"));
        REQUIRE(sources.size() == 2);
        CHECK(sources[0].name == "web");
        CHECK(sources[1].name == "code");
    }
}
