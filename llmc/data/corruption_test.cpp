// Files as they lie on a disk, damaged in every way that disks, copies and hostile hands know, then read by the
// program.
//
// Unlike dev/test/fuzz/parsers.h, which gives bytes to parsers, this goes through the file system: folders, pipes and
// links stand where files should, files are exchanged for each other, and what one file says is held against another.
// A mutant must be refused by an Error that names the file (or the folder, where files do not agree), or be harmless.
// Where no hash vouches for the content it may also be well-formed with other content; a second, plain look at the
// bytes decides that. Mutants run in a child process, so that a crash or a hang is counted and the next mutant runs.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "dev/test/fuzz/parsers.h"
#include "llmc/base/log.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/data/corpus/corpus_check.h"
#include "llmc/data/damage_testing.h"
#include "llmc/data/inspect.h"
#include "llmc/io/hash.h"
#include "llmc/io/temporary_folder_testing.h"

using namespace damage;

namespace {

using Library = nlohmann::json;

// Thrown by a subject that accepted files which do not agree.
struct Misread : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void must_hold(bool holds, const std::string& what) {
    if (!holds) throw Misread(what);
}

struct Subject {
    const char* name;
    std::map<std::string, std::string> files;   // files of the folder, by name
    // Reads all of it, and returns what was read. Throws Error, or Misread where what was accepted does not agree with
    // the bytes.
    std::function<std::string(const std::string& folder)> read;
    bool vouched;   // a hash, or another file, tells every change of the content
};

// ---------------------------------------------------------------------------------------------------------------------
// Subjects

std::string whole(const std::string& folder, const char* name) { return read_whole(real_files(), folder + "/" + name); }

// By the library alone, which knows no limits; every key must be there once.
Library plain_json(const std::string& content) {
    std::vector<std::set<std::string>> keys;
    return Library::parse(content, [&](int, Library::parse_event_t event, Library& value) {
        if (event == Library::parse_event_t::object_start) keys.emplace_back();
        if (event == Library::parse_event_t::object_end) keys.pop_back();
        if (event == Library::parse_event_t::key) {
            must_hold(keys.back().insert(value.get<std::string>()).second, "a key twice");
        }
        return true;
    });
}

template <class T>
void append_raw(std::string& out, const std::vector<T>& values) {
    out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Its header, as the library alone reads it, must say the same of every tensor.
std::string read_safetensors(const std::string& folder) {
    const std::string path = folder + "/model.safetensors", bytes = whole(folder, "model.safetensors");
    const SafetensorsFile file(real_files(), path);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    const Library header = plain_json(bytes.substr(8, header_bytes));
    must_hold(file.entries().size() + header.contains("__metadata__") == header.size(), "another number of tensors");
    std::string out;
    std::uint64_t next = 8 + header_bytes;
    for (const TensorEntry& entry : file.entries()) {
        const Library& json = header.at(entry.name);
        must_hold(json.at("dtype") == name_of(entry.type) && json.at("shape") == Library(entry.shape), "another shape");
        must_hold(json.at("data_offsets") ==
                      Library({entry.offset - 8 - header_bytes, entry.offset - 8 - header_bytes + entry.bytes()}),
                  "another place");
        must_hold(entry.offset == next, "a gap or an overlap");
        std::vector<std::byte> data(entry.bytes());
        file.read(entry, 0, data);
        must_hold(data.empty() || std::memcmp(data.data(), bytes.data() + next, data.size()) == 0, "other bytes");
        next += data.size();
        out += text(entry.name, " ", json.dump(), " ");
        append_raw(out, data);
    }
    must_hold(next == bytes.size(), "bytes of no tensor");
    for (const auto& [key, value] : file.metadata()) out += key + "=" + value;
    return out;
}

std::string read_shard(const std::string& folder) {
    const TokenFile file(real_files(), folder + "/shard.bin");
    std::vector<std::int32_t> ids(file.count());
    file.read(0, ids, 300);
    const std::string bytes = whole(folder, "shard.bin");
    std::int32_t magic = 0;
    std::memcpy(&magic, bytes.data(), 4);
    const std::size_t width = magic == 20240520 ? 2 : 4;
    must_hold(bytes.size() == 1024 + width * ids.size(), "another number of tokens");
    for (std::size_t i = 0; i < ids.size(); i++) {
        std::uint32_t id = 0;
        std::memcpy(&id, bytes.data() + 1024 + width * i, width);
        must_hold(static_cast<std::uint32_t>(ids[i]) == id && id < 300, "another token");
    }
    std::string out;
    append_raw(out, ids);
    return out;
}

// A prepared corpus, by the tool's check and by the trainer's.
std::string read_corpus(const std::string& folder) {
    const CorpusManifest manifest = verify_corpus(folder);
    plain_json(whole(folder, "manifest.json"));
    CorpusExpectation expected;
    expected.data = {{"--train-data", folder + "/*train*.bin"}, {"--val-data", folder + "/*val*.bin"}};
    expected.vocab_size = 257;
    check_corpora(real_files(), expected);
    std::string out = text(manifest.tokens("train"), " ", manifest.tokens("val"), " ");
    for (const char* split : {"train", "val"}) {
        decode_shards(Tokenizer::load(folder), shards_of(folder, split), [&](const std::string& s) { out += s; });
    }
    return out;
}

// A tokenizer must give back what it encodes; its merges and ids are what the vocabulary is read as.
std::string read_tokenizer(const std::string& path) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    const TokenizerData& data = tokenizer.data();
    if (data.can_encode) fuzz::use_tokenizer(data);
    std::string out = text(data.end_of_text, " ", static_cast<int>(data.pattern.rule), " ");
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        out += text(id, data.is_special[id] ? "!" : "=", data.tokens[id], " ");
    }
    for (const BpeMerge& merge : data.merges) out += text(merge.left, "+", merge.right, "=", merge.result, " ");
    return out;
}

