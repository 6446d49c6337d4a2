#include "llmc/run/evaluation/evaluate.h"

#include <algorithm>

Evaluation::Evaluation(Step& step, std::vector<Question> questions, std::string title)
    : step_(step), questions_(std::move(questions)), title_(std::move(title)) {
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
std::vector<double> Evaluation::losses_of(std::span<const Row> rows, Agreement& agreement) {
    const Stage& stage = step_.stage();
    const auto B = static_cast<std::size_t>(stage.options().B), T = static_cast<std::size_t>(stage.sizes().T);
    const std::vector<TokenRange> ranges = stage.token_ranges();
    std::vector<std::int32_t> row_tokens(static_cast<std::size_t>(stage.options().T)), row_targets(row_tokens.size());
    auto read = [&](int, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
        std::fill(tokens.begin(), tokens.end(), 0);
        std::fill(targets.begin(), targets.end(), -1);
        for (std::size_t b = 0; b < rows.size(); b++) {
            completion_row(questions_[rows[b].question], rows[b].completion, row_tokens, row_targets);
            take_ranges(tokens.subspan(b * T, T), std::span<const std::int32_t>(row_tokens), ranges);
            take_ranges(targets.subspan(b * T, T), std::span<const std::int32_t>(row_targets), ranges);
        }
    };
    step_.forward(read, Purpose::loss);
    std::vector<float> losses(B * T, 0.0f);   // none where another stage has the head
    if (stage.has_head()) {
        CUDA_CHECK(cudaMemcpyAsync(losses.data(), stage.losses(), losses.size() * sizeof(float), cudaMemcpyDeviceToHost,
                                   stage.stream()));
    }
    wait_for(stage.stream());

    std::vector<double> sums(B);   // positions without a target have loss 0
    for (std::size_t b = 0; b < B; b++) {
        for (std::size_t t = 0; t < T; t++) sums[b] += losses[b * T + t];
    }
    if (stage.context().cp > 1) add_over_sequence(sums, agreement);
    std::vector<double> means;
    for (std::size_t b = 0; b < rows.size(); b++) {
        means.push_back(sums[b] /
                        static_cast<double>(questions_[rows[b].question].completions[rows[b].completion].size()));
    }
    return means;
}

// The sums of each row's losses over the cp ranks that share it. Other replicas have other rows: each has its own place
// in a sum over all ranks.
void Evaluation::add_over_sequence(std::vector<double>& sums, Agreement& agreement) const {
    const ShardPlace& place = step_.stage().storage().place();
    std::vector<double> all(sums.size() * static_cast<std::size_t>(place.mesh.dp));
    const auto own = all.begin() + static_cast<std::ptrdiff_t>(sums.size()) * place.at.dp;
    if (step_.stage().adds_losses()) std::copy(sums.begin(), sums.end(), own);
    agreement.sum(all);
    std::copy_n(own, sums.size(), sums.begin());
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
        const std::vector<double> means = losses_of(std::span(rows).subspan(first, count), agreement);
        losses.insert(losses.end(), means.begin(), means.end());
        agreement.ask();
        if (agreement.stop_asked()) return std::nullopt;
    }
    const bool counts = step_.stage().adds_losses() && place.at.cp == 0;   // the other cp ranks know the same
    EvaluationResult result;
    result.questions = static_cast<int>(questions_.size());
    result.right = static_cast<int>(agreement.sum(counts ? count_right(rows, losses) : 0));
    return result;
}
