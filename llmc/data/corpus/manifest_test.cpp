#include "llmc/data/corpus/manifest.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

const std::string good = R"({"format": "token shards", "version": 1,
 "tokenizer": {"name": "x", "vocab_size": 300, "end_of_text": 299, "hash": "0123456789abcdef"},
 "token_bytes": 2, "documents": 1, "source_bytes": 5,
 "shards": [{"file": "train_000000.bin", "split": "train", "tokens": 9, "hash": "0123456789abcdef"}]})";

std::string changed(const std::string& from, const std::string& to) {
    const std::size_t at = good.find(from);
    REQUIRE(at != std::string::npos);
    return std::string(good).replace(at, from.size(), to);
}

std::string complaint(const std::string& content) {
    try {
        parse_manifest(content, "manifest.json");
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_data);
        CHECK(error.message().starts_with("manifest.json: byte "));
        return error.message();
    }
}

}   // namespace

TEST_CASE("manifest: numbers out of range, and nothing that only converts to a number") {
    CHECK(complaint(good) == "");
    CHECK(parse_manifest(good, "").vocab_size == 300);
    for (const char* number : {"-1", "1e300", "2.5", "true", "\"3\"", "null", "[]", "18446744073709551616"}) {
        for (const char* key : {"vocab_size\": 300", "end_of_text\": 299", "token_bytes\": 2", "documents\": 1",
                                "source_bytes\": 5", "tokens\": 9"}) {
            const std::string name = std::string(key).substr(0, std::string(key).find(' '));
            const std::string content = changed(key, text(name, " ", number));
            CAPTURE(content);
            CHECK(complaint(content) != "");
        }
    }
    CHECK(complaint(changed("300", "2147483648")) != "");
    CHECK(complaint(changed("\"tokens\": 9", "\"tokens\": 2147483648")) != "");
    CHECK(complaint(changed("\"tokens\": 9", "\"tokens\": 0")).find("without tokens") != std::string::npos);
    CHECK(complaint(changed("299", "300")).find("outside the vocabulary") != std::string::npos);
    CHECK(complaint(changed("\"token_bytes\": 2", "\"token_bytes\": 3")).find("2 or 4") != std::string::npos);
    CHECK(complaint(changed("300", "65537")).find("do not hold") != std::string::npos);
    CHECK(complaint(changed("\"documents\"", "\"token_bytes\": 4, \"documents\"")).find("twice") != std::string::npos);
}

TEST_CASE("manifest: shards have names within the folder, each once, and a known split") {
    for (const char* name : {"../train.bin", "/train.bin", "..", "", "train.bin\\u0000.bin", "train.txt"}) {
        CHECK(complaint(changed("train_000000.bin", name)).find("beside its manifest") != std::string::npos);
    }
    CHECK(complaint(changed("\"split\": \"train\"", "\"split\": \"tests\"")).find("split") != std::string::npos);
    const std::string shard = good.substr(good.find("{\"file"), good.find("}]") + 1 - good.find("{\"file"));
    CHECK(complaint(changed("}]", "}, " + shard + "]")).find("listed twice") != std::string::npos);
}
