// tokenize: text to token shards.
//
//   tokenize --tokenizer bytes --output data/mine --val-fraction 0.05 notes.txt source/
//
// The work is done by llmc/data/tokenizer*; here are the command line and the progress line.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "llmc/base/error.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_corpus.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;

namespace {

struct Options {
    CorpusOptions corpus;
    std::vector<std::string> inputs;
    std::string tokenizer = "bytes";
    std::string files_from;
    bool shuffle_files = false;
    bool quiet = false;
};

// One line on standard error: rewritten in place on a terminal, a few times a minute elsewhere.
class ProgressLine {
public:
    explicit ProgressLine(bool quiet) : quiet_(quiet) {}

    void show(const CorpusProgress& progress, bool last = false) {
        Clock::time_point now = Clock::now();
        std::chrono::duration<double> interval(terminal_ ? 0.2 : 10.0);
        if (quiet_ || (!last && now - shown_ < interval)) return;
        shown_ = now;
        double seconds = std::chrono::duration<double>(now - start_).count();
        double done = static_cast<double>(progress.bytes_done), total = static_cast<double>(progress.bytes_total);
        double rate = done / std::max(seconds, 1e-6);
        std::fprintf(stderr, "%s%.1f", terminal_ ? "\r" : "", done * 1e-6);
        if (total > 0) std::fprintf(stderr, " of %.1f MB (%.0f%%)", total * 1e-6, 100 * done / total);
        std::fprintf(stderr, ", %.1f MB/s, %.2fM tokens", rate * 1e-6, static_cast<double>(progress.tokens) * 1e-6);
        if (last) {
            std::fprintf(stderr, ", %.1f s  ", seconds);
        } else if (total > done && rate > 0) {
            int left = static_cast<int>((total - done) / rate);
            std::fprintf(stderr, ", %d:%02d left  ", left / 60, left % 60);
        }
        if (last || !terminal_) std::fputc('\n', stderr);
    }

private:
    using Clock = std::chrono::steady_clock;
    bool quiet_;
    bool terminal_ = isatty(STDERR_FILENO) != 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point shown_ = start_;
};

// Files stand for themselves, folders for every regular file below them in the order of their names.
void add_input(const std::string& input, std::vector<std::string>& files) {
    if (!fs::exists(input)) throw Error(ErrorKind::io, text("no file or folder ", input));
    if (!fs::is_directory(input)) {
        files.push_back(input);
        return;
    }
    std::size_t first = files.size();
    for (const auto& entry : fs::recursive_directory_iterator(input)) {
        if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
}

std::vector<std::string> list_files(const Options& options) {
    std::vector<std::string> files;
    for (const std::string& input : options.inputs) add_input(input, files);
    if (!options.files_from.empty()) {
        std::ifstream list(options.files_from == "-" ? "/dev/stdin" : options.files_from);
        if (!list) throw Error(ErrorKind::io, text("cannot open ", options.files_from));
        for (std::string line; std::getline(list, line);) {
            if (!line.empty()) add_input(line, files);
        }
    }
    if (files.empty()) throw Error(ErrorKind::usage, "no input", "Give files, folders or --files-from LIST.");
    if (options.shuffle_files) {
        auto key = [](const std::string& path) { return std::pair(hash64(path), path); };
        std::sort(files.begin(), files.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    }
    return files;
}

void add_options(CLI::App& app, Options& options) {
    app.add_option("inputs", options.inputs, "files and folders to tokenize; a file is a document");
    app.add_option("--files-from", options.files_from, "read the names of inputs from a file, one per line (-: stdin)");
    app.add_flag("--shuffle-files", options.shuffle_files, "order files by a hash of their names");
    app.add_option("--max-bytes", options.corpus.max_bytes, "stop before the document that would exceed this")
        ->transform(CLI::AsSizeValue(false));
    app.add_option("--tokenizer", options.tokenizer, "bytes, or a tokenizer file or folder")->capture_default_str();
    app.add_option("-o,--output", options.corpus.output, "folder for shards and manifest")->required();
    app.add_option("--name", options.corpus.name, "prefix of the shards' names");
    app.add_option("--shard-tokens", options.corpus.shard_tokens, "tokens per shard")
        ->check(CLI::Range(std::uint64_t{1}, max_shard_tokens))
        ->capture_default_str();
    app.add_option("--val-fraction", options.corpus.val_fraction, "part of the documents drawn for validation")
        ->check(CLI::Range(0.0, 1.0));
    app.add_option("--val-tokens", options.corpus.val_tokens, "the first so many tokens are for validation");
    app.add_flag("-q,--quiet", options.quiet, "no progress line");
}

void run(Options& options) {
    options.corpus.inputs = list_files(options);
    Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
    ProgressLine line(options.quiet);
    CorpusProgress last;
    CorpusManifest manifest = prepare_corpus(tokenizer, options.corpus, [&](const CorpusProgress& progress) {
        last = progress;
        line.show(progress);
    });
    line.show(last, true);
    std::cout << options.corpus.output << ": " << manifest.tokens("train") << " training and " << manifest.tokens("val")
              << " validation tokens of " << manifest.documents << " documents, tokenizer " << manifest.tokenizer_name
              << " (" << manifest.vocab_size << " ids)\n";
}

}   // namespace

int main(int argc, char** argv) {
    CLI::App app("Turns text into token shards for train_gpt.", "tokenize");
    Options options;
    add_options(app, options);
    try {
        app.parse(argc, argv);
        run(options);
        return 0;
    } catch (const CLI::ParseError& problem) {
        return app.exit(problem) == 0 ? 0 : static_cast<int>(ErrorKind::usage);
    } catch (const Error& problem) {
        std::cerr << "tokenize: " << problem.what() << "\n";
        return problem.exit_code();
    } catch (const std::exception& problem) {
        std::cerr << "tokenize: " << problem.what() << "\n";
        return static_cast<int>(ErrorKind::bug);
    }
}
