#include "llmc/io/folder_lock.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

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

TEST_CASE(
    "folder_lock: a second program that writes the same is refused by name; the lock's file goes with the first") {
    TemporaryFolder folder;
    const std::string path = folder / "data.lock";
    std::optional<OutputLock> first(std::in_place, path, "--output data");
    const std::string expected = text("--output data: another run is writing there (process ", ::getpid(), " on ");
    for (int i = 0; i < 2; i++) {   // being refused changes nothing
        try {
            OutputLock second(path, "--output data");
            FAIL("not refused");
        } catch (const Error& error) {
            CHECK(error.exit_code() == 64);
            CHECK(std::string(error.what()).find(expected) != std::string::npos);
        }
    }
    CHECK(real_files().exists(path));
    first.reset();
    CHECK_FALSE(real_files().exists(path));
    write_whole(real_files(), path, "process 1 on a machine that is gone");   // it was killed
    first.emplace(path, "--output data");
    first.reset();
    CHECK_FALSE(real_files().exists(path));
    CHECK_THROWS_AS(OutputLock(folder / "none/data.lock", ""), Error);
}

TEST_CASE("folder_lock: only one at a time has it, though each removes the file at its end") {
    TemporaryFolder folder;
    std::atomic<int> inside = 0, most = 0, times = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            while (times < 2000) {
                try {
                    OutputLock lock(folder / "lock", "it");
                    most = std::max<int>(most, ++inside);
                    std::this_thread::yield();
                    inside--;
                    times++;
                } catch (const Error&) {   // another one has it
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(most == 1);
}
