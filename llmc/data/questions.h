// Turns multiple-choice questions, as they are published, into the file that multiple_choice.h reads.
//
//   HellaSwag   JSONL: {"ctx": "A man is", "endings": ["...", "...", "...", "..."], "label": 2, ...}
//               context: ctx; completions: " " + ending
//   MMLU        CSV without a header, RFC 4180 quoting: question,A,B,C,D,answer with the answer a letter; or JSONL:
//               {"question": "...", "choices": ["...", ...], "answer": 2, ...}
//               context: "Question: " + question + "\n\nAnswer:"; completions: " " + choice
//
//   ARC         JSONL: {"question": {"stem": "...", "choices": [{"text": "...", "label": "A"}, ...]},
//               "answerKey": "C"}, or {"question": "...", "choices": {"text": [...], "label": [...]}, "answerKey": "C"}
//               context: "Question: " + question + "\nAnswer:"; completions: " " + choice
//   PIQA        JSONL: {"goal": "...", "sol1": "...", "sol2": "...", "label": 1, ...}
//               context: "Question: " + goal + "\nAnswer:"; completions: " " + solution
//   LAMBADA     JSONL: {"text": "..."}; context: up to the last word; completion: " " + the last word
//
// The first two are llm.c's contexts and completions, so results compare with its; the others are those of the LM
// Evaluation Harness. What is wrong with a file is Error(bad_data) with file and offset.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/multiple_choice.h"
#include "llmc/tokenizer/tokenizer.h"

struct QuestionText {
    std::string context;
    std::vector<std::string> completions;
    std::size_t label = 0;    // index of the right completion
    std::string place = "";   // file and offset, for messages
};

// Parses published questions. A `name` that ends in .csv is CSV, anything else JSONL; messages have it too.
std::vector<QuestionText> parse_questions(QuestionSource source, std::string_view content, const std::string& name);

// Returns the format of a question file for a tokenizer: llm.c's while it holds the ids, unless `wide`.
QuestionFormat question_format_for(const Tokenizer& tokenizer, bool wide = false);

// Returns the bytes of the question file, all checked to fit its words.
std::string to_question_file(const Tokenizer& tokenizer, const std::vector<QuestionText>& questions,
                             QuestionSource source = QuestionSource::hellaswag, bool wide = false,
                             QuestionIds way = QuestionIds::together);

// Returns a warning where no context begins with the tokens that the tokenizer puts in front of a text: scores are then
// not those of lm-evaluation-harness. Empty: they do, or there are no such tokens.
std::string warning_of_contexts(const std::vector<Question>& questions, const std::string& name,
                                const Tokenizer& tokenizer);