std::string read_json_tokenizer(const std::string& folder) {
    const std::string out = read_tokenizer(folder + "/tokenizer.json");
    const Library json = plain_json(whole(folder, "tokenizer.json"));
    const TokenizerData data = parse_huggingface(whole(folder, "tokenizer.json"), "tokenizer.json");
    must_hold(data.merges.size() == json["model"]["merges"].size(), "another number of merges");
    for (const auto& [token, id] : json["model"]["vocab"].items()) {
        const std::string& bytes = data.tokens.at(id.get<std::size_t>());
        must_hold(bytes == token || to_characters(bytes) == token, "another token");
    }
    return out;
}

// Written again, the file must be the same; of the header all but the four numbers that are used.
std::string read_llmc_tokenizer(const std::string& folder) {
    std::string out = read_tokenizer(folder + "/tokenizer.bin"), bytes = whole(folder, "tokenizer.bin");
    std::fill(bytes.begin() + 16, bytes.begin() + 1024, '\0');
    must_hold(to_llmc_tokenizer(Tokenizer::load(folder + "/tokenizer.bin").data()) == bytes, "other bytes");
    return out;
}

// Written again, the questions and the longest question's bytes must be the same.
template <class Word>
std::string written_again(const std::vector<Question>& questions, const std::string& bytes) {
    std::string out;
    std::vector<Word> words;
    std::size_t longest = 0;
    auto add = [&](const std::vector<std::int32_t>& ids) {
        words.push_back(static_cast<Word>(ids.size()));
        for (std::int32_t id : ids) words.push_back(static_cast<Word>(id));
    };
    for (const Question& question : questions) {
        const std::size_t begin = words.size();
        words.insert(words.end(), {std::numeric_limits<Word>::max(), 0, static_cast<Word>(out.size()),
                                   static_cast<Word>(question.label), static_cast<Word>(question.completions.size())});
        out += '.';
        add(question.context);
        for (std::size_t c = 0; c < question.completions.size(); c++) {
            if (sizeof(Word) == 4) words.push_back(static_cast<Word>(question.characters.at(c)));
            add(question.completions[c]);
        }
        words[begin + 1] = static_cast<Word>(sizeof(Word) * (words.size() - begin));
        longest = std::max(longest, sizeof(Word) * (words.size() - begin));
    }
    append_raw(out, words);
    must_hold(std::memcmp(bytes.data() + 12, &longest, 4) == 0, "another longest question");
    must_hold(bytes.substr(1024) == out.substr(questions.size()), "other questions");
    return out;
}

