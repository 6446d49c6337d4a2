#include "llmc/data/questions.h"

#include <doctest/doctest.h>

#include <cstring>

#include "llmc/base/error.h"
#include "llmc/data/damage_testing.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/data/wide_tokenizer_testing.h"

namespace {

std::string complaint(QuestionSource source, const std::string& content, const std::string& name) {
    try {
        parse_questions(source, content, name);
        return "";
    } catch (const Error& problem) {
        CHECK(problem.kind() == ErrorKind::bad_data);
        return problem.message();
    }
}

std::string text_of(const std::vector<std::int32_t>& ids) { return Tokenizer::bytes().decode(ids.data(), ids.size()); }

}   // namespace

TEST_CASE("questions: HellaSwag, as our reader sees it") {
    const std::string lines = R"({"ind": 1, "ctx": "A man is", "endings": ["up", "d\u00e4wn"], "label": 1, "x": {}}
)"
                              "\n"
                              R"({"ctx": "She", "endings": ["a", "b", "c", "d"], "label": "0"})";
    const auto questions = parse_questions(QuestionSource::hellaswag, lines, "h.jsonl");
    const std::string file = to_question_file(Tokenizer::bytes(), questions);
    const auto read = parse_question_file(file, "h.bin", 257);
    REQUIRE(read.size() == 2);
    CHECK(text_of(read[0].context) == "A man is");
    CHECK(read[0].label == 1);
    CHECK(text_of(read[0].completions[1]) == " d\u00e4wn");
    CHECK(read[1].completions.size() == 4);
    std::int32_t longest = 0;
    std::memcpy(&longest, file.data() + 12, 4);
    CHECK(longest == 2 * (5 + 1 + 8 + 1 + 3 + 1 + 6));
}

TEST_CASE("questions: MMLU, CSV and JSONL alike") {
    const std::string csv = "What, then?,one,\"two, or \"\"2\"\"\",\"three\nlines\",four,B\r\n\r\nNext,1,2,3,4,D";
    const std::string jsonl = R"({"question": "What", "choices": ["1", "2"], "answer": 1})";
    const auto questions = parse_questions(QuestionSource::mmlu, "\"What, then?\"" + csv.substr(11), "m.csv");
    REQUIRE(questions.size() == 2);
    CHECK(questions[0].context == "Question: What, then?\n\nAnswer:");
    CHECK(questions[0].completions[1] == " two, or \"2\"");
    CHECK(questions[0].completions[2] == " three\nlines");
    CHECK(questions[0].label == 1);
    CHECK(questions[1].label == 3);
    const auto other = parse_questions(QuestionSource::mmlu, jsonl, "m.jsonl");
    CHECK(other[0].context == "Question: What\n\nAnswer:");
    CHECK(other[0].label == 1);
}

TEST_CASE("questions: ARC in both its forms, PIQA, and LAMBADA's last word") {
    const auto arc = parse_questions(
        QuestionSource::arc_easy,
        R"({"id": "x", "question": {"stem": "Why?", "choices": [{"text": "so", "label": "A"}, {"text": "no", "label": "B"}]}, "answerKey": "B"})"
        "\n"
        R"({"question": "How?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "1"})",
        "a.jsonl");
    REQUIRE(arc.size() == 2);
    CHECK(arc[0].context == "Question: Why?\nAnswer:");
    CHECK(arc[0].completions == std::vector<std::string>{" so", " no"});
    CHECK(arc[0].label == 1);
    CHECK(arc[1].completions.size() == 3);
    CHECK(arc[1].label == 0);
    const auto piqa = parse_questions(
        QuestionSource::piqa, R"({"goal": "Open it.", "sol1": "Pull.", "sol2": "Push.", "label": 1})", "p.jsonl");
    CHECK(piqa[0].context == "Question: Open it.\nAnswer:");
    CHECK(piqa[0].completions == std::vector<std::string>{" Pull.", " Push."});
    CHECK(piqa[0].label == 1);
    const auto lambada = parse_questions(QuestionSource::lambada, R"({"text": "she gave it to  Bob \n"})", "l.jsonl");
    CHECK(lambada[0].context == "she gave it to ");
    CHECK(lambada[0].completions == std::vector<std::string>{" Bob"});

    const std::string file = to_question_file(Tokenizer::bytes(), lambada, QuestionSource::lambada);
    const auto read = parse_question_file(file, "l.bin", 257);
    CHECK(text_of(read[0].context) == "she gave it to");
    CHECK(text_of(read[0].completions.at(0)) == "  Bob");   // with the context's last blank, as the harness has it
    CHECK(source_of_questions(file, "l.bin").name == std::string("lambada"));
    for (const NamedSource& known : question_sources) {
        const auto two =
            parse_questions(QuestionSource::hellaswag, R"({"ctx": "a", "endings": ["b", "c"], "label": 0})", "h");
        CHECK(source_of_questions(to_question_file(Tokenizer::bytes(), two, known.source), "x").source == known.source);
    }
}

