// Reads questions in llm.c's format: a context and several completions, one of them right; of LAMBADA one, the last
// word.
//
//   byte 0      256 little-endian int32:
//                 [0] magic 20240522
//                 [1] version: 1: words are uint16 (llm.c's), 2: uint32
//                 [2] number of questions
//                 [3] bytes of the longest question
//                 [4] [5] hash of the tokenizer, its lower half first; 0: not said
//                 [6] source (QuestionSource); 0: not said
//                 [7] [8] hash of all other bytes of the file, its lower half first; 0: the file has none
//                 [9] how texts became ids (QuestionIds)
//                 rest 0
//   byte 1024   the questions, in words, without gaps; docs/formats.md ("Questions") has the words of one
//
// llm.c and older programs write no hash of the content. They ignore ours, so llm.c reads our files of version 1.
// Everything is checked when the file is read; what is wrong is Error(bad_data) with file and byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/io/file.h"

inline constexpr std::int32_t question_file_magic = 20240522;

enum class QuestionFormat : std::int32_t { uint16_words = 1, uint32_words };   // version of the file
inline constexpr std::int64_t most_ids_of_uint16_words = 65535;
constexpr std::size_t bytes_per_word(QuestionFormat format) { return format == QuestionFormat::uint16_words ? 2 : 4; }
// Returns the first word of a question, the largest there is.
constexpr std::uint32_t question_mark(QuestionFormat format) {
    return format == QuestionFormat::uint16_words ? 65535 : 4294967295;
}

// Publisher of the questions, as a number in the file's header, where 0 means that it is not said.
enum class QuestionSource : std::uint8_t { hellaswag = 1, mmlu, arc_easy, piqa, lambada, arc_challenge };

// How the texts of the questions became ids, as a number in the file's header.
enum class QuestionIds : std::int32_t {
    apart = 0,   // each text by itself, without tokens in front: llm.c's files, and all of older programs
    together,    // completions behind their context, after the tokenizer's tokens in front (llmc/tokenizer/text_ids.h)
};

struct NamedSource {
    QuestionSource source;
    const char *name, *title;   // in options and metrics; for people
    const char* file;           // path to which its script in data/ writes
};
inline constexpr NamedSource question_sources[] = {
    {QuestionSource::hellaswag, "hellaswag", "HellaSwag", "data/hellaswag/hellaswag_val.bin"},
    {QuestionSource::mmlu, "mmlu", "MMLU", "data/mmlu/mmlu_test.bin"},
    {QuestionSource::arc_easy, "arc_easy", "ARC easy", "data/arc/arc_easy_test.bin"},
    {QuestionSource::arc_challenge, "arc_challenge", "ARC challenge", "data/arc/arc_challenge_test.bin"},
    {QuestionSource::piqa, "piqa", "PIQA", "data/piqa/piqa_val.bin"},
    {QuestionSource::lambada, "lambada", "LAMBADA", "data/lambada/lambada_test.bin"},
};
inline constexpr const NamedSource& hellaswag_source = question_sources[0];   // llm.c's
std::string names_of_sources();                                               // "hellaswag, mmlu, ..."

struct Question {
    int label = 0;   // index of the right completion
    std::vector<std::int32_t> context;
    std::vector<std::vector<std::int32_t>> completions;
    std::vector<std::int32_t> characters = {};   // per completion, of its text; empty: the file does not say

    std::size_t longest() const;   // tokens of context and longest completion
    // Tokens that a model reads to score a completion: context and completion but for the last one.
    std::size_t row_length(std::size_t completion) const { return context.size() + completions[completion].size() - 1; }
    double length_of(std::size_t completion) const;   // characters; tokens where the file does not say them
};

// Position of the content's hash in the file.
inline constexpr std::size_t question_hash_begin = 28, question_hash_bytes = 8;
// Returns the hash of all bytes but those.
std::uint64_t hash_of_questions(std::string_view content);
// Returns a warning about a file that has no such hash; empty: it has one.
std::string warning_of_questions(std::string_view content, const std::string& name);

// Returns how the texts of the questions became ids.
QuestionIds ids_of_questions(std::string_view content, const std::string& name);

// Parses a file's whole `content`; `name` is what messages call it. Error(bad_data) too where the file says that it was
// made with another tokenizer than that of a hash.
std::vector<Question> parse_question_file(std::string_view content, const std::string& name, std::int64_t vocab_size,
                                          std::optional<std::uint64_t> tokenizer_hash = std::nullopt);
std::vector<Question> read_questions(const FileSystem& files, const std::string& path, std::int64_t vocab_size);

// Returns whose questions these are: as the file says, else by its name MMLU's or HellaSwag's.
const NamedSource& source_of_questions(std::string_view content, const std::string& name);

// Counts what rows of T tokens leave out of questions.
struct LeftOut {
    std::size_t questions = 0;          // that lose a part of their context
    std::size_t tokens = 0, most = 0;   // which they lose for their longest completion: of all, and of one question
    std::size_t first = 0;              // index of the first such question
};
// Throws Error(usage) for a completion of more than T tokens, which no row holds; `title` names the questions.
LeftOut left_out_of(const std::vector<Question>& questions, std::size_t T, const std::string& title);

// Writes one completion as a row for the model: tokens and targets of length T, targets -1 (no loss) except where a
// token of the completion is predicted, from the context's last position on. What is to the right is padding: causal
// attention does not see it. A row that is too short holds the last T tokens, as in lm-evaluation-harness.
void completion_row(const Question& question, std::size_t completion, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets);
