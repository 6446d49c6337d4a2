// The line of progress of long work on text: tokenizing a corpus, learning a vocabulary.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "llmc/data/corpus/corpus.h"
#include "llmc/tokenizer/bpe/bpe_train.h"

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
        double rate = (done - static_cast<double>(progress.bytes_before)) / std::max(seconds, 1e-6);
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

    void show_merges(const BpeTrainProgress& progress) {
        Clock::time_point now = Clock::now();
        if (quiet_ || now - shown_ < std::chrono::duration<double>(terminal_ ? 0.2 : 10.0)) return;
        shown_ = now;
        std::fprintf(stderr, "%s%u of %u merges%s", terminal_ ? "\r" : "", progress.merges_done, progress.merges_total,
                     terminal_ ? "                                        " : "\n");
    }

private:
    using Clock = std::chrono::steady_clock;
    bool quiet_;
    bool terminal_ = isatty(STDERR_FILENO) != 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point shown_ = start_;
};
