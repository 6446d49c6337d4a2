#include "llmc/data/loader.h"

#include <algorithm>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/error.h"

TokenSet::TokenSet(const FileSystem& files, const std::string& flag, const std::string& pattern, std::int64_t T,
                   std::int64_t vocab_size, std::uint64_t check_all_bytes)
    : T_(T), vocab_size_(vocab_size) {
    const std::vector<std::string> paths = matching_files(flag, pattern);
    std::uint64_t windows = 0, bytes = 0, longest = 0;
    for (const std::string& path : paths) {
        const TokenFile& shard = shards_.emplace_back(files, path);
        first_window_.push_back(windows);
        windows += (shard.count() - 1) / static_cast<std::uint64_t>(T);
        tokens_ += shard.count();
        bytes += shard.bytes();
        longest = std::max(longest, shard.count());
    }
    first_window_.push_back(windows);
    if (windows == 0) {
        throw Error(ErrorKind::bad_data,
                    text(flag, " ", pattern, ": the longest of ", shards_.size(), " file(s) has ", longest,
                         " tokens, expected at least --seq-len + 1 = ", T + 1),
                    text("Lower --seq-len to at most ", longest - 1, ", or pass more data."));
    }
    if (bytes <= check_all_bytes) {
        for (const TokenFile& shard : shards_) shard.check_ids(vocab_size);
    }
}

void TokenSet::read_window(std::uint64_t index, const std::vector<TokenRange>& ranges, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const {
    ENSURE(index < windows(), "window ", index, " of ", windows());
    auto next = std::upper_bound(first_window_.begin(), first_window_.end(), index);
    std::size_t shard = static_cast<std::size_t>(next - first_window_.begin()) - 1;
    const std::uint64_t begin = (index - first_window_[shard]) * static_cast<std::uint64_t>(T_);
    std::size_t done = 0;
    for (const TokenRange& range : ranges) {
        const auto length = static_cast<std::size_t>(range.length);
        ENSURE(range.begin >= 0 && range.begin + range.length <= T_ && done + length <= inputs.size() &&
                   inputs.size() == targets.size(),
               "tokens ", range.begin, " + ", range.length, " of ", T_, " into ", inputs.size(), " and ",
               targets.size());
        std::vector<std::int32_t> tokens(length + 1);
        shards_[shard].read(begin + static_cast<std::uint64_t>(range.begin), tokens, vocab_size_);
        std::copy(tokens.begin(), tokens.end() - 1, inputs.begin() + static_cast<std::ptrdiff_t>(done));
        std::copy(tokens.begin() + 1, tokens.end(), targets.begin() + static_cast<std::ptrdiff_t>(done));
        done += length;
    }
    ENSURE(done == inputs.size(), done, " tokens into ", inputs.size());
}

void Loader::seek(LoaderState state) {
    if (state.index >= tokens_->windows()) {
        throw Error(ErrorKind::bad_data,
                    text("the saved position is sample ", state.index, " of epoch ", state.epoch, ", but the data has ",
                         tokens_->windows(), " samples"),
                    "Resume with the same --train-data and --seq-len as the run that was saved.");
    }
    state_ = state;
}

LoaderState Loader::after(std::uint64_t samples) const {
    std::uint64_t index = state_.index + samples;
    return {state_.epoch + index / tokens_->windows(), index % tokens_->windows()};
}

void Loader::read(std::uint64_t ahead, std::uint64_t count, const std::vector<TokenRange>& ranges,
                  std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    std::size_t T = 0;   // tokens of the ranges
    for (const TokenRange& range : ranges) T += static_cast<std::size_t>(range.length);
    ENSURE(inputs.size() == count * T && targets.size() == count * T, count, " samples into ", inputs.size(),
           " tokens");
    for (std::uint64_t i = 0; i < count; i++) {
        LoaderState sample = after(ahead + i);
        Permutation order(tokens_->windows(), seed_, sample.epoch);
        tokens_->read_window(order(sample.index), ranges, inputs.subspan(i * T, T), targets.subspan(i * T, T));
    }
}

void Loader::advance(std::uint64_t samples) { state_ = after(samples); }
