// tokenize: text to token shards, and what goes with it.
//
//   tokenize --train 8192 --output data/mine notes.txt source/                             learn a vocabulary
//   tokenize --tokenizer data/mine --output data/mine --val-fraction 0.05 notes.txt source/   prepare a corpus
//   tokenize --verify --stats data/mine
//   tokenize --questions hellaswag --tokenizer gpt2/vocab.bpe --output data/hellaswag/hellaswag_val.bin val.jsonl
//
// The work is done by llmc/tokenizer and llmc/data; here is the command line.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "dev/tools/encoding_speed.h"
#include "dev/tools/progress_line.h"
#include "llmc/base/error.h"
#include "llmc/base/exit_code.h"
#include "llmc/base/limits/usable_cores.h"
#include "llmc/base/printable.h"
#include "llmc/data/inspect.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/data/questions.h"
#include "llmc/io/file.h"
#include "llmc/io/standard_descriptors.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/input_files.h"
#include "llmc/tokenizer/text_ids.h"
#include "llmc/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace {

struct Options {
    CorpusOptions corpus;
    std::vector<std::string> inputs, val_inputs;
    std::string tokenizer = "bytes";
    std::string files_from;
    std::vector<std::pair<std::string, std::size_t>> sources;   // inputs as they were given, each with its first file
    PassedOver passed_over;                                     // in folders
    bool shuffle_files = false;
    bool quiet = false;
    bool measure = false;
    BpeTrainOptions train;
    bool train_wanted = false, split_wanted = false;
    bool tokenizer_given = false;
    bool questions_wanted = false;
    QuestionSource questions = QuestionSource::hellaswag;
    QuestionIds question_ids = QuestionIds::together;
    bool decode = false, stats = false, verify = false;
};

// The inputs, from the command line and --files-from, in their order.
InputFiles list_files(Options& options) {
    InputFiles inputs;
    for (const std::string& input : options.inputs) {
        options.sources.push_back({input, inputs.files.size()});
        inputs.add(input);
    }
    if (!options.files_from.empty()) inputs.add_listed(options.files_from);
    if (inputs.files.empty()) throw Error(ErrorKind::usage, "no input", "Give files, folders or --files-from LIST.");
    if (options.shuffle_files) inputs.shuffle();
    return inputs;
}

// Validation files come first; CorpusOptions::val_files says how many they are.
void choose_inputs(Options& options) {
    InputFiles validation;
    for (const std::string& input : options.val_inputs) validation.add(input);
    options.corpus.val_files = validation.files.size();
    if (!validation.files.empty() && (options.corpus.val_tokens > 0 || options.corpus.val_fraction > 0)) {
        throw Error(ErrorKind::usage, "--val-files together with --val-tokens or --val-fraction", "Give one of them.");
    }
    const InputFiles others = list_files(options);
    for (auto& [name, first] : options.sources) first += options.corpus.val_files;
    if (options.shuffle_files || !options.files_from.empty()) options.sources.clear();
    options.corpus.input.files = validation.files;
    options.corpus.input.files.insert(options.corpus.input.files.end(), others.files.begin(), others.files.end());
    options.passed_over = validation.passed_over;
    options.passed_over.add(others.passed_over);
}

// "\n", "\t" and "\\" as one would write them in a shell's quotes.
std::string unescape(const std::string& spelled) {
    std::string out;
    for (std::size_t i = 0; i < spelled.size(); i++) {
        bool escape = spelled[i] == '\\' && i + 1 < spelled.size();
        char c = escape ? spelled[++i] : spelled[i];
        out += escape && c == 'n' ? '\n' : escape && c == 't' ? '\t' : escape && c == 'r' ? '\r' : c;
    }
    return out;
}

template <class Enum>
using Names = std::vector<std::pair<std::string, Enum>>;

template <class Enum>
CLI::Validator one_of(const Names<Enum>& names) {
    return CLI::CheckedTransformer(names).description("");
}

