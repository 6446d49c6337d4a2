#include "llmc/io/streams_ahead.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/gzip_testing.h"
#include "llmc/io/temporary_folder_testing.h"

#ifdef USE_ZLIB

namespace {

std::string text_of(std::uint64_t seed, std::size_t bytes) {
    std::string content;
    for (std::uint64_t x = seed; content.size() < bytes;) content += text(x = x * 6364136223846793005 + 1442695, "\n");
    return content;
}

std::string read_all(ByteStream& stream, std::size_t at_once) {
    std::string content, part(at_once, '\0');
    while (const std::size_t count = stream.read(part.data(), at_once)) content.append(part, 0, count);
    return content;
}

// Returns what is read, or the words of the error: its place depends on how much is read at once.
template <class Open>
std::string outcome(const Open& open, std::size_t at_once) {
    try {
        return read_all(*open(), at_once);
    } catch (const Error& error) {
        std::string words = error.message();
        std::erase_if(words, [](char c) { return c >= '0' && c <= '9'; });
        return words;
    }
}

// Returns how far this process has read into each open file of the folder, by name.
std::map<std::string, std::uint64_t> places_in(const std::string& folder) {
    std::map<std::string, std::uint64_t> places;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code closed;
        const std::filesystem::path path = std::filesystem::read_symlink(entry.path(), closed);
        if (closed || path.parent_path() != std::filesystem::canonical(folder)) continue;
        std::ifstream about("/proc/self/fdinfo/" + entry.path().filename().string());
        std::string key;
        std::uint64_t place = 0;
        if (about >> key >> place) places[path.filename().string()] = place;
    }
    return places;
}

}   // namespace

TEST_CASE("streams ahead: the bytes and the errors of files that are read one after the other") {
    TemporaryFolder folder;
    std::vector<std::string> names;
    auto add = [&](const std::string& name, const std::string& content) {
        names.push_back(folder / name);
        write_whole(real_files(), names.back(), content);
    };
    add("a.gz", by_gzip(text_of(1, 3 << 20)));
    add("b.txt", "plain");
    add("c.gz", "");
    add("d.gz", by_gzip(text_of(2, 100)) + by_gzip(text_of(3, 1 << 20)));
    add("e.gz", by_gzip(text_of(4, 2 << 20)));
    std::string damaged = by_gzip(text_of(5, 2 << 20));
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
    add("f.gz", damaged);
    add("g.gz", damaged.substr(0, 1000));
    names.push_back(folder / "none.gz");
    add("h.gz", by_gzip("last"));

    for (const int threads : {1, 2, 3, 20}) {
        for (const std::size_t bytes : {std::size_t{1000}, std::size_t{1} << 20, std::size_t{32} << 20}) {
            StreamsAhead streams(names, threads, bytes);
            for (std::size_t i = 0; i < names.size(); i++) {
                INFO(names[i], " ", threads, " ", bytes);
                const std::string expected = outcome([&] { return open_stream(names[i]); }, 5000),
                                  found = outcome([&] { return streams.open(i); }, 7777);
                CHECK((found == expected));
            }
        }
    }
    StreamsAhead streams(names, 4);   // files may be passed over, and left in the middle
    char first = 0;
    CHECK(streams.open(0)->read(&first, 1) == 1);
    CHECK(read_all(*streams.open(4), 10000) == text_of(4, 2 << 20));
}

TEST_CASE("streams ahead: as many files as threads are inflated at once, each as far ahead as it may be") {
    TemporaryFolder folder;
    std::vector<std::string> names;
    constexpr std::size_t bytes = 4 << 20, files = 4;
    for (std::size_t i = 0; i < files; i++) {
        names.push_back(folder / text(i, ".gz"));
        write_whole(real_files(), names.back(), by_gzip(text_of(i, 3 * bytes)));
    }
    const std::uint64_t stored = std::filesystem::file_size(names[0]);
    StreamsAhead streams(names, 3, bytes);
    const auto first = streams.open(0);   // nobody reads it: all wait in the end
    auto are_ahead = [&](const std::map<std::string, std::uint64_t>& places) {
        return std::ranges::all_of(std::vector{"0.gz", "1.gz", "2.gz"}, [&](const char* name) {
            return places.contains(name) && places.at(name) > stored / 5;   // a third, less a block and a bit
        });
    };
    std::map<std::string, std::uint64_t> places;
    while (!are_ahead(places = places_in(folder.path()))) std::this_thread::yield();
    for (int i = 0; i < 1000; i++) {
        places = places_in(folder.path());
        for (const auto& [name, place] : places) CHECK(place < stored * 2 / 5 + (1 << 16));
        CHECK(!places.contains("3.gz"));
        std::this_thread::yield();
    }
    CHECK((read_all(*first, 1 << 16) == text_of(0, 3 * bytes)));
    CHECK((read_all(*streams.open(1), 1 << 16) == text_of(1, 3 * bytes)));
    while (!places_in(folder.path()).contains("3.gz")) std::this_thread::yield();
}

#endif
