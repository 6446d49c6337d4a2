// Tokenizer files that are not what they should be; tokenizer_test.cpp has those that are.

#include "llmc/tokenizer/files/files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/tokenizer/input.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

std::string complaint(const std::function<void()>& action, ErrorKind kind = ErrorKind::bad_data) {
    try {
        action();
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        return error.message();
    }
}

// Returns the complaint about a tokenizer.json, of bytes and one merge, in which one text is exchanged for another.
std::string complaint_of_json(const std::string& from, const std::string& to) {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.push_back("th");
    data.is_special.push_back(0);
    data.merges.push_back({'t', 'h', 257, 0});
    std::string json = to_huggingface(data);
    const std::size_t at = json.find(from);
    REQUIRE(at != std::string::npos);
    json.replace(at, from.size(), to);
    return complaint([&] { Tokenizer(parse_huggingface(json, "tokenizer.json")); });
}

bool contains(const std::string& text, const std::string& part) {
    CAPTURE(text);
    const bool found = text.find(part) != std::string::npos;
    CHECK(found);
    return found;
}

std::string base64_of_bytes(const std::string& more) {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.pop_back();
    data.is_special.pop_back();
    data.tokens.push_back(more);
    data.is_special.push_back(0);
    return to_tiktoken_ranks(data);
}

}   // namespace

TEST_CASE("tokenizer_files: deep nesting, keys that are there twice, numbers that are none") {
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    CHECK(complaint_of_json("\"BPE\"", "\"BPE\"") == "");
    contains(complaint_of_json("\"BPE\"", deep), "nest deeper than");
    contains(complaint_of_json("\"1.0\"", deep), "tokenizer.json: offset 270: not JSON");
    contains(complaint_of_json("\"type\": \"BPE\"", "\"type\": \"BPE\", \"vocab\": {}"), "'vocab' is there twice");
    contains(complaint_of_json("\"th\": 257", "\"th\": 257, \"th\": 258"), "'th' is there twice");
    contains(complaint_of_json("\"th\": 257", "\"th\": 1e999"), "number overflow");
    contains(complaint([&] { check_gpt2_ids(Tokenizer::bytes().data(), deep, "encoder.json"); }),
             "encoder.json: offset 257: not JSON");
}

TEST_CASE("tokenizer_files: more added tokens than memory should be spent on are refused by their number") {
    std::string many = "0";
    for (int i = 0; i < 1 << 18; i++) many += ",0";
    contains(complaint_of_json("\"added_tokens\": [", "\"added_tokens\": [" + many + "], \"were\": ["),
             "(/added_tokens): 262145 added tokens, expected at most 262144");
}

TEST_CASE("tokenizer_files: an id and a token belong together once") {
    contains(complaint_of_json("\"id\": 256", "\"id\": 97"), "(/added_tokens/0): id 97 or '<|endoftext|>' belongs");
    contains(complaint_of_json("\"id\": 256", "\"id\": 258"), "belongs to another token");
    contains(complaint_of_json("\"content\": \"<|endoftext|>\"", "\"content\": \"b\""), "belongs to another token");
    contains(complaint_of_json("\"content\": \"<|endoftext|>\"", "\"content\": \"\""), "without content");
    contains(complaint_of_json("\"th\": 257", "\"th\": 257, \"\": 258"), "without bytes");
    contains(complaint_of_json("\"th\": 257", "\"th\": 257, \"t\u20ac\": 258"), "(/model/vocab/t\u20ac): not spelled");
}

TEST_CASE("tokenizer_files: a pattern without a translation is refused with its file and no more than its beginning") {
    try {
        make_splitter({SplitRule::regex, "a"});
    } catch (const Error& problem) {
        MESSAGE("skipped: ", problem.message());
        return;
    }
    TokenizerData data = Tokenizer::bytes().data();
    data.pattern = {SplitRule::regex, "a(*LIMIT_MATCH=9)" + std::string(1000, 'x')};
    const std::string message = complaint([&] { parse_huggingface(to_huggingface(data), "some/tokenizer.json"); });
    contains(message, "some/tokenizer.json: offset ");
    contains(message,
             "(/pre_tokenizer): the pattern has '(*LIMIT_M', which is not supported, at its character 1: a(*LIM");
    CHECK(message.size() < 300);
}

