// Multiple-choice evaluation: a question is answered right when the right completion has the lowest mean loss per token
// (HellaSwag's "acc_norm", as llm.c computes it; the first of equals counts).
//
// Data-parallel ranks share the questions: question q is answered by rank q mod N. Context-parallel ranks share a row;
// their losses are summed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "llmc/data/multiple_choice.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/agreement.h"

struct EvaluationResult {
    int right = 0, questions = 0;
    double accuracy() const { return questions > 0 ? static_cast<double>(right) / questions : 0; }
};

class Evaluation {
public:
    // Error(usage) where a question is longer than the model's sequences.
    Evaluation(Step& step, std::vector<Question> questions, std::string title = "HellaSwag");

    // Completions of all questions in rows of the model's micro-batches. Collective. None where a request to stop came
    // before the end, at the same micro-batch on all ranks.
    std::optional<EvaluationResult> run(Agreement& agreement);

    std::size_t size() const { return questions_.size(); }
    const std::string& title() const { return title_; }   // whose questions they are

private:
    struct Row {
        std::size_t question, completion;
    };
    std::vector<Row> rows_of_replica(int replica, int replicas) const;
    std::vector<double> losses_of(std::span<const Row> rows, Agreement& agreement);
    void add_over_sequence(std::vector<double>& sums, Agreement& agreement) const;
    int count_right(const std::vector<Row>& rows, const std::vector<double>& losses) const;

    Step& step_;
    std::vector<Question> questions_;
    std::string title_;
};
