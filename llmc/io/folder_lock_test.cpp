#include "llmc/io/folder_lock.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <optional>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("folder_lock: a second run in the same folder is refused by name, until the first has ended") {
    TemporaryFolder folder;
    const std::string out = folder / "runs/a";
    std::optional<FolderLock> first(std::in_place, out);
    const std::string expected = text(out, ": another run is writing there (process ", ::getpid(), " on ");
    for (int i = 0; i < 2; i++) {   // being refused changes nothing
        try {
            FolderLock second(out);
            FAIL("not refused");
        } catch (const Error& error) {
            CHECK(error.exit_code() == 64);
            CHECK(std::string(error.what()).find(expected) != std::string::npos);
        }
    }
    FolderLock elsewhere(folder / "runs/b");
    first.reset();
    FolderLock next(out);
}

TEST_CASE("folder_lock: a run has its folder until the last of its ranks has ended") {
    TemporaryFolder folder;
    const std::string out = folder / "run";
    std::optional<FolderLock> first(std::in_place, out), other(std::in_place, out, FolderLock::As::other);
    CHECK_THROWS_AS(FolderLock{out}, Error);
    first.reset();
    CHECK_THROWS_AS(FolderLock{out}, Error);
    other.reset();
    FolderLock next(out);
}
