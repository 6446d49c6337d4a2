#include "llmc/train/evaluate.h"

#include <algorithm>

Evaluation::Evaluation(Gpt& model, Arena& arena, std::vector<Question> questions)
    : model_(model),
      questions_(std::move(questions)),
      batch_(arena, model.options().B, model.options().T, model.config().vocab_size) {
    for (std::size_t i = 0; i < questions_.size(); i++) {
        if (questions_[i].longest() > static_cast<std::size_t>(model.options().T)) {
            throw Error(ErrorKind::usage,
                        text("--hellaswag: question ", i, " has ", questions_[i].longest(), " tokens, --seq-len is ",
                             model.options().T),
                        "Raise --seq-len, or turn the evaluation off.");
        }
    }
}

// Mean loss per token of each row's completion; at most B rows.
std::vector<double> Evaluation::losses_of(const std::vector<Row>& rows) {
    const std::size_t B = static_cast<std::size_t>(model_.options().B),
                      T = static_cast<std::size_t>(model_.options().T);
    std::vector<std::int32_t> tokens(B * T, 0), targets(B * T, -1);
    for (std::size_t b = 0; b < rows.size(); b++) {
        completion_row(questions_[rows[b].question], rows[b].completion, std::span(tokens).subspan(b * T, T),
                       std::span(targets).subspan(b * T, T));
    }
    batch_.upload(tokens, targets, model_.stream());
    model_.forward_loss(batch_.batch());
    std::vector<float> losses(B * T);
    CUDA_CHECK(cudaMemcpyAsync(losses.data(), model_.activations().losses, losses.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));

    std::vector<double> means;
    for (std::size_t b = 0; b < rows.size(); b++) {
        double sum = 0;   // positions without a target have loss 0
        for (std::size_t t = 0; t < T; t++) sum += losses[b * T + t];
        means.push_back(sum / static_cast<double>(questions_[rows[b].question].completions[rows[b].completion].size()));
    }
    return means;
}

EvaluationResult Evaluation::run() {
    std::vector<std::vector<double>> losses(questions_.size());
    std::vector<Row> rows;
    auto flush = [&] {
        const std::vector<double> means = losses_of(rows);
        for (std::size_t i = 0; i < rows.size(); i++) losses[rows[i].question].push_back(means[i]);
        rows.clear();
    };
    for (std::size_t q = 0; q < questions_.size(); q++) {
        for (std::size_t c = 0; c < questions_[q].completions.size(); c++) {
            rows.push_back({q, c});
            if (rows.size() == static_cast<std::size_t>(model_.options().B)) flush();
        }
    }
    if (!rows.empty()) flush();

    EvaluationResult result;
    result.questions = static_cast<int>(questions_.size());
    for (std::size_t q = 0; q < questions_.size(); q++) {
        const auto best = std::min_element(losses[q].begin(), losses[q].end());
        result.right += best - losses[q].begin() == questions_[q].label;
    }
    return result;
}
