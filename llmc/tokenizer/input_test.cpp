#include "llmc/tokenizer/input.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

InputKind kind(const std::string& name, std::string_view beginning, InputFormat format = InputFormat::automatic) {
    return kind_of_input(name, beginning, format);
}

// The documents of a file of that name and content, one behind the other; each behind its line and a colon.
std::string documents(const std::string& name, const std::string& content, InputOptions options = {}) {
    TemporaryFolder folder;
    write_whole(real_files(), folder / name, content);
    options.files = {folder / name};
    DocumentReader reader(options, {});
    InputBatch batch;
    std::string all, value;
    SkippedLines skipped;
    while (reader.next(batch)) {
        for (const InputPart& part : batch.parts) {
            const auto found = text_of_object(options, batch, part, value, skipped);
            if (found) all += text(part.line, ":", *found, ";");
        }
    }
    return all;
}

}   // namespace

TEST_CASE("input: what a file is, by its name") {
    for (const char* name : {"a.jsonl", "a.ndjson", "a.jl", "a.jsonlines", "A.JSONL", "a.JsonLines", "a.jsonl.gz",
                             "A.JL.ZST", "b/.jsonl"}) {
        CHECK_MESSAGE(kind(name, "anything") == InputKind::json_lines, name);
        for (const char* list : {" \n[]", "[ \n ]\r\n", "[{\"a\": 1}", "\n[\n {\n", "[{"})
            CHECK_MESSAGE(kind(name, list) == InputKind::json_list, name, list);
        for (const char* lines : {"[", "[1, 2]\n{\"a\": 1}", "[bad\n", "[]\n{\"a\": 1}", "[[{\"a\": 1}]]", "[\"a\"]"})
            CHECK_MESSAGE(kind(name, lines) == InputKind::json_lines, name, lines);
        CHECK_MESSAGE(kind(name, "{\"text\": 1}", InputFormat::text) == InputKind::text, name);
    }
    for (const char* name : {"a.json", "a.txt", "a.md", "jsonl", "a.jsonl.txt", "a.jsonl.bak", "-"}) {
        CHECK_MESSAGE(kind(name, "anything") == InputKind::text, name);
        CHECK_MESSAGE(kind(name, "anything", InputFormat::jsonl) == InputKind::json_lines, name);
    }
}

TEST_CASE("input: what a file is, by its content") {
    const std::string mark(byte_order_mark);
    for (const char* name :
         {"a.json", "a.JSON.gz", "a.txt", "a.Txt.zst", "-", "/dev/fd/63", "part-00000", "p.d/part"}) {
        for (const char* lines : {"{\"a\": 1}", " {\"", "{ \t\"a", "\n\n{\"a\":"}) {
            CHECK_MESSAGE(kind(name, lines) == InputKind::json_lines, name, lines);
            CHECK_MESSAGE(kind(name, mark + lines) == InputKind::json_lines, name, lines);
        }
        for (const char* list : {"[{\"a\": 1}", "[\n  {\n    \"a", "\n[ { \"", "[]", " [\n]\n"}) {
            CHECK_MESSAGE(kind(name, list) == InputKind::json_list, name, list);
            CHECK_MESSAGE(kind(name, mark + list) == InputKind::json_list, name, list);
        }
        for (const char* text :
             {"", "{", "{\n  \"a\": 1\n}", "{}", "{a\"", "[1, 2]", "[\"a\"]", "[", "[] a", "[[]]", "a {\"b\": 1}"}) {
            CHECK_MESSAGE(kind(name, text) == InputKind::text, name, text);
        }
    }
    for (const char* name : {"a.py", "a.md", "b.json/a.html"}) {   // by suffix, whatever they contain
        CHECK_MESSAGE(kind(name, "{\"a\": 1}") == InputKind::text, name);
    }
    CHECK_THROWS_WITH_AS(kind("a.json", "\x1f\x8b"), doctest::Contains("a.json: this is not text: compressed twice"),
                         Error);
    const std::string tar = std::string(257, 'a') + "ustar\0";
    for (const auto& [bytes, words] : {std::pair(std::string("\x04\x22\x4d\x18"), "compressed by lz4"),
                                       {"BZh9", "compressed by bzip2"},
                                       {"\x1f\x9d\x90", "compressed by compress"},
                                       {"LZIP\1\x0c", "compressed by lzip"},
                                       {"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip"},
                                       {std::string("\xff\xfe{\0", 4), "UTF-16, as PowerShell"},
                                       {std::string("\xff\xfe\0\0a\0\0\0", 8), "UTF-32"},
                                       {std::string("a\0b", 3), "bytes that are 0"},
                                       {std::string("\1\0\2\0a\0b\0", 8), "bytes that are 0"},
                                       {"\x1e{\"text\": \"a\"}\n", "a sequence of JSON texts (RFC 7464)"},
                                       {tar + "00", "a tar archive"}}) {
        CHECK_THROWS_WITH_AS(kind("a.txt", bytes), doctest::Contains(words), Error);
    }
    for (const auto& [encoding, units] :
         {std::pair("UTF-16LE", std::vector<std::string>{std::string("a\0", 2), "\x3d\xd8", "\x4a\xde", "\x2d\x4e"}),
          {"UTF-32BE", {std::string("\0\0\0a", 4), std::string("\0\1\xf6\x4a", 4)}}}) {
        std::string forth, back;   // and the other order of bytes
        for (const std::string& unit : units) forth += unit, back += std::string(unit.rbegin(), unit.rend());
        const std::string other = std::string(encoding).substr(0, 6) + (encoding[6] == 'L' ? "BE" : "LE");
        for (const auto& [bytes, name] : {std::pair(forth, std::string(encoding)), {back, other}}) {
            try {
                kind("a.txt", bytes);
                FAIL("accepted");
            } catch (const Error& error) {
                CHECK(error.message().find("without a mark of its byte order") != std::string::npos);
                CHECK(error.hint().find("iconv -f " + name + " -t UTF-8") != std::string::npos);
            }
        }
    }
}

