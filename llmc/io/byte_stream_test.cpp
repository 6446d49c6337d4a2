#include "llmc/io/byte_stream.h"

#include <doctest/doctest.h>

#include <string>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/gzip_testing.h"
#include "llmc/io/temporary_folder_testing.h"

#ifdef USE_ZSTD
#include <zlib.h>
#include <zstd.h>
#endif

namespace {

// Text of which little repeats, so that what is compressed is longer than what is read of it at once.
std::string some_text() {
    std::string content;
    for (std::uint64_t i = 0, x = 1; i < 60000; i++) content += std::to_string(x = x * 6364136223846793005 + 1) + "\n";
    return content;
}

std::string read_all(const std::string& path, std::size_t at_once) {
    const auto stream = open_stream(path);
    std::string content, part(at_once, '\0');
    while (const std::size_t count = stream->read(part.data(), at_once)) content.append(part, 0, count);
    CHECK(stream->read(part.data(), at_once) == 0);   // the end stays the end
    return content;
}

// Two compressed parts, each of half the text; what is cut or damaged is refused, at every place tried.
[[maybe_unused]] void check_format(const std::string& suffix, std::string (*compress)(const std::string&)) {
    TemporaryFolder folder;
    const std::string path = folder / ("text" + suffix), content = some_text();
    const std::size_t half = content.size() / 2;
    const std::string first = compress(content.substr(0, half)), whole = first + compress(content.substr(half));
    write_whole(real_files(), path, whole);
    for (std::size_t at_once : {7u, 65536u, 4000000u}) CHECK((read_all(path, at_once) == content));
    write_whole(real_files(), path, "");
    CHECK(read_all(path, 100).empty());
    for (std::size_t cut = 1; cut < whole.size(); cut += cut < 40 ? 1 : 9973) {
        if (cut == first.size()) continue;   // that is a whole file
        write_whole(real_files(), path, whole.substr(0, cut));
        CHECK_THROWS_AS(read_all(path, 1 << 20), Error);
    }
    for (std::size_t at = 30; at < whole.size(); at += 49999) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
        write_whole(real_files(), path, damaged);
        CHECK_THROWS_WITH_AS(read_all(path, 1 << 20), doctest::Contains("not what"), Error);
    }
}

}   // namespace

TEST_CASE("byte stream: names, files, and what is not there") {
    CHECK(uncompressed_name("a/b.jsonl.gz") == "a/b.jsonl");
    CHECK(uncompressed_name("a/b.zst") == "a/b");
    CHECK(uncompressed_name("a.gz/b.txt") == "a.gz/b.txt");
    CHECK(uncompressed_name("A.JSONL.GZ") == "A.JSONL");
    CHECK(uncompressed_name("a.Zst") == "a");
    CHECK(uncompressed_name("gz") == "gz");
    TemporaryFolder folder;
    write_whole(real_files(), folder / "plain", "some text");
    CHECK(read_all(folder / "plain", 4) == "some text");
#ifdef USE_ZLIB
    write_whole(real_files(), folder / "A.TXT.GZ", by_gzip("some text"));
    CHECK(read_all(folder / "A.TXT.GZ", 4) == "some text");
#endif
    CHECK_THROWS_WITH_AS(open_stream(folder / "none"), doctest::Contains("cannot open"), Error);
}

#ifdef USE_ZLIB
TEST_CASE("byte stream: gzip") { check_format(".gz", by_gzip); }

TEST_CASE("byte stream: zeros behind what gzip has compressed are passed over, as gzip does") {
    TemporaryFolder folder;
    const std::string path = folder / "a.gz", one = by_gzip("one"), two = by_gzip("two");
    auto holds = [&](const std::string& content) {
        write_whole(real_files(), path, content);
        return read_all(path, 100);
    };
    for (std::size_t zeros : {1u, 511u, 65536u, 200000u}) {
        const std::string padding(zeros, '\0');
        CAPTURE(zeros);
        CHECK(holds(one + padding) == "one");
        CHECK(holds(one + two + padding) == "onetwo");
        CHECK_THROWS_WITH_AS(holds(one + padding + "x"), doctest::Contains("bytes of padding"), Error);
        CHECK_THROWS_WITH_AS(holds(padding + one), doctest::Contains("what gzip has compressed"), Error);
        CHECK_THROWS_WITH_AS(holds(padding), doctest::Contains("what gzip has compressed"), Error);
    }
    CHECK_THROWS_WITH_AS(holds(one + "x"), doctest::Contains("what gzip has compressed"), Error);
}
#endif

#ifdef USE_ZSTD
static std::string by_zstd(const std::string& content) {
    std::string out(ZSTD_compressBound(content.size()), '\0');
    ZSTD_CCtx* const context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);   // as the program zstd does
    out.resize(ZSTD_compress2(context, out.data(), out.size(), content.data(), content.size()));
    ZSTD_freeCCtx(context);
    return out;
}

TEST_CASE("byte stream: zstd") { check_format(".zst", by_zstd); }
#endif

#if defined(USE_ZLIB) && defined(USE_ZSTD)
TEST_CASE("byte stream: what lies in a file decides how it is read, not its name") {
    TemporaryFolder folder;
    const std::string content = "some text, some text, some text", by_zlib = [&] {
        std::string out(compressBound(content.size()), '\0');
        uLongf size = out.size();
        compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(content.data()),
                 content.size());
        out.resize(size);
        return out;
    }();
    for (const char* name : {"a", "a.txt", "a.gz", "a.zst"}) {
        const std::string path = folder / name;
        for (const std::string& stored : {content, by_gzip(content), by_zstd(content),
                                          std::string("\x51\x2a\x4d\x18\1\0\0\0x", 9) + by_zstd(content), by_zlib}) {
            write_whole(real_files(), path, stored);
            for (const std::size_t piece : {1, 5, 10000}) CHECK(read_all(path, piece) == content);
            const auto stream = open_stream(path);
            CHECK(stream->is_compressed() == (stored != content));
            stream->skip(5);
            std::string rest(content.size(), '\0');
            rest.resize(stream->read(rest.data(), rest.size()));
            CHECK(rest == content.substr(5));
        }
    }
    for (const char* text : {"", "x", "x^2 + y^2", "x^2 in caf\xc3\xa9s"}) {   // x^ begins what zlib compresses, too
        write_whole(real_files(), folder / "a.txt", text);
        CHECK(read_all(folder / "a.txt", 100) == text);
    }
    const auto refuses = [](const std::string& path, const std::string& bytes, const char* words) {
        write_whole(real_files(), path, bytes);
        CHECK_THROWS_WITH_AS(read_all(path, 100), doctest::Contains(words), Error);
    };
    refuses(folder / "a.gz", "\x1e\x8b damaged", "not what gzip has compressed");
    refuses(folder / "a.zst", "\x29\xb5\x2f\xfd damaged", "not what zstd has compressed");
    // a frame's header alone: magic number, window descriptor of 2 GiB
    std::string wide(100, 'a');
    wide.replace(0, 6, std::string_view("\x28\xb5\x2f\xfd\0\xa8", 6));
    refuses(folder / "a.zst", wide, "a window of more than 128 MiB");
}
#endif