void add_input_options(CLI::App& app, Options& options) {
    InputOptions& input = options.corpus.input;
    const Names<InputFormat> formats = {
        {"auto", InputFormat::automatic}, {"text", InputFormat::text}, {"jsonl", InputFormat::jsonl}};
    app.add_option("inputs", options.inputs, "files and folders, also .gz and .zst; - is standard input");
    app.option_defaults()->group("Input");
    app.add_option("--files-from", options.files_from, "read the names of inputs from a file, one per line (-: stdin)");
    app.add_flag("--shuffle-files", options.shuffle_files, "order files by a hash of their names");
    app.add_option(
           "--max-bytes", input.max_bytes,
           "stop before the document that would exceed this, e.g. 24MB; one of a pipe or compressed file is cut")
        ->transform(CLI::AsSizeValue(true).description(""));
    app.add_option("--format", input.format,
                   "text, jsonl, or auto: by the suffix, of .json and .txt by the content; only what is text")
        ->transform(one_of(formats));
    app.add_option("--field", input.field, "field of a JSON line that holds the text")->capture_default_str();
    app.add_flag("--skip-bad-lines", input.skip_bad_lines,
                 "pass over JSON lines, and objects of lists, without a text in that field; count them");
    app.add_option("--separator", input.separator, "text between documents (\\n: newline); else a file is one document")
        ->transform([](const std::string& spelled) { return unescape(spelled); });
    app.add_flag("--keep-separator", input.keep_separator, "leave it at the end of the document before it")
        ->needs("--separator");
    app.add_flag("--strip", input.strip, "documents between separators lose white space at both ends")
        ->needs("--separator");
}

void add_tokenizer_options(CLI::App& app, Options& options) {
    EncodeOptions& encoding = options.corpus.encoding;
    const Names<SplitRule> rules = {{"gpt2", SplitRule::gpt2},
                                    {"cl100k", SplitRule::cl100k},
                                    {"llama3", SplitRule::llama3},
                                    {"qwen", SplitRule::qwen}};
    const Names<InvalidUtf8> invalid = {{"tiktoken", InvalidUtf8::tiktoken},
                                        {"split", InvalidUtf8::split},
                                        {"replace", InvalidUtf8::replace},
                                        {"refuse", InvalidUtf8::refuse}};
    const Names<SpecialText> special = {
        {"ordinary", SpecialText::ordinary}, {"encode", SpecialText::encode}, {"refuse", SpecialText::refuse}};
    app.option_defaults()->group("Tokenizer");
    app.add_option("--tokenizer", options.tokenizer,
                   "bytes, or a file or folder: tokenizer.json, vocab.bpe, tiktoken ranks")
        ->capture_default_str()
        ->each([&](const std::string&) { options.tokenizer_given = true; });
    app.add_option("--split", options.train.pattern.rule,
                   "how --train and tiktoken files split text: gpt2, cl100k, llama3, qwen (with NFC)")
        ->transform(one_of(rules))
        ->each([&](const std::string&) { options.split_wanted = true; });
    app.add_option("--special", encoding.special, "text that spells a special token: ordinary, encode, refuse")
        ->transform(one_of(special));
    app.add_option("--invalid-utf8", encoding.invalid,
                   "bytes that are not UTF-8: tiktoken (the rest is one piece), split, replace (U+FFFD), refuse")
        ->transform(one_of(invalid));
    app.add_option("--threads", options.corpus.threads, "the result does not depend on it")
        ->check(CLI::Range(1, 1024).description(""))
        ->capture_default_str();
}

void add_output_options(CLI::App& app, Options& options) {
    CorpusOptions& corpus = options.corpus;
    app.option_defaults()->group("Output");
    app.add_option("-o,--output", corpus.output, "folder for shards, tokenizer files and manifest");
    app.add_option("--name", corpus.name, "prefix of the shards' names")->take_last();
    app.add_option("--shard-tokens", corpus.shard_tokens, "tokens per shard")
        ->take_last()
        ->check(CLI::Range(std::uint64_t{1}, kMaxFileTokens).description(""))
        ->capture_default_str();
    app.add_flag("--dedup", corpus.dedup, "of documents that are equal keep the first");
    app.add_flag("--uint32", corpus.wide,
                 "words of 32 bits, in shards and questions, even for a vocabulary that fits 16");
    app.add_option("--val-files", options.val_inputs, "files and folders that are validation data, besides the inputs")
        ->expected(1, 1 << 20);
    app.add_option("--val-fraction", corpus.val_fraction, "part of the documents drawn for validation")
        ->check(CLI::Range(0.0, 1.0).description(""));
    app.add_option("--val-tokens", corpus.val_tokens, "the first so many tokens are for validation")->take_last();
    app.add_option("--save-every", corpus.save_seconds,
                   "seconds between states from which the same call goes on when this one is cut")
        ->check(CLI::Range(0.0, 1e6).description(""))
        ->capture_default_str();
    corpus.overwrite = false;
    app.add_flag("--overwrite", corpus.overwrite, "replace what an earlier call has written to --output");
    app.add_flag("-q,--quiet", options.quiet, "no progress line");
}