// As llm.c writes it.
std::string without_hash(std::string file) {
    return file.replace(question_hash_begin, question_hash_bytes, question_hash_bytes, '\0');
}

std::string read_questions(const std::string& folder) {
    const auto questions = ::read_questions(real_files(), folder + "/questions.bin", 257);
    const std::string bytes = whole(folder, "questions.bin");
    std::uint64_t said = 0;
    std::memcpy(&said, bytes.data() + 28, 8);
    must_hold(said == 0 || said == hash64(bytes.substr(0, 28) + bytes.substr(36)), "another hash");
    return bytes[4] == 1 ? written_again<std::uint16_t>(questions, bytes)
                         : written_again<std::uint32_t>(questions, bytes);
}

template <QuestionSource source>
std::string read_published(const std::string& folder, const char* name) {
    const auto questions = parse_questions(source, whole(folder, name), folder + "/" + name);
    const std::string out = to_question_file(Tokenizer::bytes(), questions);
    must_hold(parse_question_file(out, "written", 257).size() == questions.size(), "questions were lost");
    return out;
}

std::map<std::string, std::string> corpus_files(const std::string& content) {
    TemporaryFolder folder;
    write_file(folder / "text", content);
    CorpusOptions options;
    options.input.files = {folder / "text"};
    options.output = folder / "corpus";
    options.shard_tokens = 12;
    options.val_tokens = 4;
    prepare_corpus(Tokenizer::bytes(), options, [](const CorpusProgress&) {});
    std::map<std::string, std::string> files;
    for (const std::string& name : real_files().list(options.output)) files[name] = whole(options.output, name.c_str());
    return files;
}

std::vector<Subject> subjects() {
    const std::string hellaswag = "{\"ctx\": \"A \\u00e4\", \"endings\": [\"b\", \"c\"], \"label\": 1}\n";
    const std::string mmlu = "\"q, \"\"x\"\"\",1,2,3,4,A\nq,1,2,3,4,D\n";
    const TokenizerData& data = fuzz::small_vocabulary();
    const auto questions = parse_questions(QuestionSource::hellaswag, hellaswag + hellaswag, "seed");
    return {
        {"safetensors", {{"model.safetensors", fuzz::safetensors_seed()}}, read_safetensors, false},
        {"token file, 16 bits", {{"shard.bin", fuzz::shard_seed(TokenFormat::gpt2)}}, read_shard, false},
        {"token file, 32 bits", {{"shard.bin", fuzz::shard_seed(TokenFormat::llama3)}}, read_shard, false},
        {"prepared corpus", corpus_files("some text, for once, to be cut in three"), read_corpus, true},
        {"tokenizer.json", {{"tokenizer.json", to_huggingface(data)}}, read_json_tokenizer, false},
        {"vocab.bpe",
         {{"vocab.bpe", fuzz::gpt2_merges()}, {"encoder.json", fuzz::gpt2_ids()}},
         [](const std::string& folder) { return read_tokenizer(folder); },
         true},
        {"tiktoken ranks",
         {{"ranks.tiktoken", to_tiktoken_ranks(data)}},
         [](const std::string& folder) { return read_tokenizer(folder + "/ranks.tiktoken"); },
         false},
        {"tokenizer.bin", {{"tokenizer.bin", to_llmc_tokenizer(data)}}, read_llmc_tokenizer, false},
        {"questions, 16 bits",
         {{"questions.bin", to_question_file(Tokenizer::bytes(), questions)}},
         read_questions,
         false},
        {"questions, 32 bits",
         {{"questions.bin", to_question_file(Tokenizer::bytes(), questions, QuestionSource::hellaswag, true)}},
         read_questions,
         false},
        {"questions without a hash",
         {{"questions.bin", without_hash(to_question_file(Tokenizer::bytes(), questions))}},
         read_questions,
         false},
        {"HellaSwag",
         {{"h.jsonl", hellaswag}},
         [](const std::string& folder) { return read_published<QuestionSource::hellaswag>(folder, "h.jsonl"); },
         false},
        {"MMLU",
         {{"m.csv", mmlu}},
         [](const std::string& folder) { return read_published<QuestionSource::mmlu>(folder, "m.csv"); },
         false},
    };
}

