#include "llmc/data/questions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/tokenizer/text_ids.h"

namespace {

[[noreturn]] void bad(const std::string& name, std::size_t offset, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(name, ": offset ", offset, ": ", what),
                "Take the file from where it was published, or see `tokenize --help` for --questions.");
}

QuestionText mmlu_question(const std::string& question, const std::vector<std::string>& choices, std::size_t label) {
    QuestionText result{text("Question: ", question, "\n\nAnswer:"), {}, label};
    for (const std::string& choice : choices) result.completions.push_back(text(" ", choice));
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// JSONL

constexpr std::uint64_t largest_label = 65535;   // more than a question has completions

QuestionText harness_question(const std::string& question) {
    return {text("Question: ", question, "\nAnswer:"), {}, 0};
}

// Reads a label, which is a number, or a text of one in some copies.
std::size_t label_from(const Json& label) {
    return (label.is_text() ? parse_json(label.as_text()) : label).as_whole(largest_label);
}

QuestionText arc_question(const Json& json) {
    const Json &question = json.at("question"),
               &choices = question.is_text() ? json.at("choices") : question.at("choices");
    QuestionText result = harness_question(question.is_text() ? question.as_text() : question.at("stem").as_text());
    std::vector<std::string> labels;
    auto add = [&](const Json& choice, const Json& label) {
        result.completions.push_back(text(" ", choice.as_text()));
        labels.push_back(label.as_text());
    };
    if (choices.is_array()) {
        for (const Json& choice : choices.elements()) add(choice.at("text"), choice.at("label"));
    } else {
        const std::vector<Json>&texts = choices.at("text").elements(), &names = choices.at("label").elements();
        if (texts.size() != names.size()) throw JsonError("as many labels as choices are expected", choices.offset());
        for (std::size_t i = 0; i < texts.size(); i++) add(texts[i], names[i]);
    }
    const std::string& right = json.at("answerKey").as_text();
    result.label = static_cast<std::size_t>(std::ranges::find(labels, right) - labels.begin());
    return result;
}

QuestionText piqa_question(const Json& json) {
    QuestionText result = harness_question(json.at("goal").as_text());
    for (const char* key : {"sol1", "sol2"}) result.completions.push_back(text(" ", json.at(key).as_text()));
    result.label = label_from(json.at("label"));
    return result;
}

QuestionText lambada_question(const Json& json) {
    std::string whole = json.at("text").as_text();
    whole.erase(std::min(whole.find_last_not_of(" \t\r\n") + 1, whole.size()));
    const std::size_t space = whole.rfind(' ');
    if (space == std::string::npos || space == 0)
        throw JsonError("expected a text of several words", json.at("text").offset());
    return {whole.substr(0, space), {whole.substr(space)}, 0};
}

QuestionText from_json(QuestionSource source, const Json& json) {
    if (source == QuestionSource::arc_easy || source == QuestionSource::arc_challenge) return arc_question(json);
    if (source == QuestionSource::piqa) return piqa_question(json);
    if (source == QuestionSource::lambada) return lambada_question(json);
    if (source == QuestionSource::mmlu) {
        std::vector<std::string> choices;
        for (const Json& choice : json.at("choices").elements()) choices.push_back(choice.as_text());
        return mmlu_question(json.at("question").as_text(), choices, json.at("answer").as_whole(largest_label));
    }
    QuestionText result{json.at("ctx").as_text(), {}, 0};
    for (const Json& ending : json.at("endings").elements()) {
        result.completions.push_back(text(" ", ending.as_text()));
    }
    result.label = label_from(json.at("label"));
    return result;
}

std::vector<QuestionText> parse_jsonl(QuestionSource source, std::string_view content, const std::string& name) {
    std::vector<QuestionText> questions;
    for (std::size_t begin = 0, next; begin < content.size(); begin = next) {
        const std::size_t end = std::min(content.find('\n', begin), content.size());
        next = end + 1;
        const std::string_view line = content.substr(begin, end - begin);
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        try {
            questions.push_back(from_json(source, parse_json(line)));
        } catch (const JsonSyntaxError& problem) {
            bad(name, begin + problem.byte, text("not JSON: ", problem.what()));
        } catch (const JsonError& problem) {
            bad(name, begin, text("this line is no such question: ", problem.what()));
        }
        QuestionText& question = questions.back();
        question.place = text(name, ": offset ", begin, ": ");
        const std::size_t fewest = source == QuestionSource::lambada ? 1 : 2;
        if (question.completions.size() < fewest || question.label >= question.completions.size()) {
            bad(name, begin, text("the right answer is number ", question.label, " of ", question.completions.size()));
        }
    }
    return questions;
}

// ---------------------------------------------------------------------------------------------------------------------
// CSV

class CsvReader {
public:
    CsvReader(std::string_view content, const std::string& name) : content_(content), name_(name) {}

    std::size_t offset() const { return at_; }

    // Reads the next record's fields; false at the end. Empty lines are passed over.
    bool next(std::vector<std::string>& fields) {
        while (at_ < content_.size() && (content_[at_] == '\n' || content_[at_] == '\r')) at_++;
        if (at_ >= content_.size()) return false;
        fields.clear();
        do {
            fields.push_back(field());
        } while (take(','));
        take('\r');
        if (at_ < content_.size() && !take('\n')) bad(name_, at_, "text behind a closing quote");
        return true;
    }

private:
    bool take(char c) {
        if (at_ >= content_.size() || content_[at_] != c) return false;
        at_++;
        return true;
    }
    std::string field() {
        const std::size_t begin = at_;
        if (!take('"')) {
            at_ = std::min(content_.find_first_of(",\r\n", at_), content_.size());
            return std::string(content_.substr(begin, at_ - begin));
        }
        std::string value;
        while (true) {
            const std::size_t quote = content_.find('"', at_);
            if (quote == std::string_view::npos) bad(name_, begin, "the file ends inside this quoted field");
            value += content_.substr(at_, quote - at_);
            at_ = quote + 1;
            if (!take('"')) return value;
            value += '"';   // two quotes stand for one
        }
    }

    std::string_view content_;
    const std::string& name_;
    std::size_t at_ = 0;
};

std::vector<QuestionText> parse_mmlu_csv(std::string_view content, const std::string& name) {
    std::vector<QuestionText> questions;
    CsvReader reader(content, name);
    std::vector<std::string> fields;
    for (std::size_t begin = 0; reader.next(fields); begin = reader.offset()) {
        if (fields.size() != 6) bad(name, begin, text("a record of ", fields.size(), " fields, expected 6"));
        const std::string letter = fields.back();
        if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D') {
            bad(name, begin, text("the answer is '", letter.substr(0, 20), "', expected A, B, C or D"));
        }
        questions.push_back(mmlu_question(fields[0], {fields.begin() + 1, fields.end() - 1},
                                          static_cast<std::size_t>(letter[0] - 'A')));
        questions.back().place = text(name, ": offset ", begin, ": ");
    }
    return questions;
}