TEST_CASE("input: lines and lists of objects, with the lines on which they begin") {
    const std::string mark(byte_order_mark);
    for (const std::string& begin : {std::string(), mark}) {
        CHECK(documents("a.txt", begin + "{\"text\": \"a\"}\n\n{\"text\": \"b\"}") == "1:a;3:b;");
        CHECK(documents("a.jsonl", begin + "{\"text\": \"a\"}\r\n" + mark + "{\"text\": \"b\"}\n") == "1:a;2:b;");
        CHECK(documents("a.json", begin + "[{\"text\":\"a\"},{\"text\":\"b\"}]") == "1:a;1:b;");
        CHECK(
            documents("a.json",
                      begin + "\n[\n {\n\"b\": [{}, \"]}\\\"\\\\\"],\n \"text\" : \"a\"}\n,\n{\"text\":\"b\"}\n]\n") ==
            "3:a;7:b;");
        CHECK(documents("a.jsonl", begin + "[]") == "");
        CHECK(documents("a.jsonl", begin + " \n") == "");
    }
    // longer than what is read at once, within an object and between two
    const std::string large(3'000'000, 'x'), blank(3'000'000, '\n');
    CHECK(documents("a.json", "[{\"text\":\"" + large + "\"}" + blank + ",{\"text\":\"b\"}]") ==
          "1:" + large + ";3000001:b;");
    InputOptions limited;
    limited.max_bytes = 30;
    CHECK(documents("a.json", "[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"}]", limited) == "1:a;1:b;");
}

TEST_CASE("input: lines that begin with a bracket are lines, and passed over as other bad ones") {
    InputOptions skipping;
    skipping.skip_bad_lines = true;
    const std::string good = "{\"text\": \"a\"}\n";
    for (const char* bad : {"[1, 2]", "[bad", "[]", "[\"x\"] {", "[[{\"text\": \"b\"}]]"}) {
        CHECK_MESSAGE(documents("a.jsonl", bad + ("\n" + good), skipping) == "2:a;", bad);
        CHECK_MESSAGE(documents("a.jsonl", good + bad + "\n" + good, skipping) == "1:a;3:a;", bad);
        CHECK_THROWS_WITH_AS(documents("a.jsonl", good + bad), doctest::Contains("line 2, "), Error);
    }
    CHECK_THROWS_WITH_AS(documents("a.jsonl", "[1, 2]\n" + good),
                         doctest::Contains("line 1, offset 0: this line is not JSON: expected an object"), Error);
    // of a list such an element ends the call, and why is told
    try {
        documents("a.json", "[{\"text\": null},\n7]", skipping);
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(error.message().find("line 2, offset 17: this is not a JSON list: ") != std::string::npos);
        CHECK(error.hint().find("--skip-bad-lines") != std::string::npos);
    }
    CHECK(documents("a.json", "[]") == "");
    CHECK(documents("a.json", "[{\"text\": null},\n{\"text\": \"b\"}]", skipping) == "2:b;");
}

