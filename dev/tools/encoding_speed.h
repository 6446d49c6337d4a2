// Measures the speed of encoding for `tokenize --measure`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/data/corpus/corpus.h"
#include "llmc/tokenizer/parallel.h"
#include "llmc/tokenizer/tokenizer.h"

// Measures what encoding alone costs, in processor time (which other programs of the machine disturb least) and as time
// passes: the files are read before, and nothing is written.
class EncodingSpeed {
public:
    EncodingSpeed(const Tokenizer& tokenizer, const CorpusOptions& options) : threads_(options.threads) {
        for (int i = 0; i < threads_; i++) encoders_.emplace_back(tokenizer, options.encoding);
        DocumentReader reader(options.input, cuts_for(tokenizer, options.encoding));
        for (InputBatch batch; reader.next(batch); batch = {}) batches_.push_back(std::move(batch));
        bytes_ = reader.bytes_read();
    }

    // Encodes all of it, and returns the speed in words; sets tokens(). The first time the caches are empty.
    std::string encode_all() {
        struct Work {
            const InputBatch* batch = nullptr;
            std::vector<std::uint32_t> ids;
            std::uint64_t tokens = 0;
        };
        tokens_ = 0;
        std::size_t next = 0;
        const auto take = [&](Work& work) {
            work.tokens = 0;
            work.batch = next < batches_.size() ? &batches_[next++] : nullptr;
            return work.batch != nullptr;
        };
        const auto encode = [&](Work& work, int thread) {
            for (const InputPart& part : work.batch->parts) {
                work.ids.clear();
                const std::string_view bytes = work.batch->bytes;
                encoders_[static_cast<std::size_t>(thread)].encode(bytes.substr(part.begin, part.end - part.begin),
                                                                   work.ids);
                work.tokens += work.ids.size();
            }
        };
        const auto processor_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
        const auto wall_start = std::chrono::steady_clock::now();
        const double start = processor_seconds();
        InOrder<Work>(threads_).run(take, encode, [&](const Work& work) { tokens_ += work.tokens; });
        const double seconds = std::max(processor_seconds() - start, 1e-9);
        const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
        const double megabytes = static_cast<double>(bytes_) * 1e-6;
        return text(megabytes / seconds, " MB/s (wall: ", megabytes / wall, " MB/s)");
    }

    std::uint64_t tokens() const { return tokens_; }
    PieceCounts counts() const {
        PieceCounts sum;
        for (const Encoder& encoder : encoders_) {
            sum.pieces += encoder.counts().pieces;
            sum.merged += encoder.counts().merged;
        }
        return sum;
    }

private:
    int threads_;
    std::vector<Encoder> encoders_;
    std::vector<InputBatch> batches_;
    std::uint64_t bytes_ = 0, tokens_ = 0;
};