// ---------------------------------------------------------------------------------------------------------------------
// Words of the file

class QuestionEncoder {
public:
    QuestionEncoder(const Tokenizer& tokenizer, QuestionIds way) : way_(way), together_(tokenizer), apart_(tokenizer) {}

    ContinuedText encode(const std::string& context, const std::string& completion) {
        if (way_ == QuestionIds::together) return together_.encode_continued(context, completion);
        ContinuedText ids;
        apart_.encode(context, ids.context);
        apart_.encode(completion, ids.completion);
        return ids;
    }

private:
    QuestionIds way_;
    TextEncoder together_;
    Encoder apart_;
};

class WordWriter {
public:
    WordWriter(const Tokenizer& tokenizer, QuestionFormat format, QuestionIds way)
        : encoder_(tokenizer, way), format_(format), way_(way) {}

    void word(std::size_t value, const char* what) {
        if (value > most_) refuse(text(what, " of ", value, ", at most ", most_));
        words_.push_back(static_cast<std::uint32_t>(value));
    }
    void tokens(const std::vector<std::uint32_t>& ids, const char* what) {
        if (ids.empty()) throw Error(ErrorKind::bad_data, text(place_, "question ", index_, ": ", what, " is empty"));
        word(ids.size(), what);
        for (std::uint32_t id : ids) word(id, "a token id");
    }
    void question(const QuestionText& q) {
        place_ = q.place;
        const std::size_t begin = words_.size();
        word(most_, "the mark");
        word(0, "the bytes, which follow");
        word(index_, "an index");
        word(q.label, "a label");
        word(q.completions.size(), "a number of completions");
        for (const std::string& completion : q.completions) {
            const ContinuedText ids = encoder_.encode(q.context, completion);
            if (&completion == &q.completions.front()) tokens(ids.context, "the context");
            if (format_ == QuestionFormat::uint32_words) word(characters_of_answer(completion), "a completion");
            tokens(ids.completion, "a completion");
        }
        const std::size_t bytes = bytes_per_word(format_) * (words_.size() - begin);
        const std::size_t most_bytes = std::min<std::size_t>(most_, INT32_MAX);   // the header counts in int32
        if (bytes > most_bytes) refuse(text("takes ", bytes, " bytes, the format holds ", most_bytes));
        words_[begin + 1] = static_cast<std::uint32_t>(bytes);
        longest_ = std::max(longest_, bytes);
        index_++;
    }
    std::string file(std::uint64_t tokenizer_hash, QuestionSource source) const {
        std::array<std::int32_t, 256> header{question_file_magic,
                                             static_cast<std::int32_t>(format_),
                                             static_cast<std::int32_t>(index_),
                                             static_cast<std::int32_t>(longest_),
                                             static_cast<std::int32_t>(tokenizer_hash),
                                             static_cast<std::int32_t>(tokenizer_hash >> 32),
                                             static_cast<std::int32_t>(source),
                                             0,   // the hash of all the rest, below
                                             0,
                                             static_cast<std::int32_t>(way_)};
        std::string content(sizeof header, '\0');
        std::memcpy(content.data(), header.data(), sizeof header);
        for (const std::uint32_t word : words_) {   // little-endian: a short word is the first bytes of a long one
            content.append(reinterpret_cast<const char*>(&word), bytes_per_word(format_));
        }
        const std::uint64_t hash = hash_of_questions(content);
        std::memcpy(content.data() + question_hash_begin, &hash, sizeof hash);
        return content;
    }

private:
    // Returns the characters of the published answer, which a blank precedes in the completion.
    static std::size_t characters_of_answer(std::string_view completion) {
        if (completion.starts_with(' ')) completion.remove_prefix(1);
        const auto begins_character = [](char byte) { return (byte & 0xc0) != 0x80; };
        return std::max<std::size_t>(1, static_cast<std::size_t>(std::ranges::count_if(completion, begins_character)));
    }