void add_other_tasks(CLI::App& app, Options& options) {
    app.option_defaults()->group("Instead of tokenizing");
    app.add_option("--train", options.train.vocab_size, "learn a vocabulary of this size, into --output")
        ->each([&](const std::string&) { options.train_wanted = true; });
    app.add_option("--min-count", options.train.min_count, "rarer pairs make no token")->capture_default_str();
    Names<QuestionSource> sources;
    for (const NamedSource& known : question_sources) sources.push_back({known.name, known.source});
    app.add_option("--questions", options.questions,
                   text("one of ", names_of_sources(),
                        ": write such questions (JSONL, MMLU also CSV) to --output FILE for "
                        "train_gpt --evaluate"))
        ->transform(one_of(sources))
        ->each([&](const std::string&) { options.questions_wanted = true; });
    const Names<QuestionIds> ways = {{"together", QuestionIds::together}, {"apart", QuestionIds::apart}};
    app.add_option("--question-ids", options.question_ids,
                   "together: completions behind their context, after the tokenizer's begin of text, as "
                   "lm-evaluation-harness; apart: as llm.c and older versions")
        ->transform(one_of(ways))
        ->needs("--questions");
    app.add_flag("--decode", options.decode, "write the text of shards, or of prepared folders, to standard output");
    app.add_flag("--stats", options.stats, "count what is in shards or prepared folders");
    app.add_flag("--verify", options.verify, "check prepared folders against their manifests, every token and hash");
    app.add_flag("--measure", options.measure,
                 "only encode, from memory, twice, and print MB per second of processor time, and tokens");
}

void add_options(CLI::App& app, Options& options) {
    options.corpus.threads = usable_cores().count();
    add_input_options(app, options);
    add_tokenizer_options(app, options);
    add_output_options(app, options);
    add_other_tasks(app, options);
}

Tokenizer load_tokenizer(const Options& options) {
    Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
    for (const std::string& warning : {warning_of_missing_bytes(tokenizer), warning_of_unknown_eos(tokenizer)}) {
        if (!warning.empty()) std::cerr << "warning: " << printable(warning) << "\n";
    }
    if (!options.split_wanted) return tokenizer;
    TokenizerData data = tokenizer.data();
    if (!data.merge_by_rank) {
        throw Error(ErrorKind::usage, text("--split for ", options.tokenizer), "Only tiktoken files leave it open.");
    }
    data.pattern = options.train.pattern;
    return Tokenizer(std::move(data));
}

void measure(const Options& options) {
    EncodingSpeed measurement(load_tokenizer(options), options.corpus);
    const std::string cold = measurement.encode_all();
    const PieceCounts counts = measurement.counts();
    const double found =
        1 - static_cast<double>(counts.merged) / static_cast<double>(std::max<std::uint64_t>(counts.pieces, 1));
    const std::string warm = measurement.encode_all();
    std::cout << cold << ", " << measurement.tokens() << " tokens, " << counts.pieces << " pieces, " << 100 * found
              << "% of them met before; again: " << warm << "\n";
}

// What has come from each input, where there are several.
void show_sources(const Options& options, const std::vector<SourceCount>& files) {
    for (std::size_t i = 0; i < options.sources.size() && options.sources.size() > 1; i++) {
        const std::size_t end = i + 1 < options.sources.size() ? options.sources[i + 1].second : files.size();
        SourceCount sum;
        for (std::size_t file = options.sources[i].second; file < end; file++) {
            sum.documents += files[file].documents;
            sum.tokens += files[file].tokens;
            sum.bytes += files[file].bytes;
        }
        std::cout << "  " << printable(options.sources[i].first) << ": " << sum.documents << " documents, "
                  << sum.tokens << " tokens, " << sum.bytes << " bytes\n";
    }
}

