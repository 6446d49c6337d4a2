#include "llmc/cli/named_data.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_test.h"

TEST_CASE("named data: by the folder's name, by a part of it, and what is said where that is none or several") {
    TemporaryFolder root;
    for (const char* folder : {"local", "fineweb10B", "edu_fineweb10B", "tinyshakespeare", "empty"}) {
        real_files().make_folders(root / folder);
        if (std::string(folder) == "empty") continue;
        write_whole(real_files(), root / (std::string(folder) + "/tiny_train_000000.bin"), "");
    }
    auto find = [&](const std::string& name) { return find_named_data(name, root.path()); };
    auto complaint = [&](const std::string& name) -> std::string {
        try {
            find(name);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::usage);
            return error.what();
        }
        return "";
    };
    CHECK(find("local").train == root / "local/*train*.bin");
    CHECK(find("local").val == root / "local/*val*.bin");
    CHECK(find("shakespeare").train == root / "tinyshakespeare/*train*.bin");
    CHECK(find("edu").train == root / "edu_fineweb10B/*train*.bin");
    CHECK(find("fineweb10B").train == root / "fineweb10B/*train*.bin");   // the whole name wins
    CHECK(find(root / "local").train == root / "local/*train*.bin");
    CHECK(complaint("fineweb").find("could be each of") != std::string::npos);
    CHECK(complaint("empty").find("no training shards") != std::string::npos);
    CHECK(complaint("wikipedia").find("there are: edu_fineweb10B, fineweb10B, local, tinyshakespeare.") !=
          std::string::npos);
    CHECK(complaint("").find("no training shards") != std::string::npos);
    CHECK(complaint("no/such").find("no training shards in no/such") != std::string::npos);
}
