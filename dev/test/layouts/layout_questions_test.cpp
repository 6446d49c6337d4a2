// Questions answered under any layout, as one process and as a double-precision model answers them.
#include <numeric>

#include "dev/test/layouts/layout_run_testing.h"
#include "dev/test/reference/reference_gpt_testing.h"
#include "llmc/data/questions.h"
#include "llmc/data/wide_tokenizer_testing.h"
#include "llmc/model/download_testing.h"

using namespace layout_runs;

TEST_CASE("layouts: pipelines and all axes together answer questions as one process does") {
    std::vector<Question> questions;
    for (int q = 0; q < 13; q++) {
        auto ids = [&](int first, int count) {
            std::vector<std::int32_t> tokens;
            for (int t = 0; t < count; t++) tokens.push_back((q * 17 + first + t * t) % vocab);
            return tokens;
        };
        questions.push_back({q % 3, ids(1, 4), {ids(5, 3), ids(29, 5), ids(40, 2)}});
    }
    const StopSignals signals;
    auto right = [&](RankOfRun& rank) {
        Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
        return Evaluation(*rank.step, questions).run(agreement).value().right;
    };
    int expected = 0;
    const Options options = options_of({}, "");
    on_layout({0, 0}, options, [&](RankOfRun& rank) { expected = right(rank); });
    expected = std::stoi(from_first_process(std::to_string(expected)));
    CHECK(expected > 0);
    CHECK(expected < 13);
    for (const Layout& layout :
         {pipeline(1, 0, 2), pipeline(2, 3, 2), all_axes(2, 1, 2, 2, 3), all_axes(2, 2, 2, 1, 1)}) {
        on_layout(layout, options_of(layout, ""), [&](RankOfRun& rank) {
            const int found = right(rank);
            ENSURE(found == expected, found, " right, one process has ", expected);
        });
    }
}

namespace {

// Invented questions of every kind, with what a double-precision model answers. The last words of every second text of
// LAMBADA's kind are what that model goes on with.
struct Invented {
    const NamedSource* source;
    std::vector<Question> questions;
    EvaluationResult expected;
    int rules_differ = 0;   // questions that the two rules of multiple choice answer differently
};

std::vector<double> reference_losses(const ReferenceGpt& reference, const Question& question, std::size_t completion,
                                     std::vector<int>* likeliest = nullptr) {
    std::vector<std::int32_t> tokens(T), targets(T);
    completion_row(question, completion, tokens, targets);
    const ReferenceResult result = reference.forward(tokens, targets, 1, T);
    std::vector<double> losses;
    for (std::size_t t = 0; t < T; t++) {
        if (targets[t] < 0) continue;
        losses.push_back(result.losses[t]);
        const auto row = result.logits.begin() + static_cast<std::ptrdiff_t>(t * vocab);
        if (likeliest) likeliest->push_back(static_cast<int>(std::max_element(row, row + vocab) - row));
    }
    return losses;
}

Invented invented_choices(const ReferenceGpt& reference, const NamedSource& source, int completions) {
    Invented made{&source, {}, {}};
    for (int q = 0; q < 11; q++) {
        auto ids = [&](int first, int count) {
            std::vector<std::int32_t> tokens;
            for (int t = 0; t < count; t++) tokens.push_back((q * 17 + first * completions + t * t) % vocab);
            return tokens;
        };
        Question question{q % completions, ids(1, 3 + q % 4), {}};
        std::vector<double> relative, sums;
        for (int c = 0; c < completions; c++) {
            question.completions.push_back(ids(5 + 11 * c, 1 + (q + c) % 5));
            const std::vector<double> losses = reference_losses(reference, question, static_cast<std::size_t>(c));
            sums.push_back(std::accumulate(losses.begin(), losses.end(), 0.0));
            double length = static_cast<double>(losses.size());
            if (completions != 3) {   // the others say characters
                const auto tokens = static_cast<std::int32_t>(losses.size());
                question.characters.push_back(1 + 3 * tokens * tokens + (q + c) % 3);   // long answers of long words
                length = question.characters.back();
            }
            relative.push_back(sums.back() / length);
        }
        const auto answer = [](const std::vector<double>& values) {
            return std::min_element(values.begin(), values.end()) - values.begin();
        };
        made.expected.right += answer(relative) == question.label;
        made.expected.right_by_sum += answer(sums) == question.label;
        made.rules_differ += answer(relative) != answer(sums);
        made.questions.push_back(question);
    }
    return made;
}

Invented invented_texts(const ReferenceGpt& reference) {
    Invented made{&question_sources[5], {}, {}};
    double loss = 0;
    for (int q = 0; q < 11; q++) {
        Question question{0, {}, {{1, 2}}};
        for (int t = 0; t < 2 + q; t++) question.context.push_back((q * 7 + t * t) % vocab);
        for (std::size_t word = 0; word < 2; word++) {   // the second one after the first
            std::vector<int> likeliest;
            reference_losses(reference, question, 0, &likeliest);
            question.completions[0][word] = likeliest[word];
        }
        if (q % 2 == 1) question.completions[0][static_cast<std::size_t>(q / 2 % 2)] += 1;   // one of them is another
        for (std::int32_t& id : question.completions[0]) id %= vocab;
        for (double l : reference_losses(reference, question, 0)) loss += l;
        made.expected.right += q % 2 == 0;
        made.questions.push_back(question);
    }
    made.expected.perplexity = std::exp(loss / 11);
    return made;
}

}   // namespace

