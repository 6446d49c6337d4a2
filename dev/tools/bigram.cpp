// bigram TRAIN_PATTERN VAL_PATTERN
//
// Counts the pairs of neighbouring tokens of the training files and prints the mean loss (nats per token) of that
// bigram model on the validation files: the bar that a language model has to get under before it has learned anything.
//
//   p(b | a) = (count(a, b) + s q(b)) / (count(a) + s)       q(b) = (count(b) + 1) / (tokens + vocabulary)
//
// The smoothing s is the one that suits the validation files best, in the bigram model's favour.

#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <unordered_map>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/exit_code.h"
#include "llmc/data/token_file.h"
#include "llmc/io/standard_descriptors.h"

namespace {

std::vector<std::vector<std::int32_t>> read_all(const std::string& pattern) {
    std::vector<std::vector<std::int32_t>> files;
    for (const std::string& path : glob_files(pattern)) {
        TokenFile file(real_files(), path);
        std::vector<std::int32_t>& ids = files.emplace_back(file.count());
        file.read(0, ids, std::numeric_limits<std::int32_t>::max());
    }
    if (files.empty())
        throw Error(ErrorKind::io, text("no file matches ", pattern), "Prepare the data first: data/local.sh");
    return files;
}

class Bigram {
public:
    explicit Bigram(const std::vector<std::vector<std::int32_t>>& files) {
        for (const auto& ids : files) {
            for (std::size_t i = 0; i < ids.size(); i++) {
                if (static_cast<std::size_t>(ids[i]) >= unigrams_.size())
                    unigrams_.resize(static_cast<std::size_t>(ids[i]) + 1);
                unigrams_[static_cast<std::size_t>(ids[i])]++;
                if (i > 0) pairs_[key(ids[i - 1], ids[i])]++;
            }
            tokens_ += static_cast<double>(ids.size());
        }
    }

    double mean_loss(const std::vector<std::vector<std::int32_t>>& files, double smoothing) const {
        double sum = 0, count = 0;
        for (const auto& ids : files) {
            for (std::size_t i = 1; i < ids.size(); i++, count++)
                sum -= std::log(probability(ids[i - 1], ids[i], smoothing));
        }
        return sum / count;
    }

private:
    static std::uint64_t key(std::int32_t a, std::int32_t b) {
        return static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
    }
    double occurrences(std::int32_t id) const {
        return static_cast<std::size_t>(id) < unigrams_.size() ? unigrams_[static_cast<std::size_t>(id)] : 0;
    }
    double probability(std::int32_t a, std::int32_t b, double smoothing) const {
        double unigram = (occurrences(b) + 1) / (tokens_ + static_cast<double>(unigrams_.size()));
        auto pair = pairs_.find(key(a, b));
        return ((pair == pairs_.end() ? 0 : pair->second) + smoothing * unigram) / (occurrences(a) + smoothing);
    }

    std::vector<double> unigrams_;
    std::unordered_map<std::uint64_t, double> pairs_;
    double tokens_ = 0;
};

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    try {
        if (argc != 3) throw Error(ErrorKind::usage, "usage: bigram TRAIN_PATTERN VAL_PATTERN");
        Bigram bigram(read_all(argv[1]));
        auto validation = read_all(argv[2]);
        double best = std::numeric_limits<double>::infinity();
        for (double smoothing = 0.25; smoothing < 5000; smoothing *= 2) {
            best = std::min(best, bigram.mean_loss(validation, smoothing));
        }
        std::printf("%.4f\n", best);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "bigram: " << words_of(error) << "\n";
        return exit_code_of(error);
    }
}
