#include "llmc/io/file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder.h"

TEST_CASE("file: whole files are written and read back, lists are sorted") {
    TemporaryFolder folder;
    write_whole(real_files(), folder / "b.txt", "bee");
    write_whole(real_files(), folder / "a.txt", "");
    CHECK(read_whole(real_files(), folder / "b.txt") == "bee");
    CHECK(read_whole(real_files(), folder / "a.txt").empty());
    CHECK(real_files().list(folder.path()) == std::vector<std::string>{"a.txt", "b.txt"});
    CHECK(glob_files(folder / "*.txt") == std::vector<std::string>{folder / "a.txt", folder / "b.txt"});
    CHECK(glob_files(folder / "*.bin").empty());

    real_files().append(folder / "b.txt")->write(bytes_of("-line"));
    CHECK(read_whole(real_files(), folder / "b.txt") == "bee-line");
}

TEST_CASE("file: errors name the file and the cause") {
    TemporaryFolder folder;
    auto message_of = [](auto&& action) -> std::string {
        try {
            action();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    std::string missing = message_of([&] { real_files().open(folder / "missing.bin"); });
    CHECK(missing.find("missing.bin") != std::string::npos);
    CHECK(missing.find("No such file") != std::string::npos);
    CHECK(message_of([&] { real_files().open(folder.path()); }).find("folder") != std::string::npos);
    CHECK(message_of([&] { real_files().make_folders("/proc/nothing/here"); }).find("/proc/nothing") !=
          std::string::npos);

    write_whole(real_files(), folder / "short.bin", "1234");
    std::byte bytes[8];
    std::string truncated = message_of([&] { real_files().open(folder / "short.bin")->read_at(2, bytes); });
    CHECK(truncated.find("ends at byte 4") != std::string::npos);
}

TEST_CASE("file: a fault at any operation leaves the old content or the new") {
    FaultyFiles counter(real_files());
    {
        TemporaryFolder folder;
        write_whole(counter, folder / "f", "old content");
    }
    REQUIRE(counter.operations() == 5);   // create, write, sync, rename, sync folder

    for (FileFault fault : {FileFault::fail, FileFault::tear, FileFault::stop}) {
        for (std::uint64_t at = 0; at < counter.operations(); at++) {
            TemporaryFolder folder;
            write_whole(real_files(), folder / "f", "old content");
            FaultyFiles faulty(real_files(), at, fault);
            CHECK_THROWS_AS(write_whole(faulty, folder / "f", "new"), Error);
            std::string now = read_whole(real_files(), folder / "f");
            CHECK(now == (at < 4 ? "old content" : "new"));
        }
    }
}
