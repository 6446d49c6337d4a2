// Rows of the lengths that questions need, and questions longer than the model's sequences.
#include "llmc/run/evaluation/evaluate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "llmc/base/stream.h"
#include "llmc/run/step/step.h"

namespace {

constexpr int vocab = 61;

// A model with random weights, for sequences of T tokens.
struct Model {
    Arena arena;
    OwnedStream stream;
    Stage stage;
    Step step;
    StopSignals signals;
    Agreement agreement;
    std::vector<std::int64_t> encoded;   // elements of the embedding's output, by forward

    Model(int B, int T)
        : stage(custom_model_config(2, 2, 32, 192, vocab), options_of(B, T), arena, stream.get()),
          step((initialize_parameters(stage.parameters(), 9, stream.get()), stage), {}, arena),
          agreement(arena, nullptr, nullptr, signals, stream.get()) {
        stage.show_activations([this](int, const std::string& name, const floatX*, std::int64_t count) {
            if (name == "encoded") encoded.push_back(count / stage.config().channels);
        });
    }
    static StageOptions options_of(int B, int T) {
        StageOptions options;
        options.B = B, options.T = T;
        options.attention = AttentionKind::own;
        options.backward = false;
        return options;
    }
};

std::vector<std::int32_t> ids(int first, int count) {
    std::vector<std::int32_t> result;
    for (int t = 0; t < count; t++) result.push_back((first + t * t) % vocab);
    return result;
}

// Loss of a completion, in a row as long as the stage's sequences.
double loss_in_whole_row(Model& model, const Question& question, std::size_t completion) {
    const auto T = static_cast<std::size_t>(model.stage.options().T);
    auto read = [&](int, const MicroBatch& to) {
        std::fill(to.tokens.begin(), to.tokens.end(), 0);
        std::fill(to.targets.begin(), to.targets.end(), -1);
        completion_row(question, completion, to.tokens.first(T), to.targets.first(T));
    };
    model.step.forward(read, Purpose::loss);
    std::vector<float> losses(T);
    copy_to_host(losses.data(), model.stage.losses(), T * sizeof(float), model.stream.get());
    wait_for(model.stream.get());
    return std::accumulate(losses.begin(), losses.end(), 0.0);
}

std::vector<Question> words(const std::vector<int>& contexts) {
    std::vector<Question> result;
    for (int context : contexts) result.push_back({0, ids(context, context), {ids(7 * context, 2)}});
    return result;
}

const NamedSource& lambada = question_sources[5];

}   // namespace

TEST_CASE("evaluation: rows are as long as their questions need, and score as whole ones do") {
    Model model(2, 192);
    const std::vector<Question> questions = words({10, 170, 30, 50, 62, 20});
    double loss = 0;
    for (const Question& question : questions) loss += loss_in_whole_row(model, question, 0);
    model.encoded.clear();
    Evaluation evaluation(model.step, questions, lambada, &model.arena);
    CHECK(evaluation.left_out().questions == 0);
    const EvaluationResult result = evaluation.run(model.agreement).value();
    CHECK(*result.perplexity == doctest::Approx(std::exp(loss / 6)).epsilon(sizeof(floatX) == 4 ? 1e-6 : 1e-2));
    CHECK(model.encoded == std::vector<std::int64_t>{192, 5 * 64});
    CHECK(model.stage.options().B == 2);
    CHECK(model.stage.options().T == 192);
}

TEST_CASE("evaluation: the answer is counted for the question it belongs to, whatever the lengths of rows") {
    Model model(1, 192);
    std::vector<Question> questions;
    int expected = 0, expected_by_sum = 0;
    for (int q = 0; q < 9; q++) {
        Question question{q % 3, ids(q, 3 + q * 41 % 120), {ids(q, 3), ids(30 + q, 60), ids(50, 1 + q)}};
        std::vector<double> sums, relative;
        for (std::size_t c = 0; c < 3; c++) {
            sums.push_back(loss_in_whole_row(model, question, c));
            relative.push_back(sums[c] / question.length_of(c));
        }
        expected += std::ranges::min_element(relative) - relative.begin() == question.label;
        expected_by_sum += std::ranges::min_element(sums) - sums.begin() == question.label;
        questions.push_back(std::move(question));
    }
    const EvaluationResult result = Evaluation(model.step, questions).run(model.agreement).value();
    CHECK(result.right == expected);
    CHECK(result.right_by_sum == expected_by_sum);
    CHECK((expected > 0 && expected < 9));
}

TEST_CASE("evaluation: a question longer than the sequences is scored by its last tokens") {
    Model model(2, 64);
    const std::vector<Question> questions = words({90, 63, 64, 10});   // 63 and a word of two are 64 to read
    std::vector<Question> cut = questions;
    cut[0].context.erase(cut[0].context.begin(), cut[0].context.end() - 63);
    cut[2].context.erase(cut[2].context.begin());
    Evaluation evaluation(model.step, questions, lambada, &model.arena);
    CHECK(evaluation.left_out().questions == 2);
    CHECK(evaluation.left_out().tokens == 28);
    CHECK(*evaluation.run(model.agreement)->perplexity ==
          *Evaluation(model.step, cut, lambada, &model.arena).run(model.agreement)->perplexity);
}
