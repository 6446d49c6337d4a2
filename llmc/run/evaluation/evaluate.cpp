#include "llmc/run/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "llmc/base/log.h"
#include "llmc/run/evaluation/windows.h"

Evaluation::Evaluation(Step& step, std::vector<Question> questions, const NamedSource& source, Arena* arena)
    : step_(step),
      questions_(std::move(questions)),
      left_out_(left_out_of(questions_, static_cast<std::size_t>(step.stage().options().T), source.title)),
      source_(source) {
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

// Returns a row for each completion, the longest first.
std::vector<Evaluation::Row> Evaluation::rows_longest_first(int T) const {
    std::vector<Row> rows;
    for (std::size_t q = 0; q < questions_.size(); q++) {
        for (std::size_t c = 0; c < questions_[q].completions.size(); c++) {
            const std::size_t length = std::min(questions_[q].row_length(c), static_cast<std::size_t>(T));
            rows.push_back({q, c, rows.size(), static_cast<int>(length)});
        }
    }
    std::ranges::stable_sort(rows, std::greater{}, &Row::length);
    return rows;
}

// Computes the losses of at most B rows.
void Evaluation::forward(std::span<const Row> rows) {
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
}

// Adds up the scores of rows over this rank's positions of the latest forward. Positions without a target add nothing.
void Evaluation::add_sums_of_rows(std::span<const Row> rows, Scores& scores) const {
    const Stage& stage = step_.stage();
    const auto T = static_cast<std::size_t>(stage.sizes().T);
    std::vector<float> losses(rows.size() * T), margins(rows.size() * T, 0.0f);
    copy_to_host(losses.data(), stage.losses(), losses.size() * sizeof(float), stage.stream());
    if (asks_last_words()) {
        copy_to_host(margins.data(), margins_.data(), margins.size() * sizeof(float), stage.stream());
    }
    wait_for(stage.stream());
    for (std::size_t b = 0; b < rows.size(); b++) {
        for (std::size_t t = b * T; t < (b + 1) * T; t++) {
            scores.losses[rows[b].number] += losses[t];
            scores.unlikely[rows[b].number] += !(margins[t] <= 0);   // counts NaN too
        }
    }
}

// Adds this rank's part of the scores. Returns false if a request to stop came before the end.
bool Evaluation::score(const std::vector<Row>& rows, Scores& scores, Agreement& agreement) {
    Stage& stage = step_.stage();
    std::vector<int> lengths;
    for (const Row& row : rows) lengths.push_back(row.length);
    const PassRoom room{stage.options().B, stage.options().T, window_unit(stage), stage.data_ranks()};
    for (const Pass& pass : passes_of(lengths, room)) {
        const auto B = static_cast<std::size_t>(pass.B);
        const std::size_t begin = std::min(pass.begin + B * static_cast<std::size_t>(stage.data_rank()), pass.end);
        const std::span<const Row> own = std::span(rows).subspan(begin, std::min(B, pass.end - begin));
        stage.set_batch_shape(pass.B, pass.T);
        forward(own);
        if (stage.adds_losses()) add_sums_of_rows(own, scores);
        agreement.check_stop();
        if (agreement.stop_asked()) return false;
    }
    return true;
}

// Counts the right answers.
EvaluationResult Evaluation::result_of(const Scores& scores) const {
    EvaluationResult result;
    result.questions = static_cast<int>(size());
    std::size_t begin = 0;
    for (const Question& question : questions_) {
        const auto losses = std::span(scores.losses).subspan(begin, question.completions.size());
        std::vector<double> relative;
        for (std::size_t c = 0; c < losses.size(); c++) relative.push_back(losses[c] / question.length_of(c));
        const auto picks_label = [&](std::span<const double> values) {
            return std::ranges::min_element(values) - values.begin() == question.label;
        };
        result.right += asks_last_words() ? scores.unlikely[begin] == 0 : picks_label(relative);
        result.right_by_sum += !asks_last_words() && picks_label(losses);
        begin += losses.size();
    }
    if (asks_last_words()) {
        result.perplexity =
            std::exp(std::accumulate(scores.losses.begin(), scores.losses.end(), 0.0) / result.questions);
    }
    return result;
}

std::optional<EvaluationResult> Evaluation::run(Agreement& agreement) {
    Stage& stage = step_.stage();
    const int B = stage.options().B, T = stage.options().T;
    const std::vector<Row> rows = rows_longest_first(T);
    Scores scores{std::vector<double>(rows.size()), std::vector<double>(rows.size())};
    const bool whole = score(rows, scores, agreement);
    stage.set_batch_shape(B, T);
    if (!whole) return std::nullopt;
    agreement.sum(scores.losses);
    if (asks_last_words()) agreement.sum(scores.unlikely);
    return result_of(scores);
}
