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

// The same of version 2, with the characters of completions, and an id of more than 16 bits.
constexpr std::uint32_t mark = 4294967295;
std::vector<std::uint32_t> two_wide_questions() {
    return {mark, 60, 0, 1, 2, 3, 10, 11, 12, 7,  1,  20, 8, 1,  21,   //
            mark, 76, 1, 2, 3, 1, 13, 4,  2,  30, 31, 5,  1, 32, 6,  3, 33, 34, 128255};
}

template <class Word>
void write_questions(const std::string& path, const std::vector<Word>& words, std::vector<std::int32_t> start) {
    std::string content(1024 + sizeof(Word) * words.size(), '\0');
    std::memcpy(content.data(), start.data(), 4 * start.size());
    std::memcpy(content.data() + 1024, words.data(), sizeof(Word) * words.size());
    write_whole(real_files(), path, content);
}

std::string complaint(const std::string& path, std::int64_t vocab_size = 50) {
    try {
        read_questions(real_files(), path, vocab_size);
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
    CHECK(questions[1].characters.empty());
    REQUIRE(questions[1].completions.size() == 3);
    CHECK(questions[1].completions[2] == std::vector<std::int32_t>{33, 34, 35});

    std::vector<std::int32_t> tokens(6), targets(6);
    completion_row(questions[1], 2, tokens, targets);
    CHECK(tokens == std::vector<std::int32_t>{13, 33, 34, 0, 0, 0});   // nothing is predicted after the last token
    CHECK(targets == std::vector<std::int32_t>{33, 34, 35, -1, -1, -1});
    completion_row(questions[0], 0, tokens, targets);
    CHECK(targets == std::vector<std::int32_t>{-1, -1, 20, -1, -1, -1});
}

TEST_CASE("multiple_choice: a row that is too short holds the last tokens, whose number is counted") {
    const Question question{0, {10, 11, 12, 13}, {{20}, {30, 31, 32}}};
    CHECK(question.row_length(0) == 4);
    CHECK(question.row_length(1) == 6);
    std::vector<std::int32_t> tokens(6), targets(6);
    completion_row(question, 1, tokens, targets);
    CHECK(tokens == std::vector<std::int32_t>{10, 11, 12, 13, 30, 31});
    CHECK(targets == std::vector<std::int32_t>{-1, -1, -1, 30, 31, 32});
    tokens.resize(3), targets.resize(3);
    completion_row(question, 1, tokens, targets);
    CHECK(tokens == std::vector<std::int32_t>{13, 30, 31});
    CHECK(targets == std::vector<std::int32_t>{30, 31, 32});
    completion_row(question, 0, tokens, targets);
    CHECK(tokens == std::vector<std::int32_t>{11, 12, 13});
    CHECK(targets == std::vector<std::int32_t>{-1, -1, 20});

    const std::vector<Question> questions{{0, {1}, {{2}, {3}}}, question, {0, {1, 2, 3, 4, 5}, {{2}, {3}}}};
    const LeftOut left_out = left_out_of(questions, 3, "MMLU");
    CHECK(left_out.questions == 2);
    CHECK(left_out.first == 1);
    CHECK(left_out.tokens == 5);
    CHECK(left_out.most == 3);
    CHECK(left_out_of(questions, 6, "MMLU").questions == 0);
    CHECK_THROWS_WITH_AS(left_out_of(questions, 2, "MMLU"),
                         doctest::Contains("MMLU: question 1 has a completion of 3 tokens, --seq-len is 2"), Error);
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
    for (int version : {0, 3, -1}) {
        write_questions(path, good, {20240522, version, 2, 32});
        CHECK(complaint(path).find(text("byte 4: version ", version, ", expected 1 or 2")) != std::string::npos);
    }
    write_questions(path, good, {20240522, 1, 0});
    CHECK(complaint(path).find("byte 8: 0 questions") != std::string::npos);
    write_questions(path, good, {20240522, 1, 2, 26});
    CHECK(complaint(path).find("byte 12: the longest question has 26 bytes, found one of 32") != std::string::npos);
    write_questions(path, good, {20240522, 1, 1, 26});
    CHECK(complaint(path).find("byte 1050: the file goes on after its 1 questions") != std::string::npos);
    write_questions(path, good, {20240522, 1, 2, 32});
    CHECK(complaint(path).empty());
}

TEST_CASE("multiple_choice: version 2 holds ids of 32 bits and the characters of completions") {
    TemporaryFolder folder;
    write_questions(folder / "q.bin", two_wide_questions(), {20240522, 2, 2, 76});
    const std::vector<Question> questions = read_questions(real_files(), folder / "q.bin", 128256);
    REQUIRE(questions.size() == 2);
    CHECK(questions[0].context == std::vector<std::int32_t>{10, 11, 12});
    CHECK(questions[0].characters == std::vector<std::int32_t>{7, 8});
    CHECK(questions[1].completions[2] == std::vector<std::int32_t>{33, 34, 128255});
    CHECK(questions[1].characters == std::vector<std::int32_t>{4, 5, 6});
}

TEST_CASE("multiple_choice: every defect of version 2 is named with its place") {
    TemporaryFolder folder;
    const std::string path = folder / "q.bin";
    struct Case {
        std::size_t word;   // changed to value
        std::uint32_t value;
        const char* expected;
    };
    const Case cases[] = {
        {0, 65535, "byte 1024: question 0 does not begin with 4294967295"},
        {1, 56, "byte 1028: question 0 says it has 56 bytes, found 60"},
        {2, 7, "byte 1032: index 7, expected 0"},
        {3, 2, "byte 1036: label 2 of 2 completions"},
        {3, mark, "byte 1036: label 4294967295 of 2 completions"},
        {5, 0, "byte 1044: the context has no tokens"},
        {5, mark, "byte 1084: token id 4294967295"},   // the next question's mark
        {7, 128256, "byte 1052: token id 128256, expected 0 to 128255"},
        {7, mark, "byte 1052: token id 4294967295, expected 0 to 128255"},
        {9, 0, "byte 1060: a completion of 0 characters, expected 1 to 2147483647"},
        {9, mark, "byte 1060: a completion of 4294967295 characters"},
        {30, 9, "the file ends where a completion should be"},
    };
    for (const Case& c : cases) {
        std::vector<std::uint32_t> words = two_wide_questions();
        words[c.word] = c.value;
        write_questions(path, words, {20240522, 2, 2, 76});
        const std::string message = complaint(path, 128256);
        CAPTURE(message);
        CHECK(message.find("65 " + path) == 0);
        CHECK_MESSAGE(message.find(c.expected) != std::string::npos, c.expected);
    }
    write_questions(path, two_wide_questions(), {20240522, 1, 2, 76});   // read as words of 16 bits
    CHECK(complaint(path, 128256).find("byte 1028: index 60, expected 0") != std::string::npos);
    write_questions(path, two_wide_questions(), {20240522, 2, 2, 60});
    CHECK(complaint(path, 128256).find("byte 12: the longest question has 60 bytes, found one of 76") !=
          std::string::npos);
    std::vector<std::uint32_t> more = two_wide_questions();
    more.push_back(0);
    write_questions(path, more, {20240522, 2, 2, 76});
    CHECK(complaint(path, 128256).find("byte 1160: the file goes on after its 2 questions") != std::string::npos);
}
