#include "llmc/run/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "llmc/base/log.h"

Evaluation::Evaluation(Step& step, std::vector<Question> questions, const NamedSource& source, Arena* arena)
    : step_(step), questions_(std::move(questions)), source_(source) {
    const int T = step.stage().options().T;
    for (std::size_t i = 0; i < questions_.size(); i++) {
        if (questions_[i].longest() > static_cast<std::size_t>(T)) {
            throw Error(ErrorKind::usage,
                        text(title(), ": question ", i, " has ", questions_[i].longest(), " tokens, --seq-len is ", T),
                        "Raise --seq-len, or turn the evaluation off.");
        }
    }
    if (!asks_last_words()) return;
    ENSURE(arena != nullptr, title(), " needs memory");
    margins_ = arena->allocate<float>("evaluation/margins", static_cast<std::size_t>(step.stage().tokens()));
}

std::string Evaluation::in_words(const EvaluationResult& result) const {
    const auto share = [&](int right) { return formatted("%d/%d = %f", right, result.questions, result.share(right)); };
    const std::string by_length = formatted("%s: %s", title(), share(result.right).c_str());
    if (result.perplexity) return by_length + formatted(" | perplexity %.3f", *result.perplexity);
    const char* const length = questions_[0].characters.empty() ? "token" : "character";
    return by_length + formatted(" by loss per %s | %s by sum", length, share(result.right_by_sum).c_str());
}

EvaluationRecord Evaluation::record_of(const EvaluationResult& result) const {
    EvaluationRecord record{name(), result.share(result.right)};
    if (!asks_last_words()) record.accuracy_by_sum = result.share(result.right_by_sum);
    record.perplexity = result.perplexity;
    return record;
}

// Sums the scores of each row of the current micro-batch over this rank's positions. Positions without a target add
// nothing.
std::vector<Evaluation::Score> Evaluation::sums_of_rows() const {
    const Stage& stage = step_.stage();
    const auto B = static_cast<std::size_t>(stage.options().B), T = static_cast<std::size_t>(stage.sizes().T);
    std::vector<float> losses(B * T, 0.0f), margins(B * T, 0.0f);   // stay 0 where another stage has the head
    auto download = [&](std::vector<float>& to, const float* from) {
        copy_to_host(to.data(), from, to.size() * sizeof(float), stage.stream());
    };
    if (stage.has_head()) download(losses, stage.losses());
    if (stage.has_head() && asks_last_words()) download(margins, margins_.data());
    wait_for(stage.stream());
    std::vector<Score> sums(B);
    for (std::size_t b = 0; b < B; b++) {
        for (std::size_t t = b * T; t < (b + 1) * T; t++) {
            sums[b].loss += losses[t];
            sums[b].unlikely += !(margins[t] <= 0);   // counts NaN too
        }
    }
    return sums;
}

// Scores the completion of each row; at most B rows.
std::vector<Evaluation::Score> Evaluation::scores_of(std::span<const Row> rows, Agreement& agreement) {
    Stage& stage = step_.stage();
    const auto T = static_cast<std::size_t>(stage.sizes().T);
    const std::vector<TokenRange> ranges = stage.token_ranges();
    std::vector<std::int32_t> row_tokens(static_cast<std::size_t>(stage.options().T)), row_targets(row_tokens.size());
    auto read = [&](int, const MicroBatch& to) {
        std::fill(to.tokens.begin(), to.tokens.end(), 0);
        std::fill(to.targets.begin(), to.targets.end(), -1);
        for (std::size_t b = 0; b < rows.size(); b++) {
            completion_row(questions_[rows[b].question], rows[b].completion, row_tokens, row_targets);
            take_ranges(to.tokens.subspan(b * T, T), std::span<const std::int32_t>(row_tokens), ranges);
            take_ranges(to.targets.subspan(b * T, T), std::span<const std::int32_t>(row_targets), ranges);
        }
    };
    if (asks_last_words()) stage.keep_margins(margins_.data());
    step_.forward(read, Purpose::loss);
    stage.keep_margins(nullptr);
    std::vector<Score> sums = sums_of_rows();
    if (stage.context().cp > 1) add_over_sequence(sums, agreement);
    sums.resize(rows.size());
    return sums;
}

