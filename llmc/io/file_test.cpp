#include "llmc/io/file.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "llmc/base/error.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("file: whole files are written and read back, lists are sorted") {
    TemporaryFolder folder;
    write_whole(real_files(), folder / "b.txt", "bee");
    write_whole(real_files(), folder / "a.txt", "");
    CHECK(read_whole(real_files(), folder / "b.txt") == "bee");
    CHECK(read_whole(real_files(), folder / "a.txt").empty());
    CHECK(real_files().list(folder.path()) == std::vector<std::string>{"a.txt", "b.txt"});
    CHECK(glob_files(folder / "*.txt") == std::vector<std::string>{folder / "a.txt", folder / "b.txt"});
    CHECK(glob_files(folder / "*.bin").empty());

    write_whole(real_files(), folder / "[a-b].txt", "brackets");   // a name, not a pattern
    CHECK(glob_files(folder / "[a-b].txt") == std::vector<std::string>{folder / "[a-b].txt"});
    CHECK(glob_files(folder / "[b].txt") == std::vector<std::string>{folder / "b.txt"});

    for (const char* name : {"run[1]", "[D_DATA]", "back\\slash", "a*b", "a?b", "run[1]/in[ner]", "back\\", "{x,y}"}) {
        real_files().make_folders(folder / name);
        for (const char* file : {"a.bin", "b.bin"}) write_whole(real_files(), folder / name + "/" + file, "");
    }
    for (const char* name : {"run[1]", "[D_DATA]", "back\\slash", "a*b", "a?b", "run[1]/in[ner]", "back\\", "{x,y}"}) {
        const std::string inside = folder / name + "/";
        CAPTURE(inside);
        CHECK(glob_files(inside + "*.bin") == std::vector<std::string>{inside + "a.bin", inside + "b.bin"});
        CHECK(glob_files(inside + "[b].bin") == std::vector<std::string>{inside + "b.bin"});
        CHECK(glob_files(inside + "\\a.bin") == std::vector<std::string>{inside + "a.bin"});
        CHECK(glob_files(inside + "a.bin") == std::vector<std::string>{inside + "a.bin"});
        CHECK(glob_files(inside + "*.none").empty());
    }
    // a folder that is not there by its name is a pattern still, also behind one that is
    real_files().make_folders(folder / "run2");
    write_whole(real_files(), folder / "run2/a.bin", "");
    CHECK(glob_files(folder / "run[2]/*.bin") == std::vector<std::string>{folder / "run2/a.bin"});
    CHECK(glob_files(folder / "run*/a.bin") ==
          std::vector<std::string>{folder / "run2/a.bin", folder / "run[1]/a.bin"});
    CHECK(glob_files(folder / "run[1]/*/a.bin") == std::vector<std::string>{folder / "run[1]/in[ner]/a.bin"});

    real_files().append(folder / "b.txt")->write(bytes_of("-line"));
    CHECK(read_whole(real_files(), folder / "b.txt") == "bee-line");
}

namespace {

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}   // namespace

TEST_CASE("file: errors name the file and the cause") {
    TemporaryFolder folder;
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

TEST_CASE("file: what is no regular file is refused at once, links to files are files") {
    TemporaryFolder folder;
    const std::string pipe = folder / "pipe", socket_path = folder / "socket";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{AF_UNIX, {}};
    socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(socket);
    auto refusal = [&](const std::string& path) { return message_of([&] { read_whole(real_files(), path); }); };

    CHECK(refusal(pipe).starts_with(pipe + ": is a pipe, expected a file"));
    CHECK(refusal(socket_path).starts_with(socket_path + ": is a socket, expected a file"));
    CHECK(refusal("/dev/zero").starts_with("/dev/zero: is a device, expected a file"));
    CHECK(refusal(folder.path()).starts_with(folder.path() + ": is a folder, expected a file"));

    write_whole(real_files(), folder / "file", "content");
    for (const auto& [link, target] : {std::pair{"to_file", "file"},
                                       {"to_pipe", "pipe"},
                                       {"to_link", "to_file"},
                                       {"loop", "loop"},
                                       {"to_nothing", "nothing"}}) {
        std::filesystem::create_symlink(target, folder / link);
    }
    CHECK(read_whole(real_files(), folder / "to_link") == "content");
    CHECK(refusal(folder / "to_pipe").find("to_pipe: is a pipe") != std::string::npos);
    CHECK(refusal(folder / "loop").find("loop: open failed") != std::string::npos);
    CHECK(refusal(folder / "to_nothing").find("to_nothing: open failed") != std::string::npos);
}

TEST_CASE("file: a whole file has a largest size, whatever its own says") {
    TemporaryFolder folder;
    write_whole(real_files(), folder / "sparse", "{}");
    std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);
    CHECK(message_of([&] { read_whole(real_files(), folder / "sparse"); }).find("1099511627776 bytes, expected at") !=
          std::string::npos);
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

TEST_CASE("file: where nothing matches, the option and its pattern are named") {
    TemporaryFolder folder;
    CHECK(message_of([&] {
              matching_files("--data", folder / "*.bin");
          }).starts_with(text("--data ", folder.path(), "/*.bin: no file matches this pattern")));
    write_whole(real_files(), folder / "a.bin", "");
    CHECK(matching_files("--data", folder / "*.bin").size() == 1);
}

TEST_CASE("file: a file that is to be written later is tried, and nothing that is there is touched") {
    TemporaryFolder folder;
    write_whole(real_files(), folder / "old", "content");
    auto complaint = [&](const std::string& path) {
        return message_of([&] { try_output_file(real_files(), "--export", path); });
    };
    CHECK(complaint(folder / "new") == "");
    CHECK(complaint(folder / "old") == "");
    CHECK(read_whole(real_files(), folder / "old") == "content");
    CHECK(real_files().list(folder.path()) == std::vector<std::string>{"old"});
    std::filesystem::create_symlink("/dev/null", folder / "device");
    CHECK(complaint(folder / "device").find("is a device, expected the name of a file") != std::string::npos);
    std::filesystem::remove(folder / "device");
    CHECK(complaint(folder.path()).find("is a folder") != std::string::npos);
    CHECK(complaint(folder / "none/new").find("create failed: No such file") != std::string::npos);
}

TEST_CASE("file: what is appended to and then removed, moved or replaced is told by the next write") {
    TemporaryFolder folder;
    const std::string path = folder / "out/log";
    auto told = [&](const std::function<void()>& disturb) -> std::string {
        real_files().remove_all(folder / "out");
        real_files().make_folders(folder / "out");
        const std::unique_ptr<File> file = real_files().append(path);
        file->write(bytes_of("one\n"));
        disturb();
        try {
            file->write(bytes_of("two\n"));
            return "";
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::io);
            return error.what();
        }
    };
    CHECK(told([] {}) == "");
    CHECK(told([&] { real_files().remove_all(folder / "out"); }).find("log: it was removed or moved") !=
          std::string::npos);
    CHECK(told([&] { real_files().rename(folder / "out", folder / "away"); }).find("where it was moved to") !=
          std::string::npos);
    CHECK(read_whole(real_files(), folder / "away/log") == "one\ntwo\n");
    CHECK(told([&] { write_whole(real_files(), path, "another"); }).find("removed or moved") != std::string::npos);
    real_files().remove_all(folder / "link");
    std::filesystem::create_symlink("target", folder / "link");
    const std::unique_ptr<File> linked = real_files().append(folder / "link");
    linked->write(bytes_of("one"));   // a link is followed
    CHECK(linked->size() == 3);
}