TEST_CASE("questions: what is wrong, and where") {
    auto says = [](QuestionSource source, const char* content, const char* name, const char* what) {
        const std::string message = complaint(source, content, name);
        CHECK_MESSAGE(message.find(what) != std::string::npos, message);
    };
    const auto hellaswag = QuestionSource::hellaswag, mmlu = QuestionSource::mmlu;
    says(hellaswag, "\n{\"ctx\": \"a\", ", "h.jsonl", "h.jsonl: offset 15: not JSON");
    says(hellaswag, "{\"ctx\": \"a\"}", "h.jsonl", "h.jsonl: offset 0: this line is no such question");
    says(hellaswag, "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}", "h.jsonl", "number 2 of 2");
    says(hellaswag, "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"x\"}", "h.jsonl", "h.jsonl: offset");
    for (const char* label : {"-1", "0.5", "true", "1e300", "\"-1\"", "\"[]\"", "null", "65536"}) {
        const std::string line = text("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": ", label, "}");
        says(hellaswag, line.c_str(), "h.jsonl", "expected a whole number");
        const std::string of_mmlu = text("{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": ", label, "}");
        says(mmlu, of_mmlu.c_str(), "m.jsonl", "expected a whole number");
    }
    says(hellaswag, std::string(100'000, '[').c_str(), "h.jsonl", "h.jsonl: offset 257: not JSON");
    says(hellaswag, "", "h.jsonl", "no question");
    says(
        QuestionSource::arc_easy,
        R"({"question": {"stem": "q", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]}, "answerKey": "C"})",
        "a.jsonl", "number 2 of 2");
    says(QuestionSource::piqa, R"({"goal": "q", "sol1": "a", "sol2": "b"})", "p.jsonl",
         "p.jsonl: offset 0: this line is no such question");
    says(QuestionSource::lambada, R"({"text": "word"})", "l.jsonl", "several words");
    says(hellaswag, "a,b", "h.csv", "JSONL");
    says(mmlu, "q,1,2,3,4,A\nq,1,2,3,4\n", "m.csv", "m.csv: offset 12: a record of 5 fields");
    says(mmlu, "q,1,2,3,4,E\n", "m.csv", "the answer is 'E'");
    says(mmlu, "q,1,\"2,3,4,A\n", "m.csv", "m.csv: offset 4: the file ends inside");
    says(mmlu, "q,1,\"2\"x,3,4,A\n", "m.csv", "m.csv: offset 7: text behind");
    const auto too_long = parse_questions(mmlu, "q,1,2,3,4,A\nq,1," + std::string(70'000, '2') + ",3,4,A\n", "m.csv");
    CHECK_THROWS_WITH_AS(to_question_file(Tokenizer::bytes(), too_long),
                         doctest::Contains("m.csv: offset 12: question 1: a completion of 70001"), Error);
    CHECK_THROWS_AS(to_question_file(Tokenizer::bytes(), {{"", {" a", " b"}, 0}}), Error);
    CHECK_THROWS_AS(to_question_file(Tokenizer::bytes(), {{std::string(70000, 'x'), {" a", " b"}, 0}}), Error);
    CHECK_THROWS_AS(to_question_file(Tokenizer::bytes(), {{std::string(40000, 'x'), {" a", " b"}, 0}}), Error);
}

TEST_CASE("questions: a vocabulary of more than 65,535 ids makes a file of 32-bit words") {
    const auto version_of = [](const std::string& file) {
        std::int32_t version = 0;
        std::memcpy(&version, file.data() + 4, 4);
        return version;
    };
    const auto piqa = parse_questions(
        QuestionSource::piqa, R"({"goal": "<0>", "sol1": "<1>d\u00e4\u20ac", "sol2": "", "label": 0})", "p.jsonl");
    for (const std::uint32_t ids : {300u, 65535u, 65536u, wide_vocab_size}) {
        const Tokenizer tokenizer = wide_tokenizer(2, ids);
        const std::string file = to_question_file(tokenizer, piqa, QuestionSource::piqa);
        CAPTURE(ids);
        CHECK(version_of(file) == (ids <= 65535 ? 1 : 2));
        const auto read = parse_question_file(file, "p.bin", ids, tokenizer.hash());
        CHECK(read.at(0).context.at(10) == static_cast<std::int32_t>(ids) - 1);
        CHECK(read[0].completions[0].at(1) == static_cast<std::int32_t>(ids) - 2);
        CHECK(read[0].characters == (ids <= 65535 ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{6, 1}));
        CHECK(source_of_questions(file, "p.bin").source == QuestionSource::piqa);
        CHECK_THROWS_WITH_AS(parse_question_file(file, "p.bin", ids - 1), doctest::Contains("p.bin: byte "), Error);
        CHECK_THROWS_WITH_AS(parse_question_file(file, "p.bin", ids, tokenizer.hash() ^ 1),
                             doctest::Contains("byte 16: made with a tokenizer"), Error);
    }
    const auto long_one =
        parse_questions(QuestionSource::mmlu, "q,1," + std::string(70'000, '2') + ",3,4,A\n", "m.csv");
    CHECK_THROWS_WITH_AS(to_question_file(Tokenizer::bytes(), long_one), doctest::Contains("at most 65535"), Error);
    const std::string wide = to_question_file(Tokenizer::bytes(), long_one, QuestionSource::mmlu, true);
    CHECK(version_of(wide) == 2);
    CHECK(parse_question_file(wide, "m.bin", 257).at(0).completions.at(1).size() == 70'001);
}

TEST_CASE("questions: the file says how its texts became ids, and who evaluates hears of a front that is missing") {
    TokenizerData data = Tokenizer::bytes().data();
    const auto asked = parse_questions(QuestionSource::hellaswag,
                                       R"({"ctx": "<|endoftext|>a ", "endings": ["b", "c"], "label": 0})", "h.jsonl");
    auto written = [&](QuestionIds way) {
        return to_question_file(Tokenizer(data), asked, QuestionSource::hellaswag, true, way);
    };
    auto question = [](const std::string& file) { return parse_question_file(file, "h.bin", 258).at(0); };
    auto warning = [&](const std::string& file) {
        return warning_of_contexts(parse_question_file(file, "h.bin", 258), "h.bin", Tokenizer(data));
    };
    CHECK(warning(written(QuestionIds::apart)).empty());   // the tokenizer puts nothing in front
    data.tokens.push_back("<s>");
    data.is_special.push_back(1);
    data.front = {257};

    const std::string together = written(QuestionIds::together);
    CHECK(ids_of_questions(together, "h.bin") == QuestionIds::together);
    CHECK(question(together).context == std::vector<std::int32_t>{257, 256, 'a'});
    CHECK(text_of(question(together).completions.at(1)) == "  c");
    CHECK(question(together).characters == std::vector<std::int32_t>{1, 1});   // of the answer, as it was published
    CHECK(warning(together).empty());

    const std::string apart = written(QuestionIds::apart);
    CHECK(ids_of_questions(apart, "h.bin") == QuestionIds::apart);
    CHECK(text_of(question(apart).context) == "<|endoftext|>a ");   // 13 bytes of text, no token
    CHECK(question(apart).context.size() == 15);
    CHECK(text_of(question(apart).completions.at(1)) == " c");
    CHECK(question(apart).characters == question(together).characters);
    CHECK(warning(apart).find("h.bin: no question begins with <s>, which the model's tokenizer puts in front") == 0);

    std::string unknown = together;
    unknown[36] = 2;
    unknown.replace(question_hash_begin, question_hash_bytes, question_hash_bytes, '\0');
    CHECK_THROWS_WITH_AS(question(unknown), doctest::Contains("byte 36: way from texts to ids 2, expected 0 or 1"),
                         Error);
    CHECK_THROWS_WITH_AS(to_question_file(Tokenizer::bytes(), {{"a", {"", " b"}, 0}}),
                         doctest::Contains("a completion is empty"), Error);
}

TEST_CASE("questions: every damage of a file with a hash is refused; one without is read, with a warning") {
    const auto questions = parse_questions(
        QuestionSource::hellaswag, R"({"ctx": "A man is", "endings": ["up", "down", "left"], "label": 2})", "h.jsonl");
    damage::Random random(79);
    for (const bool wide : {false, true}) {
        const std::string good = to_question_file(Tokenizer::bytes(), questions, QuestionSource::hellaswag, wide);
        CHECK(warning_of_questions(good, "h.bin").empty());
        for (int i = 0; i < 1000; i++) {
            std::string damaged = good;
            while (damaged == good) damage::damage_bytes(static_cast<damage::Damage>(i % 6), damaged, false, random);
            CAPTURE(wide);
            CAPTURE(i);
            CHECK_THROWS_AS(parse_question_file(damaged, "h.bin", 257), Error);
        }
        std::string other = good;
        other[1024 + bytes_per_word(question_format_for(Tokenizer::bytes(), wide)) * 6]++;   // a token of the context
        CHECK_THROWS_WITH_AS(parse_question_file(other, "h.bin", 257),
                             doctest::Contains("h.bin: byte 28: damaged: the content's hash is "), Error);

        other.replace(question_hash_begin, question_hash_bytes, question_hash_bytes, '\0');   // as older programs write
        CHECK(parse_question_file(other, "h.bin", 257).size() == 1);
        CHECK(warning_of_questions(other, "h.bin").find("h.bin: the file has no hash of its content") == 0);
    }
}