// Sums each row over the cp ranks that share it. Every replica has its own rows, so each has its own place in the sum
// over all ranks.
void Evaluation::add_over_sequence(std::vector<Score>& sums, Agreement& agreement) const {
    const Stage& stage = step_.stage();
    std::vector<double> all(2 * sums.size() * static_cast<std::size_t>(stage.data_ranks()));
    double* const local = all.data() + 2 * sums.size() * static_cast<std::size_t>(stage.data_rank());
    for (std::size_t b = 0; b < sums.size() && stage.adds_losses(); b++) {
        local[2 * b] = sums[b].loss;
        local[2 * b + 1] = sums[b].unlikely;
    }
    agreement.sum(all);
    for (std::size_t b = 0; b < sums.size(); b++) sums[b] = {local[2 * b], local[2 * b + 1]};
}

// Returns all completions of a replica's questions, question by question.
std::vector<Evaluation::Row> Evaluation::rows_of_replica(int replica, int replicas) const {
    std::vector<Row> rows;
    for (auto q = static_cast<std::size_t>(replica); q < questions_.size(); q += static_cast<std::size_t>(replicas)) {
        for (std::size_t c = 0; c < questions_[q].completions.size(); c++) rows.push_back({q, c});
    }
    return rows;
}

// Adds the right answers of a replica's rows to `result`.
void Evaluation::count_right(const std::vector<Row>& rows, const std::vector<Score>& scores,
                             EvaluationResult& result) const {
    for (std::size_t begin = 0; begin < rows.size();) {
        const Question& question = questions_[rows[begin].question];
        std::vector<double> losses, relative;
        for (std::size_t c = 0; c < question.completions.size(); c++) {
            losses.push_back(scores[begin + c].loss);
            relative.push_back(losses[c] / question.length_of(c));
        }
        const auto picks_label = [&](const std::vector<double>& values) {
            return std::ranges::min_element(values) - values.begin() == question.label;
        };
        result.right += asks_last_words() ? scores[begin].unlikely == 0 : picks_label(relative);
        result.right_by_sum += !asks_last_words() && picks_label(losses);
        begin += question.completions.size();
    }
}

std::optional<EvaluationResult> Evaluation::run(Agreement& agreement) {
    const int replica = step_.stage().data_rank(), replicas = step_.stage().data_ranks();
    const std::vector<Row> rows = rows_of_replica(replica, replicas);
    std::size_t most = 0;   // most rows of a replica; all make as many forwards, because some layouts communicate
    for (int r = 0; r < replicas; r++) most = std::max(most, rows_of_replica(r, replicas).size());
    const auto B = static_cast<std::size_t>(step_.stage().options().B);
    std::vector<Score> scores;
    for (std::size_t begin = 0; begin < most; begin += B) {
        const std::size_t first = std::min(begin, rows.size()), count = std::min(B, rows.size() - first);
        std::ranges::copy(scores_of(std::span(rows).subspan(first, count), agreement), std::back_inserter(scores));
        agreement.check_stop();
        if (agreement.stop_asked()) return std::nullopt;
    }
    const bool counts =
        step_.stage().adds_losses() && step_.stage().context().rank == 0;   // the other cp ranks have the same sums
    EvaluationResult own;
    count_right(rows, scores, own);
    double loss = 0;
    for (const Score& score : scores) loss += score.loss;
    std::vector<double> sums(3, 0.0);
    if (counts) sums = {static_cast<double>(own.right), static_cast<double>(own.right_by_sum), loss};
    agreement.sum(sums);
    EvaluationResult result{static_cast<int>(sums[0]), static_cast<int>(sums[1]), static_cast<int>(size())};
    if (asks_last_words()) result.perplexity = std::exp(sums[2] / result.questions);
    return result;
}