TEST_CASE("input: lines that announce their last one end with it, wherever they are cut") {
    const std::string begin = text(stream_begin, "\n"), end = text(stream_end, "\n");
    const std::string a = "{\"text\": \"a\"}\n", b = "{\"text\": \"b\"}\n", whole = begin + a + "\n" + b + end;
    InputOptions skipping;
    skipping.skip_bad_lines = true;
    for (const char* name : {"a.jsonl", "a.txt", "part-00000"}) {
        CHECK(documents(name, whole) == "2:a;4:b;");
        CHECK(documents(name, std::string(byte_order_mark) + whole + "\n") == "2:a;4:b;");
        CHECK(documents(name, whole.substr(0, whole.size() - 1)) == "2:a;4:b;");
        CHECK(documents(name, begin + end) == "");
        CHECK(documents(name, whole + begin + a + end) == "2:a;4:b;7:a;");
        for (std::size_t cut = stream_begin.size(); cut + 1 < whole.size(); cut++) {
            CHECK_THROWS_WITH_AS(documents(name, whole.substr(0, cut), skipping),
                                 doctest::Contains("this stream is not whole: it ends without its last line {"), Error);
        }
    }
    struct Wrong {
        std::string content;
        const char* message;
    };
    for (const Wrong& wrong :
         {Wrong{begin + a + begin + b + end, "line 3, offset 44: this stream is not whole: it begins again"},
          Wrong{a + begin + b + end, "line 2, offset 14: this stream is not whole: it begins behind"},
          Wrong{a + end, "line 2, offset 14: this stream is not whole: it ends without a first line"},
          Wrong{whole + a, "line 6, "}, Wrong{whole + end, "more follows its last line"}}) {
        CHECK_THROWS_WITH_AS(documents("a.jsonl", wrong.content, skipping), doctest::Contains(wrong.message), Error);
    }
    InputOptions limited;   // a part is wanted
    limited.max_bytes = begin.size() + a.size();
    CHECK(documents("a.jsonl", whole, limited) == "2:a;");
}

TEST_CASE("input: where what lies between documents reaches the limit, nothing is read of the next input") {
    for (const std::uint64_t limit : {10, 11, 12, 13}) {
        int ends[2];
        REQUIRE(pipe(ends) == 0);   // an input whose size is not known
        REQUIRE(write(ends[1], "more text", 9) == 9);
        close(ends[1]);
        TemporaryFolder folder;
        write_whole(real_files(), folder / "a.jsonl", "{\"text\":\"\"}\n");
        InputOptions options;
        options.files = {folder / "a.jsonl", text("/dev/fd/", ends[0]), folder / "a.jsonl"};
        options.max_bytes = limit;
        DocumentReader reader(options, {});
        InputBatch batch;
        std::string all;
        while (reader.next(batch)) all += batch.bytes + ";";
        close(ends[0]);
        CHECK(all == (limit == 10 ? "" : limit == 13 ? "{\"text\":\"\"};m;" : "{\"text\":\"\"};"));
        CHECK(reader.bytes_read() <= limit + 1);
    }
}

TEST_CASE("input: a list that is damaged is told with its line") {
    struct Wrong {
        const char *content, *message;
    };
    for (const Wrong& wrong :
         {Wrong{"[{\"text\":\"a\"},\n7]", "line 2, offset 15: this is not a JSON list: expected an object"},
          Wrong{"[{\"text\":\"a\"},]", "offset 14: this is not a JSON list: expected an object"},
          Wrong{"[{\"text\":\"a\"}\n{\"text\":\"b\"}]",
                "line 2, offset 14: this is not a JSON list: expected ',' or ']'"},
          Wrong{"[{\"text\":\"a\"}", "expected ',' or ']'"}, Wrong{"[\n{\"text\":\"a]}", "line 2, offset 2"},
          Wrong{"[{\"text\":\"a\"}]\n]", "line 2, offset 15: this is not a JSON list: more behind the list"},
          Wrong{"[\n{\"text\":\n\"a\" \"b\"}]", "line 3, offset 15: this line is not JSON: expected ',' or '}'"},
          Wrong{"[{\"text\":\n null}]", "line 1, offset 1: the field \"text\" is null"}}) {
        CHECK_THROWS_WITH_AS(documents("a.json", wrong.content), doctest::Contains(wrong.message), Error);
    }
}

TEST_CASE("input: a reader goes on within lines and lists where another has stopped") {
    TemporaryFolder folder;
    const std::string mark(byte_order_mark);
    InputOptions options;
    for (const std::string name : {"a.jsonl", "b.json", "c.json", "d.txt", "announced"}) {
        const bool list = name.ends_with(".json"), announced = name == "announced";
        std::string content = mark + (list ? "\n [" : announced ? text(stream_begin, "\n") : "");
        for (int i = 0; i < 90'000; i++) {
            content += text(i == 0 ? "" : list ? ",\n" : "\n", "{\"text\": \"document ", i, " of ", name, "\"}");
        }
        write_whole(real_files(), folder / name, content + (list ? "\n]\n" : announced ? text("\n", stream_end) : ""));
        options.files.push_back(folder / name);
    }
    auto shown = [](const InputBatch& batch) {
        std::string all;
        for (const InputPart& part : batch.parts)
            all += text(part.document, " ", part.file, " ", part.offset, " ", part.line, "\n");
        return all + batch.bytes;
    };
    DocumentReader whole(options, {});
    InputBatch batch, again;
    int batches = 0;
    for (InputPosition at = whole.position(); whole.next(batch); at = whole.position(), batches++) {
        DocumentReader reader(options, {});
        reader.seek(at);
        REQUIRE(reader.next(again));
        REQUIRE((shown(again) == shown(batch)));
        CHECK(reader.bytes_read() == whole.bytes_read());
    }
    CHECK(batches > 10);
}
