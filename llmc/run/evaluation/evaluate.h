// Multiple-choice evaluation: a question is answered right if the right completion has the lowest loss, by two rules:
// relative to its length, and summed over its tokens (the "acc_norm" and "acc" of the LM Evaluation Harness; the first
// among equals counts). The length is the characters of the answer, as the harness has it, or, where the file does not
// say them, its tokens, as llm.c has it for HellaSwag.
//
// LAMBADA's last word is right if no other token is likelier than any of its tokens, given those before; its perplexity
// is exp of the mean, over texts, of the word's negative log likelihood.
//
// Data-parallel ranks share the questions: question q is answered by rank q mod N. Context-parallel ranks share a row;
// their losses are summed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/agreement.h"

struct EvaluationResult {
    int right = 0;          // by loss relative to length; of LAMBADA, last words
    int right_by_sum = 0;   // 0 for LAMBADA
    int questions = 0;
    std::optional<double> perplexity = {};   // LAMBADA only
    double share(int of) const { return questions > 0 ? static_cast<double>(of) / questions : 0; }
};

class Evaluation {
public:
    // Throws Error(usage) if a question is longer than the model's sequences. `arena`: allocates LAMBADA's margins;
    // required for LAMBADA only.
    Evaluation(Step& step, std::vector<Question> questions, const NamedSource& source = hellaswag_source,
               Arena* arena = nullptr);
    Evaluation(const Evaluation&) = delete;

    // Scores the completions of all questions, in rows of the model's micro-batches. Collective. Returns nothing if a
    // request to stop came before the end; that is at the same micro-batch on all ranks.
    std::optional<EvaluationResult> run(Agreement& agreement);

    std::size_t size() const { return questions_.size(); }
    const char* title() const { return source_.title; }   // name for people
    std::string in_words(const EvaluationResult& result) const;
    const char* name() const { return source_.name; }   // key in metrics.jsonl
    EvaluationRecord record_of(const EvaluationResult& result) const;

private:
    struct Row {
        std::size_t question, completion;
    };
    std::vector<Row> rows_of_replica(int replica, int replicas) const;
    // Score of one completion.
    struct Score {
        double loss = 0;       // sum over its tokens
        double unlikely = 0;   // tokens that are not the likeliest; counted for LAMBADA only
    };
    std::vector<Score> scores_of(std::span<const Row> rows, Agreement& agreement);
    std::vector<Score> sums_of_rows() const;
    void add_over_sequence(std::vector<Score>& sums, Agreement& agreement) const;
    void count_right(const std::vector<Row>& rows, const std::vector<Score>& scores, EvaluationResult& result) const;
    bool asks_last_words() const { return source_.source == QuestionSource::lambada; }

    Step& step_;
    std::vector<Question> questions_;
    const NamedSource& source_;
    DeviceBuffer<float> margins_;   // per position, for LAMBADA
};
