#include "llmc/data/multiple_choice.h"

#include <doctest/doctest.h>

#include <cstring>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

// The file of two questions, as words after the header.
std::vector<std::uint16_t> two_questions() {
    return {65535, 26, 0, 1, 2, 3, 10, 11, 12, 1,  20, 1,  21,   //
            65535, 32, 1, 2, 3, 1, 13, 2,  30, 31, 1,  32, 3,  33, 34, 35};
}

void write_questions(const std::string& path, const std::vector<std::uint16_t>& words,
                     std::vector<std::int32_t> start) {
    std::string content(1024 + 2 * words.size(), '\0');
    std::memcpy(content.data(), start.data(), 4 * start.size());
    std::memcpy(content.data() + 1024, words.data(), 2 * words.size());
    write_whole(real_files(), path, content);
}

std::string complaint(const std::string& path) {
    try {
        read_questions(real_files(), path, 50);
    } catch (const Error& error) {
        return text(error.exit_code(), " ", error.what());
    }
    return "";
}

}   // namespace

TEST_CASE("multiple_choice: questions are read, and a completion becomes a row") {
    TemporaryFolder folder;
    std::vector<std::uint16_t> words = two_questions();
    words[14] = static_cast<std::uint16_t>(2 * (words.size() - 13));
    write_questions(folder / "q.bin", words, {20240522, 1, 2, 32});
    const std::vector<Question> questions = read_questions(real_files(), folder / "q.bin", 50);
    REQUIRE(questions.size() == 2);
    CHECK(questions[0].label == 1);
    CHECK(questions[0].context == std::vector<std::int32_t>{10, 11, 12});
    CHECK(questions[0].longest() == 4);
    CHECK(questions[1].label == 2);
    REQUIRE(questions[1].completions.size() == 3);
    CHECK(questions[1].completions[2] == std::vector<std::int32_t>{33, 34, 35});

    std::vector<std::int32_t> tokens(6), targets(6);
    completion_row(questions[1], 2, tokens, targets);
    CHECK(tokens == std::vector<std::int32_t>{13, 33, 34, 35, 0, 0});
    CHECK(targets == std::vector<std::int32_t>{33, 34, 35, -1, -1, -1});
    completion_row(questions[0], 0, tokens, targets);
    CHECK(targets == std::vector<std::int32_t>{-1, -1, 20, -1, -1, -1});
}

TEST_CASE("multiple_choice: every defect is named with its place") {
    TemporaryFolder folder;
    const std::string path = folder / "q.bin";
    std::vector<std::uint16_t> good = two_questions();
    good[14] = static_cast<std::uint16_t>(2 * (good.size() - 13));
    struct Case {
        std::size_t word;   // changed to value
        std::uint16_t value;
        const char* expected;
    };
    const Case cases[] = {
        {0, 1, "byte 1024: question 0 does not begin with 65535"},
        {1, 24, "byte 1026: question 0 says it has 24 bytes, found 26"},
        {2, 7, "byte 1028: index 7, expected 0"},
        {3, 2, "byte 1030: label 2 of 2 completions"},
        {4, 1, "byte 1030: label 1 of 1 completions"},
        {5, 0, "byte 1034: the context has no tokens"},
        {7, 50, "byte 1038: token id 50, expected 0 to 49"},
        {25, 9, "the file ends where a completion should be"},
    };
    for (const Case& c : cases) {
        std::vector<std::uint16_t> words = good;
        words[c.word] = c.value;
        write_questions(path, words, {20240522, 1, 2, 32});
        std::string message = complaint(path);
        CAPTURE(message);
        CHECK(message.rfind("65 " + path, 0) == 0);
        CHECK(message.find(c.expected) != std::string::npos);
    }
    write_questions(path, good, {20240520, 1, 2, 32});
    CHECK(complaint(path).find("byte 0: magic number 20240520, expected 20240522") != std::string::npos);
    write_questions(path, good, {20240522, 2, 2, 32});
    CHECK(complaint(path).find("byte 4: version 2, expected 1") != std::string::npos);
    write_questions(path, good, {20240522, 1, 0});
    CHECK(complaint(path).find("byte 8: 0 questions") != std::string::npos);
    write_questions(path, good, {20240522, 1, 2, 26});
    CHECK(complaint(path).find("byte 12: the longest question has 26 bytes, found one of 32") != std::string::npos);
    write_questions(path, good, {20240522, 1, 1, 26});
    CHECK(complaint(path).find("byte 1050: the file goes on after its 1 questions") != std::string::npos);
    write_questions(path, good, {20240522, 1, 2, 32});
    CHECK(complaint(path).empty());
}
