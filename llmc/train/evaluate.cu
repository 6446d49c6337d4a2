#include "llmc/train/evaluate.h"

#include <algorithm>

Evaluation::Evaluation(Step& step, std::vector<Question> questions) : step_(step), questions_(std::move(questions)) {
    const ShardPlace& place = step.stage().storage().place();
    ENSURE(place.mesh.cp == 1, "a question's tokens on ", place.mesh.cp, " ranks: nobody adds up their losses");
    const int T = step.stage().options().T;
    for (std::size_t i = 0; i < questions_.size(); i++) {
        if (questions_[i].longest() > static_cast<std::size_t>(T)) {
            throw Error(
                ErrorKind::usage,
                text("--hellaswag: question ", i, " has ", questions_[i].longest(), " tokens, --seq-len is ", T),
                "Raise --seq-len, or turn the evaluation off.");
        }
    }
}

// Mean loss per token of each row's completion; at most B rows.
std::vector<double> Evaluation::losses_of(std::span<const Row> rows) {
    const Stage& stage = step_.stage();
    const std::size_t T = static_cast<std::size_t>(stage.options().T);
    auto read = [&](int, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
        std::fill(tokens.begin(), tokens.end(), 0);
        std::fill(targets.begin(), targets.end(), -1);
        for (std::size_t b = 0; b < rows.size(); b++) {
            completion_row(questions_[rows[b].question], rows[b].completion, tokens.subspan(b * T, T),
                           targets.subspan(b * T, T));
        }
    };
    step_.forward(read, Purpose::loss);
    if (!stage.has_head()) return std::vector<double>(rows.size(), 0);   // another stage's are counted
    std::vector<float> losses(static_cast<std::size_t>(stage.options().B) * T);
    CUDA_CHECK(cudaMemcpyAsync(losses.data(), stage.losses(), losses.size() * sizeof(float), cudaMemcpyDeviceToHost,
                               stage.stream()));
    CUDA_CHECK(cudaStreamSynchronize(stage.stream()));

    std::vector<double> means;
    for (std::size_t b = 0; b < rows.size(); b++) {
        double sum = 0;   // positions without a target have loss 0
        for (std::size_t t = 0; t < T; t++) sum += losses[b * T + t];
        means.push_back(sum / static_cast<double>(questions_[rows[b].question].completions[rows[b].completion].size()));
    }
    return means;
}

// All completions of the questions of a replica, question by question.
std::vector<Evaluation::Row> Evaluation::rows_of_replica(int replica, int replicas) const {
    std::vector<Row> rows;
    for (auto q = static_cast<std::size_t>(replica); q < questions_.size(); q += static_cast<std::size_t>(replicas)) {
        for (std::size_t c = 0; c < questions_[q].completions.size(); c++) rows.push_back({q, c});
    }
    return rows;
}

int Evaluation::count_right(const std::vector<Row>& rows, const std::vector<double>& losses) const {
    int right = 0;
    for (std::size_t begin = 0; begin < rows.size();) {
        const Question& question = questions_[rows[begin].question];
        const auto first = losses.begin() + static_cast<std::ptrdiff_t>(begin);
        const auto last = first + static_cast<std::ptrdiff_t>(question.completions.size());
        right += std::min_element(first, last) - first == question.label;
        begin += question.completions.size();
    }
    return right;
}

std::optional<EvaluationResult> Evaluation::run(Agreement& agreement) {
    const ShardPlace& place = step_.stage().storage().place();
    const int replica = place.at.dp, replicas = place.mesh.dp;
    const std::vector<Row> rows = rows_of_replica(replica, replicas);
    std::size_t most = 0;   // rows of a rank: all go through the model equally often, because some layouts talk there
    for (int r = 0; r < replicas; r++) most = std::max(most, rows_of_replica(r, replicas).size());
    const auto B = static_cast<std::size_t>(step_.stage().options().B);
    std::vector<double> losses;
    for (std::size_t begin = 0; begin < most; begin += B) {
        const std::size_t first = std::min(begin, rows.size()), count = std::min(B, rows.size() - first);
        const std::vector<double> means = losses_of(std::span(rows).subspan(first, count));
        losses.insert(losses.end(), means.begin(), means.end());
        agreement.ask();
        if (agreement.stop_asked()) return std::nullopt;
    }
    EvaluationResult result;
    result.questions = static_cast<int>(questions_.size());
    result.right = static_cast<int>(agreement.sum(step_.stage().adds_losses() ? count_right(rows, losses) : 0));
    return result;
}