// ---------------------------------------------------------------------------------------------------------------------
// Running them

enum Outcome { refused, refused_at_byte, harmless, changed, misread, unnamed, crashed, hung, outcome_kinds };
constexpr const char* outcome_names[] = {"refused", "with byte", "harmless", "changed",
                                         "MISREAD", "UNNAMED",   "CRASHED",  "HUNG"};

// Progress that the child reports to its parent; in memory that both see.
struct Progress {
    std::atomic<unsigned> next;   // the mutant being read
    std::atomic<unsigned> counts[damage_kinds][outcome_kinds];
    char complaint[4000];   // the first outcomes that must not be
};

Damage damage_of(unsigned mutant) { return static_cast<Damage>(mutant % damage_kinds); }

class Runner {
public:
    Runner(const std::vector<Subject>& all, const Subject& subject, unsigned seed, Progress& progress)
        : subject_(subject), seed_(seed), progress_(progress) {
        for (const Subject& other : all) {
            for (const auto& [name, content] : other.files) others_.push_back(&content);
        }
        for (const auto& [name, content] : subject.files) {
            names_.push_back(name);
            for (int i = 0; i < 4; i++) others_.push_back(&content);   // most often one that belongs here
        }
        restore();
        intact_ = subject.read(folder_.path());
    }

    void mutant(unsigned number) {
        Random random(seed_ * 1'000'003u + number);
        const Damage damage = damage_of(number);
        const std::string& file = names_[random() % names_.size()];
        const std::string& content = subject_.files.at(file);
        if (damage < exchange) {
            std::string bytes = content;
            if (file.ends_with(".safetensors") && random() % 2) {
                damage_header(damage, bytes, random);
            } else {
                damage_bytes(damage, bytes, bytes.find('\0') == std::string::npos, random);
            }
            write_file(folder_ / file, bytes);
        } else {
            damage_place(damage, folder_.path(), file, others_, number / damage_kinds, random);
        }
        std::string what;
        const Outcome outcome = outcome_of(file, what);
        progress_.counts[damage][outcome]++;
        if (outcome >= misread) complain(number, outcome, text(file, ": ", what));
        restore();
    }

    void complain(unsigned number, Outcome outcome, const std::string& what) {
        const std::size_t length = std::strlen(progress_.complaint);
        const std::string line = text(subject_.name, ", mutant ", number, " (", damage_names[damage_of(number)],
                                      "): ", outcome_names[outcome], " ", what.substr(0, 300), "\n");
        if (length + line.size() < sizeof progress_.complaint) std::strcpy(progress_.complaint + length, line.c_str());
    }

private:
    Outcome outcome_of(const std::string& file, std::string& what) {
        try {
            const std::string found = subject_.read(folder_.path());
            if (found == intact_) return harmless;
            return subject_.vouched ? misread : changed;
        } catch (const Misread& problem) {
            what = problem.what();
            return misread;
        } catch (const Error& error) {
            what = error.what();
            const bool named = what.find(file) != std::string::npos || what.find(folder_.path()) != std::string::npos;
            if (!named || error.kind() == ErrorKind::bug) return unnamed;
            static const std::regex place("(byte|offset) [0-9]+");
            return std::regex_search(what, place) ? refused_at_byte : refused;
        } catch (const std::exception& problem) {
            what = problem.what();
            return unnamed;
        }
    }