TEST_CASE("tokenizer_files: ranks") {
    CHECK(complaint([] { parse_tiktoken_ranks(base64_of_bytes("th"), "ranks"); }) == "");
    contains(complaint([] { parse_tiktoken_ranks(base64_of_bytes("t"), "ranks"); }), "this token has another rank");
    // a token of 4 MB has as many cuts, each of which would take its bytes to look up
    const TokenizerData data = parse_tiktoken_ranks(base64_of_bytes(std::string(4 << 20, 'x')), "ranks");
    std::vector<std::uint32_t> ids;
    Encoder(Tokenizer(data)).encode("xx", ids);
    CHECK(ids.size() == 2);
}

TEST_CASE("tokenizer_files: encoder.json has the tokens of its vocab.bpe and no other") {
    const TokenizerData data = parse_gpt2_merges("#version: 0.2\nt h\n", "vocab.bpe");
    std::string ids = "{";
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        std::string spelled = data.is_special[id] ? data.tokens[id] : to_characters(data.tokens[id]);
        if (spelled == "\"" || spelled == "\\") spelled = "\\" + spelled;
        ids += text(id == 0 ? "\"" : ", \"", spelled, "\": ", id);
    }
    CHECK(complaint([&] { check_gpt2_ids(data, ids + "}", "encoder.json"); }) == "");
    contains(complaint([&] { check_gpt2_ids(data, ids + ", \"he\": 999}", "encoder.json"); }), "259 tokens");

    // merges.txt is another name of it; marks and line ends that editors add change nothing
    TemporaryFolder folder;
    const auto load = [&](const char* merges) {
        write_whole(real_files(), folder / "merges.txt", merges);
        return Tokenizer::load(folder.path()).data().tokens;
    };
    contains(complaint([&] { load("#version: 0.2\nt h\n"); }, ErrorKind::io), "vocab.json");
    write_whole(real_files(), folder / "vocab.json", ids + "}");
    for (const char* text : {"#version: 0.2\nt h\n", "#version: 0.2\r\nt h\r\n", "\xef\xbb\xbf#version: 0.2\nt h"}) {
        CHECK(load(text) == data.tokens);
    }
    contains(complaint([&] { load("t h\n"); }), "the first line does not begin with #version");
    for (const auto& [merges, beside] :
         {std::pair("gpt2-vocab.bpe", "gpt2-encoder.json"), {"b-merges.txt", "b-vocab.json"}}) {
        write_whole(real_files(), folder / merges, "#version: 0.2\nt h\n");
        CHECK(Tokenizer::load(folder / merges).data().tokens == data.tokens);
        write_whole(real_files(), folder / beside, ids + ", \"he\": 999}");
        contains(complaint([&] { Tokenizer::load(folder / merges); }), std::string(beside) + ": ");
    }
}

TEST_CASE("tokenizer_files: paths that cannot be followed are errors that name them") {
    TemporaryFolder folder;
    const std::string loop = folder / "loop";
    std::filesystem::create_symlink("loop", loop);
    contains(complaint([&] { Tokenizer::load(loop); }, ErrorKind::io), "loop: open failed");
    std::filesystem::create_symlink("loop", folder / "vocab.bpe");
    contains(complaint([&] { Tokenizer::load(folder.path()); }, ErrorKind::io), "no tokenizer in the folder");
    auto read = [&] {
        InputOptions options;
        options.files = {loop};
        InputBatch batch;
        DocumentReader(options, {}).next(batch);
    };
    contains(complaint(read, ErrorKind::io), "cannot open " + loop);
}