TEST_CASE("layouts: every evaluation is that of a double-precision model, on invented questions") {
    constexpr double parity = sizeof(floatX) == 4 ? 1e-5 : 2e-2;
    const auto reference_of = [](RankOfRun& rank) {
        ReferenceGpt reference(rank.model.config());
        for (int i = 0; i < reference.table.size(); i++) {
            const std::vector<float> values = download_tensor(rank.model.parameters(), i, rank.model.stream());
            std::copy_n(values.begin(), reference.parameters[static_cast<std::size_t>(i)].size(),
                        reference.parameters[static_cast<std::size_t>(i)].begin());
        }
        return reference;
    };
    const auto invented_by = [](const ReferenceGpt& reference) {
        return std::vector<Invented>{
            invented_choices(reference, question_sources[0], 3), invented_choices(reference, question_sources[1], 4),
            invented_choices(reference, question_sources[2], 5), invented_choices(reference, question_sources[3], 5),
            invented_choices(reference, question_sources[4], 2), invented_texts(reference)};
    };
    std::vector<Invented> invented;
    const StopSignals signals;
    auto compare = [&](RankOfRun& rank) {
        for (const Invented& set : invented) {
            Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
            Evaluation evaluation(*rank.step, set.questions, *set.source, &rank.arena);
            const EvaluationResult found = evaluation.run(agreement).value();
            // in bf16 two completions, or two tokens, may be as likely
            const int apart = std::max(std::abs(found.right - set.expected.right),
                                       std::abs(found.right_by_sum - set.expected.right_by_sum));
            ENSURE(apart <= (sizeof(floatX) == 4 ? 0 : 2), evaluation.in_words(found), ", expected ",
                   evaluation.in_words(set.expected));
            if (!set.expected.perplexity) continue;
            ENSURE(std::abs(*found.perplexity / *set.expected.perplexity - 1) < parity, evaluation.in_words(found),
                   ", expected perplexity ", *set.expected.perplexity);
        }
    };
    {   // in every process, which all need what is expected
        Arena arena;
        OwnedStream stream;
        RankOfRun alone(options_of({}, ""), nullptr, RankLayout{}, arena, stream.get());
        invented = invented_by(reference_of(alone));
        for (const Invented& set : invented) {
            CHECK((set.expected.right > 0 && set.expected.right < 11));
            CHECK((set.expected.perplexity || set.rules_differ > 0));
        }
        compare(alone);
    }
    Layout not_sequence_parallel = all_axes(2, 1, 1, 2, 1);
    not_sequence_parallel.sequence_parallel = false;
    for (const Layout& layout :
         {Layout{3, 2}, Layout{2, 3}, pipeline(2, 1, 2), context(2, 3, true, 2, 1), context(1, 0, true, 2, 2),
          not_sequence_parallel, all_axes(2, 2, 2, 1, 1), all_axes(2, 1, 2, 2, 3)}) {
        on_layout(layout, options_of(layout, ""), compare);
    }
}

TEST_CASE("layouts: questions of 128,256 ids are answered under tp, pp and cp as one process does") {
    const Tokenizer tokenizer = wide_tokenizer(64);
    std::vector<QuestionText> texts;
    for (int q = 0; q < 7; q++) {
        auto words = [&](int first, int count) {
            std::string made;
            for (int t = 0; t < count; t++) made += text("<", (q * 17 + first + t * t) % 64, ">");
            return made;
        };
        texts.push_back({words(1, 4), {words(5, 3), words(29, 5), words(40, 2)}, static_cast<std::size_t>(q % 3)});
    }
    const std::vector<Question> questions =
        parse_question_file(to_question_file(tokenizer, texts), "wide", wide_vocab_size, tokenizer.hash());
    CHECK(questions[1].completions[0][0] > 65535);
    const StopSignals signals;
    const auto wide_options = [](const Layout& layout) {
        Options options = options_of(layout, "");
        options.vocab_size = wide_vocab_size, options.layers = 2;
        return options;
    };
    const auto right = [&](RankOfRun& rank) {
        Agreement agreement(rank.arena, rank.groups.all, rank.world, signals, rank.model.stream());
        return Evaluation(*rank.step, questions).run(agreement).value().right;
    };
    int expected = 0;
    on_layout({0, 0}, wide_options({}), [&](RankOfRun& rank) { expected = right(rank); });
    expected = std::stoi(from_first_process(std::to_string(expected)));
    CHECK((expected > 0 && expected < 7));
    for (const Layout& layout :
         {all_axes(2, 1, 1, 1, 0), pipeline(1, 0, 2), context(1, 0, true, 2, 1), all_axes(2, 2, 2, 1, 1)}) {
        on_layout(layout, wide_options(layout), [&](RankOfRun& rank) {
            const int found = right(rank);
            const int apart = std::abs(found - expected);   // in bf16 two completions may be as likely
            ENSURE(apart <= (sizeof(floatX) == 4 ? 0 : 1), found, " right, one process has ", expected);
        });
    }
}