// What of the inputs is not in the result.
void show_left_out(const Options& options, const SkippedLines& skipped) {
    const std::string passed_over = options.passed_over.summary();
    if (!passed_over.empty()) std::cout << "  passed over in folders: " << printable(passed_over) << "\n";
    if (skipped.count == 0) return;
    std::cout << "  passed over " << skipped.count << (skipped.count == 1 ? " bad line: " : " bad lines, the first: ")
              << printable(skipped.first) << "\n";
}

void prepare(const Options& options) {
    if (options.corpus.output.empty()) throw Error(ErrorKind::usage, "no --output", "Give a folder for the shards.");
    refuse_earlier(options.corpus, options.corpus.output + "/" + manifest_file_name);   // before anything is read
    Tokenizer tokenizer = load_tokenizer(options);
    ProgressLine line(options.quiet);
    CorpusProgress last;
    const PreparedCorpus prepared = prepare_corpus(tokenizer, options.corpus, [&](const CorpusProgress& progress) {
        last = progress;
        line.show(progress);
    });
    line.show(last, true);
    const CorpusManifest& manifest = prepared.manifest;
    if (!prepared.changed.empty()) {
        std::cout << "began anew: " << printable(prepared.changed) << " is not as an earlier call has written it\n";
    }
    if (last.bytes_before > 0) {
        std::cout << "went on after " << static_cast<double>(last.bytes_before) * 1e-6 << " MB of an earlier call\n";
    }
    std::cout << printable(options.corpus.output) << ": " << manifest.tokens("train") << " training and "
              << manifest.tokens("val") << " validation tokens of " << manifest.documents << " documents, tokenizer "
              << printable(manifest.tokenizer_name) << " (" << manifest.vocab_size << " ids)\n";
    show_sources(options, prepared.files);
    show_left_out(options, prepared.skipped);
}

void train(const Options& options) {
    const std::string& output = options.corpus.output;
    if (output.empty()) throw Error(ErrorKind::usage, "no --output", "Give a folder for the tokenizer files.");
    const OutputFolder folder(options.corpus, output + "/tokenizer.json");
    BpeTrainOptions train_options = options.train;
    train_options.threads = options.corpus.threads;
    ProgressLine line(options.quiet);
    BpeTrainProgress last;
    SkippedLines skipped;
    TokenizerData data = train_bpe(options.corpus.input, train_options, [&](const BpeTrainProgress& progress) {
        if (progress.merges_total == 0) skipped = progress.skipped;
        if (progress.merges_total == 0)
            line.show({progress.bytes_done, progress.bytes_total, 0, 0});
        else
            line.show_merges(progress);
        last = progress;
    });
    Tokenizer tokenizer(std::move(data));
    tokenizer.save(output);
    write_whole(real_files(), output + "/tokenizer.tiktoken", to_tiktoken_ranks(tokenizer.data()));
    if (!options.quiet) std::cerr << "\n";
    std::cout << output << ": a vocabulary of " << tokenizer.vocab_size() << " tokens, from " << last.pieces
              << " different words\n";
    show_left_out(options, skipped);
    if (tokenizer.vocab_size() < options.train.vocab_size) {
        std::cout << "  fewer than " << options.train.vocab_size << ": no other pair occurs " << options.train.min_count
                  << " times\n";
    }
}

// The tokenizer asked for, or the one that lies beside the shards.
Tokenizer tokenizer_of(const Options& options, const std::string& path) {
    if (options.tokenizer_given) return load_tokenizer(options);
    return Tokenizer::load(fs::is_directory(path) ? path : fs::absolute(path).parent_path().string());
}

void write_out(const std::string& bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size()) return;
    throw Error(ErrorKind::io, text("cannot write to standard output: ", std::strerror(errno)));
}

// The very bytes, but to a terminal only what it can show: line by line, so that no character is cut.
void decode(const Options& options) {
    const bool to_terminal = isatty(STDOUT_FILENO) != 0;
    std::string line;
    for (const std::string& path : options.inputs) {
        decode_shards(tokenizer_of(options, path), shards_of(path, ""), [&](const std::string& piece) {
            if (!to_terminal) return write_out(piece);
            line += piece;
            const std::size_t end = line.rfind('\n');
            if (end == std::string::npos) return;
            write_out(printable(line.substr(0, end + 1)));
            line.erase(0, end + 1);
        });
    }
    write_out(printable(line));
    if (std::fflush(stdout) != 0)
        throw Error(ErrorKind::io, text("cannot write to standard output: ", std::strerror(errno)));
}

