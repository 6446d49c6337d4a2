#include "llmc/data/multiple_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/io/hash.h"

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they lie in memory");

namespace {

constexpr std::int32_t magic = question_file_magic;
constexpr std::size_t header_bytes = 1024;
constexpr std::size_t ids_field = 9;

// Walks over the words of a file, and knows its place for messages.
class Words {
public:
    Words(std::string_view content, const std::string& name, std::int64_t vocab_size)
        : path_(name), vocab_size_(vocab_size), content_(content) {
        if (content_.size() < header_bytes) bad(content_.size(), "ends inside its header of 1024 bytes");
    }

    std::int32_t header(std::size_t index) const {
        std::int32_t value;
        std::memcpy(&value, content_.data() + 4 * index, 4);
        return value;
    }
    std::uint64_t tokenizer_hash() const { return hash_at(4); }   // 0: not said
    std::uint64_t content_hash() const {                          // 0: none
        return hash_at(question_hash_begin / 4);
    }
    std::size_t position() const { return at_; }
    bool at_end() const { return at_ == content_.size(); }

    std::size_t word_bytes() const { return bytes_per_word(format()); }
    QuestionFormat format() const { return static_cast<QuestionFormat>(header(1)); }

    std::uint32_t next(const char* what) {
        if (content_.size() - at_ < word_bytes()) bad(at_, text("the file ends where ", what, " should be"));
        std::uint32_t word = 0;
        std::memcpy(&word, content_.data() + at_, word_bytes());
        at_ += word_bytes();
        return word;
    }

    std::vector<std::int32_t> tokens(const char* what) {
        const std::uint32_t count = next(what);
        if (count == 0) bad(at_ - word_bytes(), text(what, " has no tokens"));
        std::vector<std::int32_t> result;
        for (std::uint32_t i = 0; i < count; i++) {
            const std::uint32_t id = next(what);
            if (id >= vocab_size_) {
                bad(at_ - word_bytes(), text("token id ", id, ", expected 0 to ", vocab_size_ - 1));
            }
            result.push_back(static_cast<std::int32_t>(id));
        }
        return result;
    }

    std::int32_t characters() {
        const std::uint32_t count = next("a completion's characters");
        if (count < 1 || count > INT32_MAX) {
            bad(at_ - word_bytes(), text("a completion of ", count, " characters, expected 1 to ", INT32_MAX));
        }
        return static_cast<std::int32_t>(count);
    }

    [[noreturn]] void bad(std::size_t byte, const std::string& what) const {
        throw Error(ErrorKind::bad_data, text(path_, ": byte ", byte, ": ", what),
                    "Prepare the questions again, with the tokenizer of the model.");
    }

private:
    std::uint64_t hash_at(std::size_t index) const {
        return static_cast<std::uint32_t>(header(index)) | std::uint64_t{static_cast<std::uint32_t>(header(index + 1))}
                                                               << 32;
    }

    const std::string& path_;
    std::int64_t vocab_size_;
    std::string_view content_;
    std::size_t at_ = header_bytes;
};

Question read_question(Words& words, int index, std::uint32_t fewest) {
    const std::size_t begin = words.position(), word = words.word_bytes();
    const std::uint32_t mark = question_mark(words.format());
    if (words.next("a question") != mark) words.bad(begin, text("question ", index, " does not begin with ", mark));
    const std::size_t bytes = words.next("a question's size");
    const std::uint32_t found = words.next("a question's index");
    if (!std::cmp_equal(found, index)) words.bad(begin + 2 * word, text("index ", found, ", expected ", index));

    const std::uint32_t label = words.next("a label"), completions = words.next("a number of completions");
    if (completions < fewest || label >= completions) {
        words.bad(begin + 3 * word, text("label ", label, " of ", completions, " completions"));
    }
    Question question{static_cast<int>(label), words.tokens("the context"), {}};
    for (std::uint32_t i = 0; i < completions; i++) {
        if (words.format() == QuestionFormat::uint32_words) question.characters.push_back(words.characters());
        question.completions.push_back(words.tokens("a completion"));
    }
    if (words.position() - begin != bytes) {
        words.bad(begin + word,
                  text("question ", index, " says it has ", bytes, " bytes, found ", words.position() - begin));
    }
    return question;
}

}   // namespace

std::size_t Question::longest() const {
    std::size_t most = 0;
    for (const auto& completion : completions) most = std::max(most, completion.size());
    return context.size() + most;
}

LeftOut left_out_of(const std::vector<Question>& questions, std::size_t T, const std::string& title) {
    LeftOut result;
    for (std::size_t i = 0; i < questions.size(); i++) {
        const Question& question = questions[i];
        const std::size_t row = question.longest() - 1, completion = question.longest() - question.context.size();
        if (completion > T) {
            throw Error(ErrorKind::usage,
                        text(title, ": question ", i, " has a completion of ", completion, " tokens, --seq-len is ", T),
                        "Raise --seq-len, or turn the evaluation off.");
        }
        if (row <= T) continue;
        if (result.questions == 0) result.first = i;
        result.questions++;
        result.tokens += row - T;
        result.most = std::max(result.most, row - T);
    }
    return result;
}

