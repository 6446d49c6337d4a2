#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

// The message of the Error that opening `path` and checking its ids throws, with its kind in front ("65 ...").
std::string complaint(const std::string& path, std::int64_t vocab_size = 256) {
    try {
        TokenFile(real_files(), path).check_ids(vocab_size);
    } catch (const Error& error) {
        return text(error.exit_code(), " ", error.what());
    }
    return "";
}

bool contains(const std::string& message, const std::string& part) {
    CAPTURE(message);
    return message.find(part) != std::string::npos;
}

// `content` with the int32 at `index` of the header replaced.
std::string with_header(std::string content, int index, std::int32_t value) {
    std::memcpy(content.data() + 4 * index, &value, 4);
    return content;
}

}   // namespace

TEST_CASE("token_file: what is written is read back, in both formats") {
    TemporaryFolder folder;
    const std::vector<std::uint32_t> ids{0, 1, 255, 65535, 7};
    for (TokenFormat format : {TokenFormat::gpt2, TokenFormat::llama3}) {
        write_token_file(real_files(), folder / "t.bin", format, ids);
        TokenFile file(real_files(), folder / "t.bin");
        CHECK(file.format() == format);
        CHECK(file.count() == 5);
        std::vector<std::int32_t> read(3);
        file.read(2, read, 65536);
        CHECK(read == std::vector<std::int32_t>{255, 65535, 7});
    }
    write_token_file(real_files(), folder / "wide.bin", TokenFormat::llama3, std::vector<std::uint32_t>{128255});
    CHECK(complaint(folder / "wide.bin", 128256).empty());
    CHECK_THROWS_AS(
        write_token_file(real_files(), folder / "x.bin", TokenFormat::gpt2, std::vector<std::uint32_t>{65536}), Error);
}

namespace {

// Counts the files that are open.
struct CountingFiles : ForwardingFiles {
    using ForwardingFiles::ForwardingFiles;
    struct Counted : File {
        Counted(std::unique_ptr<File> file, int* open) : inner(std::move(file)), count(open) { ++*count; }
        ~Counted() override { --*count; }
        const std::string& path() const override { return inner->path(); }
        std::uint64_t size() const override { return inner->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { inner->read_at(offset, into); }
        void write(std::span<const std::byte>) override {}
        void sync() override {}
        std::unique_ptr<File> inner;
        int* count;
    };
    std::unique_ptr<File> open(const std::string& path) const override {
        auto file = std::make_unique<Counted>(inner_.open(path), &now);
        opened++, most = std::max(most, now);
        return file;
    }
    mutable int now = 0, most = 0, opened = 0;
};

}   // namespace

TEST_CASE("token_file: of many shards some stay open, and each is read as if all did") {
    TemporaryFolder folder;
    CountingFiles files(real_files());
    const int shards = 200;
    {
        const auto open = std::make_shared<OpenFiles>(files, 5);
        std::vector<TokenFile> read;
        for (std::uint32_t i = 0; i < shards; i++) {
            const std::string path = folder / ("t" + std::to_string(i) + ".bin");
            write_token_file(real_files(), path, TokenFormat::gpt2, std::vector<std::uint32_t>{i, i + 1, i + 2});
            read.emplace_back(open, path);
        }
        for (int turn = 0; turn < 3; turn++) {
            for (std::size_t i = 0; i < shards; i++) {
                const std::size_t which = i * 7 % shards;
                std::vector<std::int32_t> ids(2);
                read[which].read(1, ids, 65536);
                CHECK(ids == std::vector<std::int32_t>{static_cast<int>(which) + 1, static_cast<int>(which) + 2});
            }
        }
        CHECK(files.most <= 6);   // five, and the one that is being opened
        const int before = files.opened;
        std::vector<std::int32_t> ids(1);
        for (int turn = 0; turn < 10; turn++) {
            for (std::size_t i = 0; i < 5; i++) read[i].read(0, ids, 65536);
        }
        CHECK(files.opened == before + 5);   // what was read last is still open
        real_files().remove_all(folder / "t9.bin");
        CHECK_THROWS_WITH_AS(read[9].read(0, ids, 65536), doctest::Contains("t9.bin: open failed"), Error);
    }
    CHECK(files.now == 0);
}

TEST_CASE("token_file: every defect is named with its place") {
    TemporaryFolder folder;
    const std::string path = folder / "t.bin";
    write_token_file(real_files(), path, TokenFormat::gpt2, std::vector<std::uint32_t>{1, 2, 3, 300, 5});
    const std::string good = read_whole(real_files(), path);
    CHECK(complaint(path, 301).empty());

    std::string bad_id = complaint(path, 256);
    CHECK(contains(bad_id, "65 "));
    CHECK(contains(bad_id, text(path, ": byte 1030: token 3 has id 300, expected 0 to 255")));

    struct Case {
        std::string content, expected;
    };
    const Case cases[] = {
        {"", "byte 0: the file ends inside its header"},
        {good.substr(0, 1000), "byte 1000: the file ends inside its header"},
        {with_header(good, 0, 20240326), "byte 0: magic number 20240326, expected 20240520"},
        {with_header(good, 1, 2), "byte 4: version 2, expected 1"},
        {with_header(good, 0, 20240801), "version 1, expected 7"},
        {with_header(good, 2, 0), "byte 8: token count 0, expected 1 to"},
        {with_header(good, 2, -5), "token count -5"},
        {with_header(good, 2, 6), "makes a file of 1036 bytes, found 1034 bytes"},
        {good.substr(0, good.size() - 1), "makes a file of 1034 bytes, found 1033 bytes"},
        {good + "x", "found 1035 bytes"},
    };
    for (const Case& c : cases) {
        write_whole(real_files(), path, c.content);
        std::string message = complaint(path);
        CHECK(contains(message, "65 "));
        CHECK(contains(message, path));
        CHECK(contains(message, c.expected));
        CHECK(contains(message, "Prepare it again"));
    }
    CHECK(contains(complaint(folder / "missing.bin"), "74 "));
}

TEST_CASE("token_file: a Git LFS pointer in place of a shard is told") {
    TemporaryFolder folder;
    write_whole(real_files(), folder / "train.bin",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n");
    CHECK_THROWS_WITH_AS(TokenFile(real_files(), folder / "train.bin"),
                         doctest::Contains("train.bin: this is a Git LFS pointer"), Error);
}

TEST_CASE("token_file: an id is checked wherever it is read, also past the first block") {
    TemporaryFolder folder;
    std::vector<std::uint32_t> ids((1 << 20) + 10, 7);
    ids[(1 << 20) + 3] = 256;
    write_token_file(real_files(), folder / "t.bin", TokenFormat::llama3, ids);
    CHECK(contains(complaint(folder / "t.bin", 256), "token 1048579 has id 256"));
    TokenFile file(real_files(), folder / "t.bin");
    std::vector<std::int32_t> window(8);
    CHECK_NOTHROW(file.read((1 << 20) - 6, window, 256));
    CHECK_THROWS_AS(file.read(1 << 20, window, 256), Error);
}