void show_stats(const Options& options) {
    for (const std::string& path : options.inputs) {
        Tokenizer tokenizer = tokenizer_of(options, path);
        for (const char* split : {"train", "val"}) {
            bool folder = fs::is_directory(path);
            std::vector<std::string> shards = shards_of(path, folder ? split : "");
            if (shards.empty()) continue;
            CorpusStats s = count_shards(tokenizer, shards);
            double per_token = static_cast<double>(s.bytes) / static_cast<double>(std::max<std::uint64_t>(s.tokens, 1));
            std::cout << path << (folder ? text(" ", split) : "") << ": " << s.tokens << " tokens in " << shards.size()
                      << " shards, " << s.documents << " documents (the longest " << s.longest_document << " tokens), "
                      << s.bytes << " bytes, " << per_token << " bytes per token, " << s.distinct_ids << " of "
                      << tokenizer.vocab_size() << " ids used, " << s.entropy << " bits per token without context\n";
            if (!folder) break;
        }
    }
}

void verify(const Options& options) {
    for (const std::string& path : options.inputs) {
        CorpusManifest manifest = verify_corpus(path);
        std::cout << path << ": good: " << manifest.shards.size() << " shards, " << manifest.tokens("train")
                  << " training and " << manifest.tokens("val") << " validation tokens, tokenizer "
                  << printable(manifest.tokenizer_name) << "\n";
    }
}

void write_questions(const Options& options) {
    const std::string& output = options.corpus.output;
    if (output.empty()) throw Error(ErrorKind::usage, "no --output", "Give the file for the questions.");
    refuse_earlier(options.corpus, output);
    const Tokenizer tokenizer = load_tokenizer(options);
    std::vector<QuestionText> questions;
    for (const std::string& path : options.corpus.input.files) {
        const auto more = parse_questions(options.questions, read_whole(real_files(), path), path);
        questions.insert(questions.end(), more.begin(), more.end());
    }
    const bool together = options.question_ids == QuestionIds::together;
    if (const std::string warning = together ? warning_of_tokens_behind(tokenizer) : ""; !warning.empty()) {
        std::cerr << "warning: " << printable(warning) << "\n";
    }
    const std::string content =
        to_question_file(tokenizer, questions, options.questions, options.corpus.wide, options.question_ids);
    parse_question_file(content, output, tokenizer.vocab_size());   // what is written can be read
    const fs::path folder = fs::path(output).parent_path();
    if (!folder.empty()) real_files().make_folders(folder.string());
    write_whole(real_files(), output, content);
    const std::string front = together ? front_of_texts(tokenizer) : "";
    std::cout << output << ": " << questions.size() << " questions" << (front.empty() ? "" : ", each after ")
              << printable(front) << ", tokenizer " << tokenizer.name() << "\n";
}

void run(Options& options) {
    options.train.pattern.nfc = options.train.pattern.rule == SplitRule::qwen;   // as in Qwen's own files
    bool inspects = options.decode || options.stats || options.verify;
    if (inspects) {
        if (options.inputs.empty()) throw Error(ErrorKind::usage, "no shard or folder is given");
        if (options.verify) verify(options);
        if (options.stats) show_stats(options);
        if (options.decode) decode(options);
        return;
    }
    choose_inputs(options);
    if (options.questions_wanted) {
        write_questions(options);
    } else if (options.train_wanted) {
        train(options);
    } else if (options.measure) {
        measure(options);
    } else {
        prepare(options);
    }
}

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    CLI::App app("Turns text into token shards for train_gpt.", "tokenize");
    Options options;
    add_options(app, options);
    try {
        app.parse(argc, argv);
        run(options);
        return 0;
    } catch (const CLI::ParseError& problem) {
        return app.exit(problem) == 0 ? 0 : static_cast<int>(ErrorKind::usage);
    } catch (const std::exception& problem) {
        std::cerr << "tokenize: " << words_of(problem) << "\n";
        return exit_code_of(problem);
    }
}