double Question::length_of(std::size_t completion) const {
    return static_cast<double>(characters.empty() ? completions[completion].size()
                                                  : static_cast<std::size_t>(characters[completion]));
}

std::vector<Question> read_questions(const FileSystem& files, const std::string& path, std::int64_t vocab_size) {
    return parse_question_file(read_whole(files, path), path, vocab_size);
}

std::uint64_t hash_of_questions(std::string_view content) {
    Hash64 hash;
    hash.update(content.data(), question_hash_begin);
    const std::string_view behind = content.substr(question_hash_begin + question_hash_bytes);
    hash.update(behind.data(), behind.size());
    return hash.digest();
}

std::string warning_of_questions(std::string_view content, const std::string& name) {
    if (Words(content, name, 0).content_hash() != 0) return "";
    return text(name,
                ": the file has no hash of its content, so damage may go unseen; `tokenize --questions` writes one");
}

QuestionIds ids_of_questions(std::string_view content, const std::string& name) {
    return static_cast<QuestionIds>(Words(content, name, 0).header(ids_field));
}

std::string names_of_sources() {
    std::string names;
    for (const NamedSource& known : question_sources) names += text(names.empty() ? "" : ", ", known.name);
    return names;
}

const NamedSource& source_of_questions(std::string_view content, const std::string& name) {
    const std::int32_t source = Words(content, name, 0).header(6);
    for (const NamedSource& known : question_sources) {
        if (source == static_cast<int>(known.source)) return known;
    }
    return question_sources[name.find("mmlu") != name.npos ? 1 : 0];
}

std::vector<Question> parse_question_file(std::string_view content, const std::string& name, std::int64_t vocab_size,
                                          std::optional<std::uint64_t> tokenizer_hash) {
    Words words(content, name, vocab_size);
    if (words.header(0) != magic) words.bad(0, text("magic number ", words.header(0), ", expected ", magic));
    if (words.header(1) != 1 && words.header(1) != 2) {
        words.bad(4, text("version ", words.header(1), ", expected 1 or 2"));
    }
    if (const std::uint64_t said = words.content_hash(); said != 0 && said != hash_of_questions(content)) {
        words.bad(question_hash_begin, text("damaged: the content's hash is ", hash_to_text(hash_of_questions(content)),
                                            ", expected ", hash_to_text(said)));
    }
    const std::uint64_t made_with = words.tokenizer_hash();
    if (tokenizer_hash && made_with != 0 && made_with != *tokenizer_hash) {
        words.bad(16, text("made with a tokenizer of hash ", hash_to_text(made_with), ", the model's has ",
                           hash_to_text(*tokenizer_hash)));
    }
    constexpr int last = static_cast<int>(std::size(question_sources));   // 0: not said
    if (words.header(6) < 0 || words.header(6) > last)
        words.bad(24, text("source ", words.header(6), ", expected 0 to ", last));
    if (words.header(ids_field) < 0 || words.header(ids_field) > static_cast<int>(QuestionIds::together))
        words.bad(4 * ids_field, text("way from texts to ids ", words.header(ids_field), ", expected 0 or 1"));
    const int count = words.header(2);
    if (count < 1) words.bad(8, text(count, " questions, expected at least 1"));
    std::vector<Question> questions;
    std::size_t longest = 0;
    for (int i = 0; i < count; i++) {
        const std::size_t begin = words.position();
        questions.push_back(
            read_question(words, i, words.header(6) == static_cast<int>(QuestionSource::lambada) ? 1 : 2));
        longest = std::max(longest, words.position() - begin);
    }
    if (!std::cmp_equal(words.header(3), longest)) {
        words.bad(12, text("the longest question has ", words.header(3), " bytes, found one of ", longest));
    }
    if (!words.at_end()) words.bad(words.position(), text("the file goes on after its ", count, " questions"));
    return questions;
}

void completion_row(const Question& question, std::size_t completion, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) {
    const std::vector<std::int32_t>& answer = question.completions[completion];
    ENSURE(answer.size() <= tokens.size() && targets.size() == tokens.size(), answer.size(),
           " tokens of a completion into a row of ", tokens.size());
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), -1);
    const std::size_t read = std::min(question.row_length(completion), tokens.size());
    const std::size_t of_context = read - (answer.size() - 1);   // at least 1
    const auto answer_begin = std::copy(question.context.end() - static_cast<std::ptrdiff_t>(of_context),
                                        question.context.end(), tokens.begin());
    std::copy(answer.begin(), answer.end() - 1, answer_begin);
    std::copy(answer.begin(), answer.end(), targets.begin() + static_cast<std::ptrdiff_t>(of_context) - 1);
}
