// Multiple-choice evaluation: a question is answered right if the right completion has the lowest loss, by two rules:
// relative to its length, and summed over its tokens (the "acc_norm" and "acc" of the LM Evaluation Harness; the first
// among equals counts). The length is the characters of the answer, as the harness has it, or, where the file does not
// say them, its tokens, as llm.c has it for HellaSwag.
//
// LAMBADA's last word is right if no other token is likelier than any of its tokens, given those before; its perplexity
// is exp of the mean, over texts, of the word's negative log likelihood.
//
// Rows, one for each completion, are computed longest first, those of about one length together, as many as the stage
// has room for (windows.h); what follows a row's tokens does not reach its losses. A question longer than the stage's
// sequences loses the left part of its context. Data-parallel ranks share the rows of a pass, context-parallel ranks
// each row; in the end all ranks know the scores of all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/step/step.h"
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
    // Throws Error(usage) if a completion is longer than the stage's sequences. `arena`: allocates LAMBADA's margins;
    // required for LAMBADA only.
    Evaluation(Step& step, std::vector<Question> questions, const NamedSource& source = hellaswag_source,
               Arena* arena = nullptr);
    Evaluation(const Evaluation&) = delete;

    // Scores the completions of all questions. Collective. Returns nothing if a request to stop came before the end;
    // that is after the same pass on all ranks. The stage has its own shape again afterwards.
    std::optional<EvaluationResult> run(Agreement& agreement);

    std::size_t size() const { return questions_.size(); }
    const LeftOut& left_out() const { return left_out_; }
    const char* title() const { return source_.title; }   // name for people
    std::string in_words(const EvaluationResult& result) const;
    const char* name() const { return source_.name; }   // key in metrics.jsonl
    EvaluationRecord record_of(const EvaluationResult& result) const;

private:
    struct Row {
        std::size_t question, completion;
        std::size_t number;   // among all completions, question by question
        int length;           // tokens that the stage reads
    };
    std::vector<Row> rows_longest_first(int T) const;
    // Scores of all completions, question by question.
    struct Scores {
        std::vector<double> losses;     // sum over a completion's tokens
        std::vector<double> unlikely;   // tokens that are not the likeliest; counted for LAMBADA only
    };
    bool score(const std::vector<Row>& rows, Scores& scores, Agreement& agreement);
    void forward(std::span<const Row> rows);
    void add_sums_of_rows(std::span<const Row> rows, Scores& scores) const;
    EvaluationResult result_of(const Scores& scores) const;
    bool asks_last_words() const { return source_.source == QuestionSource::lambada; }

    Step& step_;
    std::vector<Question> questions_;
    LeftOut left_out_;
    const NamedSource& source_;
    DeviceBuffer<float> margins_;   // per position, for LAMBADA
};