    [[noreturn]] void refuse(const std::string& what) const {
        const bool is_narrow = format_ == QuestionFormat::uint16_words;
        throw Error(ErrorKind::bad_data, text(place_, "question ", index_, ": ", what),
                    is_narrow ? "Leave this question out, or write words of 32 bits, with --uint32."
                              : "Leave this question out.");
    }

    QuestionEncoder encoder_;
    QuestionFormat format_;
    QuestionIds way_;
    std::size_t most_ = question_mark(format_);
    std::vector<std::uint32_t> words_;
    std::string place_;
    std::size_t index_ = 0, longest_ = 0;
};

}   // namespace

std::vector<QuestionText> parse_questions(QuestionSource source, std::string_view content, const std::string& name) {
    const bool csv = name.ends_with(".csv");
    if (csv && source != QuestionSource::mmlu) bad(name, 0, "only MMLU comes as CSV, the others as JSONL");
    std::vector<QuestionText> questions = csv ? parse_mmlu_csv(content, name) : parse_jsonl(source, content, name);
    if (questions.empty()) bad(name, content.size(), "no question in this file");
    return questions;
}

QuestionFormat question_format_for(const Tokenizer& tokenizer, bool wide) {
    const bool fits = std::cmp_less_equal(tokenizer.vocab_size(), most_ids_of_uint16_words);
    return fits && !wide ? QuestionFormat::uint16_words : QuestionFormat::uint32_words;
}

std::string to_question_file(const Tokenizer& tokenizer, const std::vector<QuestionText>& questions,
                             QuestionSource source, bool wide, QuestionIds way) {
    WordWriter writer(tokenizer, question_format_for(tokenizer, wide), way);
    for (const QuestionText& question : questions) writer.question(question);
    return writer.file(tokenizer.hash(), source);
}

std::string warning_of_contexts(const std::vector<Question>& questions, const std::string& name,
                                const Tokenizer& tokenizer) {
    const std::vector<std::uint32_t>& front = tokenizer.data().front;
    auto has_front = [&](const Question& question) {
        return question.context.size() >= front.size() &&
               std::equal(front.begin(), front.end(), question.context.begin(), std::cmp_equal<std::uint32_t, int>);
    };
    if (std::ranges::any_of(questions, has_front)) return "";
    return text(name, ": no question begins with ", front_of_texts(tokenizer),
                ", which the model's tokenizer puts in front of a text, so scores are not those of "
                "lm-evaluation-harness; `tokenize --questions` writes a file with it");
}