    void restore() {
        for (const std::string& name : real_files().list(folder_.path())) fs::remove_all(folder_ / name);
        for (const auto& [name, content] : subject_.files) write_file(folder_ / name, content);
    }

    const Subject& subject_;
    unsigned seed_;
    Progress& progress_;
    TemporaryFolder folder_;
    std::vector<std::string> names_;
    std::vector<const std::string*> others_;   // contents that may replace a file's
    std::string intact_;
};

// Lets a child read mutants until all are done, one crashes it, or one takes longer than the limit.
void run_child(Runner& runner, Progress& progress, unsigned mutants, unsigned limit_s) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (; progress.next < mutants; progress.next++) runner.mutant(progress.next);
        _exit(0);
    }
    unsigned last = progress.next;
    int status = 0;
    for (auto since = std::chrono::steady_clock::now(); waitpid(child, &status, WNOHANG) == 0; usleep(2000)) {
        const auto now = std::chrono::steady_clock::now();
        if (progress.next != last) last = progress.next, since = now;
        if (now - since < std::chrono::seconds(limit_s)) continue;
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        break;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const unsigned number = progress.next++;
    progress.counts[damage_of(number)][killed ? hung : crashed]++;
    runner.complain(number, killed ? hung : crashed, text("status ", status));
}

// Makes so many mutants of every subject, prints a table, and demands that each is refused or harmless.
void corrupt(unsigned mutants_each, unsigned seed, unsigned limit_s) {
    const std::vector<Subject> all = subjects();
    std::cout << formatted("%-21s%-13s", "", "mutants");
    for (const char* name : outcome_names) std::cout << formatted("%10s", name);
    std::cout << "\n";
    unsigned by_damage[damage_kinds][outcome_kinds] = {};
    auto print = [](const char* name, const unsigned(&counts)[outcome_kinds]) {
        unsigned sum = 0;
        for (unsigned count : counts) sum += count;
        std::cout << formatted("%-21s%7u      ", name, sum);
        for (unsigned count : counts) std::cout << formatted("%10u", count);
        std::cout << std::endl;
        return sum;
    };
    for (const Subject& subject : all) {
        void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(shared != MAP_FAILED);
        Progress& progress = *new (shared) Progress();
        Runner runner(all, subject, seed, progress);
        for (int children = 0; children < 4 && progress.next < mutants_each; children++) {
            run_child(runner, progress, mutants_each, limit_s);
        }
        unsigned counts[outcome_kinds] = {};
        for (int damage = 0; damage < damage_kinds; damage++) {
            for (int outcome = 0; outcome < outcome_kinds; outcome++) {
                counts[outcome] += progress.counts[damage][outcome];
                by_damage[damage][outcome] += progress.counts[damage][outcome];
            }
        }
        CHECK(print(subject.name, counts) == mutants_each);
        CHECK(std::string(progress.complaint) == "");
        CHECK(counts[misread] + counts[unnamed] + counts[crashed] + counts[hung] == 0);
        CHECK(counts[refused_at_byte] > mutants_each / 5);   // the checks are reached
        munmap(shared, sizeof(Progress));
    }
    for (int damage = 0; damage < damage_kinds; damage++) print(damage_names[damage], by_damage[damage]);
}

}   // namespace

TEST_CASE("corruption: damaged files are refused or harmless, 400 mutants of each kind of file") {
    corrupt(400, 1, 10);
}
TEST_CASE("corruption: all, 2000 mutants of each kind of file" * doctest::skip()) { corrupt(2000, 2, 30); }