TEST_CASE("file: a folder that is held is written to where it was moved, and nothing is made anew where it was") {
    for (const bool slash : {false, true}) {   // at the end of the given name
        TemporaryFolder folder;
        FileSystem& files = real_files();
        const std::string run = folder / "run", away = folder / "away";
        files.make_folders(run);
        write_whole(files, run + "/old", "old");
        const HeldFolder held(slash ? run + "/" : run);
        REQUIRE(::rename(run.c_str(), away.c_str()) == 0);   // as another program does
        write_whole(files, run + "/new", "new");
        files.make_folders(run + "/step/inner");
        files.append(run + "/log");
        files.link(run + "/new", run + "/step/linked");
        files.rename(run + "/old", run + "/renamed");
        files.sync_folder(run);
        CHECK_FALSE(std::filesystem::exists(run));
        CHECK(files.list(run) == std::vector<std::string>{"log", "new", "renamed", "step"});
        CHECK(files.list(away) == files.list(run));
        CHECK(read_whole(files, away + "/step/linked") == "new");
        CHECK(read_whole(files, run + "/renamed") == "old");
        CHECK(files.exists(run + "/."));
        files.remove_all(run + "/step");
        CHECK_FALSE(std::filesystem::exists(away + "/step"));
        write_whole(files, folder / "runner", "another path that begins alike");
        CHECK(std::filesystem::exists(folder / "runner"));
        CHECK(message_of([&] { files.create(run + "/none/new"); }).starts_with(run + "/none/new: create failed"));
        std::filesystem::remove_all(away);
        CHECK(message_of([&] { files.make_folders(run + "/step"); }).starts_with(run + "/step: mkdir failed"));
        CHECK_FALSE(std::filesystem::exists(run));
    }
}

TEST_CASE("file: a folder is held as long as its holder, and the later of two holders of a path counts") {
    TemporaryFolder folder;
    FileSystem& files = real_files();
    const std::string run = folder / "run";
    files.make_folders(run);
    {
        const HeldFolder first(run);
        REQUIRE(::rename(run.c_str(), (folder / "first").c_str()) == 0);
        std::filesystem::create_directory(run);
        {
            const HeldFolder second(run);
            write_whole(files, run + "/of", "second");
        }
        CHECK(std::filesystem::exists(run + "/of"));
        CHECK_FALSE(files.exists(run + "/of"));   // of the first one again
    }
    CHECK(read_whole(files, run + "/of") == "second");
    CHECK(message_of([&] { HeldFolder(folder / "none"); }).find("none: open failed") != std::string::npos);
}

TEST_CASE("file: small files are regular ones of at most 64 MiB; pipes and devices do not fill the memory") {
    TemporaryFolder folder;
    const std::string path = folder / "sparse";
    write_whole(real_files(), path, "x");
    std::filesystem::resize_file(path, largest_small_file + 1);
    const std::string limit = "67108865 bytes, expected at most 67108864";
    CHECK_THROWS_WITH_AS(read_whole(real_files(), path), doctest::Contains(limit.c_str()), Error);
    CHECK_THROWS_WITH_AS(read_small_or_pipe(path, "--config"), doctest::Contains("bytes, expected at most 67108864"),
                         Error);
    CHECK_THROWS_WITH_AS(read_small_or_pipe("/dev/zero", "--config"),
                         doctest::Contains("--config /dev/zero: is a device"), Error);
    CHECK_THROWS_AS(read_small_or_pipe(folder.path(), "--config"), Error);
    CHECK_THROWS_AS(read_small_or_pipe(folder / "none", "--config"), Error);
    write_whole(real_files(), path, "lr=1\n");
    CHECK(read_small_or_pipe(path, "--config") == "lr=1\n");
}
