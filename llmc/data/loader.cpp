#include "llmc/data/loader.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/data/data_files.h"
#include "llmc/io/hash.h"
#include "llmc/mesh/document_cut.h"

namespace {

constexpr std::uint64_t most_samples = std::uint64_t{1} << 53;   // no run reads so many

}   // namespace

TokenSet::TokenSet(const FileSystem& files, const std::string& flag, const std::string& pattern, std::int64_t T,
                   std::int64_t vocab_size, std::uint64_t check_all_bytes)
    : T_(T), vocab_size_(vocab_size) {
    std::uint64_t windows = 0, bytes = 0;
    const auto open_files = std::make_shared<OpenFiles>(files);
    for (const DataSource& source : data_sources(flag, pattern)) {
        const std::vector<std::string> paths = data_files(source.flag(flag), source.pattern);
        std::uint64_t longest = 0;
        sources_.push_back({source, windows, 0});
        for (const std::string& path : paths) {
            const TokenFile& shard = shards_.emplace_back(open_files, path);
            first_window_.push_back(windows);
            windows += (shard.count() - 1) / static_cast<std::uint64_t>(T);
            tokens_ += shard.count();
            bytes += shard.bytes();
            longest = std::max(longest, shard.count());
        }
        sources_.back().windows = windows - sources_.back().first_window;
        if (sources_.back().windows > 0) continue;
        throw Error(ErrorKind::bad_data,
                    text(source.flag(flag), " ", source.pattern, ": the longest of ", paths.size(), " file(s) has ",
                         longest, " tokens, expected at least --seq-len + 1 = ", T + 1),
                    text("Lower --seq-len to at most ", longest - 1, ", or pass more data."));
    }
    first_window_.push_back(windows);
    if (bytes <= check_all_bytes) {
        for (const TokenFile& shard : shards_) shard.check_ids(vocab_size);
    }
}

TokenSet::Location TokenSet::location_of(std::uint64_t window) const {
    ENSURE(window < windows(), "window ", window, " of ", windows());
    auto next = std::upper_bound(first_window_.begin(), first_window_.end(), window);
    const std::size_t shard = static_cast<std::size_t>(next - first_window_.begin()) - 1;
    return {shards_[shard], (window - first_window_[shard]) * static_cast<std::uint64_t>(T_)};
}

void TokenSet::read_window(std::uint64_t index, const std::vector<TokenRange>& ranges, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const {
    const auto [shard, begin] = location_of(index);
    std::size_t done = 0;
    for (const TokenRange& range : ranges) {
        const auto length = static_cast<std::size_t>(range.length);
        ENSURE(range.begin >= 0 && range.begin + range.length <= T_ && done + length <= inputs.size() &&
                   inputs.size() == targets.size(),
               "tokens ", range.begin, " + ", range.length, " of ", T_, " into ", inputs.size(), " and ",
               targets.size());
        std::vector<std::int32_t> tokens(length + 1);
        shard.read(begin + static_cast<std::uint64_t>(range.begin), tokens, vocab_size_);
        std::copy(tokens.begin(), tokens.end() - 1, inputs.begin() + static_cast<std::ptrdiff_t>(done));
        std::copy(tokens.begin() + 1, tokens.end(), targets.begin() + static_cast<std::ptrdiff_t>(done));
        done += length;
    }
    ENSURE(done == inputs.size(), done, " tokens into ", inputs.size());
    if (!documents_.boundary_loss) std::ranges::replace(targets, documents_.end_of_text, -1);
}

void TokenSet::read_starts(std::uint64_t index, std::int64_t length, const std::vector<TokenRange>& ranges,
                           std::span<std::int32_t> starts) const {
    ENSURE(documents_.end_of_text >= 0, "documents that are not told apart");
    const auto [shard, begin] = location_of(index);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(T_)), of_sequence(static_cast<std::size_t>(length));
    shard.read(begin, tokens, vocab_size_);
    std::size_t local = 0;
    for (const TokenRange& range : ranges) local += static_cast<std::size_t>(range.length);
    ENSURE(starts.size() * of_sequence.size() == local * tokens.size(), starts.size(), " starts, of ", local,
           " of each ", length, " tokens");
    for (std::size_t first = 0, to = 0; first < tokens.size(); first += of_sequence.size(), to += local) {
        document_starts(std::span(of_sequence),
                        [&](std::size_t t) { return tokens[first + t] == documents_.end_of_text; });
        take_ranges(starts.subspan(to, local), std::span<const std::int32_t>(of_sequence), ranges);
    }
}

std::int64_t TokenSet::count_targets(std::uint64_t index) const {
    if (documents_.boundary_loss) return T_;
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(T_)), targets(inputs.size());
    read_window(index, inputs, targets);
    return T_ - std::ranges::count(targets, -1);
}

std::int64_t TokenSet::count_text_bytes(std::uint64_t index) const {
    if (!knows_text_bytes()) return 0;
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(T_)), targets(inputs.size());
    read_window(index, inputs, targets);
    std::int64_t bytes = 0;
    for (const std::int32_t id : targets) {
        if (id >= 0 && std::cmp_less(id, text_bytes_.size())) bytes += text_bytes_[static_cast<std::size_t>(id)];
    }
    return bytes;
}

Loader::Loader(const TokenSet& tokens, std::uint64_t seed, std::vector<MixturePhase> phases, bool one_batch)
    : tokens_(&tokens), seed_(seed), one_batch_(one_batch) {
    state_.T = tokens.T();
    if (!tokens.is_mixture()) return;
    phases_.push_back({0, {}});
    for (const TokenSet::Source& source : tokens.sources()) {
        phases_.front().weights.push_back(source.data.weight);
        state_.sources.push_back({source.data.name, 0, source.windows, 0});
    }
    phases_.insert(phases_.end(), phases.begin(), phases.end());
}

// Converts a state of samples of another length: it begins the first epoch of which nothing was read.
LoaderState Loader::with_new_length(LoaderState state) const {
    const auto T = static_cast<std::uint64_t>(tokens_->T());
    const std::uint64_t tokens = state.index * static_cast<std::uint64_t>(std::exchange(state.T, tokens_->T()));
    if (!tokens_->is_mixture()) {
        state.epoch += state.index > 0;
        state.index = 0;
        return state;
    }
    state.index = (tokens + T - 1) / T;   // counts the samples of all sources
    for (LoaderState::Source& saved : state.sources) {
        for (const TokenSet::Source& now : tokens_->sources()) {
            if (now.data.name != saved.name || saved.windows == 0) continue;
            const std::uint64_t epochs = (saved.samples + saved.windows - 1) / saved.windows;
            saved.samples = epochs * now.windows, saved.windows = now.windows;
            break;
        }
    }
    return state;
}

void Loader::seek(const LoaderState& state) {
    auto fail = [](const std::string& what, const std::string& hint) { throw Error(ErrorKind::bad_data, what, hint); };
    auto check_reached = [&](const char* what, std::uint64_t count, std::uint64_t most, const std::string& of) {
        if (count <= most) return;
        fail(text("run.json: the saved position is ", what, " ", count, of, ", expected at most ", most),
             "The record is damaged: resume an earlier checkpoint.");
    };
    check_reached("epoch", state.epoch, most_samples / tokens_->windows(), "");
    check_reached("sample", state.index, most_samples, "");
    for (const LoaderState::Source& source : state.sources) {
        check_reached("sample", source.samples, most_samples, " of " + source.name);
    }
    if (state.T != tokens_->T() && state.sources.empty() != tokens_->is_mixture()) {
        return seek(with_new_length(state));
    }
    if (state.sources.empty() == tokens_->is_mixture()) {
        fail(text("the run to resume read ", tokens_->is_mixture() ? "one source" : "a mixture", ", --train-data is ",
                  tokens_->is_mixture() ? "a mixture" : "one source"),
             "One source with a weight, as in web:1, is a mixture too, to which others can be added.");
    }
    if (!tokens_->is_mixture() && state.index >= tokens_->windows()) {
        fail(text("run.json: the saved position is sample ", state.index, " of epoch ", state.epoch,
                  ", but the data has ", tokens_->windows(), " samples"),
             "Resume with the same --train-data and --seq-len as the run that was saved.");
    }
    LoaderState found = Loader(*tokens_, seed_).state_;
    found.epoch = state.epoch;
    found.index = state.index;
    for (const LoaderState::Source& saved : state.sources) {
        const auto source = std::ranges::find(found.sources, saved.name, &LoaderState::Source::name);
        if (source == found.sources.end()) {
            fail(text("the run to resume read ", saved.samples, " samples of ", saved.name,
                      ", which --train-data does not name"),
                 "Name it with the weight 0 where no more of it shall be read.");
        }
        if (source->windows != saved.windows) {
            fail(text("the run to resume had ", saved.windows, " samples an epoch of ", saved.name,
                      ", --train-data with --seq-len ", tokens_->T(), " has ", source->windows),
                 "Resume with the same data.");
        }
        *source = saved;
    }
    state_ = std::move(found);
}

std::size_t Loader::choose(LoaderState& state) const {
    const auto later = std::ranges::upper_bound(phases_, state.index, {}, &MixturePhase::first);
    const std::vector<std::int64_t>& weights = (later - 1)->weights;
    for (std::size_t i = 0; i < weights.size(); i++) state.sources[i].credit += weights[i];
    const auto next =
        std::ranges::max_element(state.sources, {}, &LoaderState::Source::credit);   // the first of equals
    next->credit -= kWeightSum;
    next->samples++;
    state.index++;
    return static_cast<std::size_t>(next - state.sources.begin());
}

LoaderState Loader::after(std::uint64_t samples) const {
    LoaderState state = state_;
    if (tokens_->is_mixture()) {
        for (std::uint64_t i = 0; i < samples; i++) choose(state);
    } else {
        const std::uint64_t index = state.index + samples;
        state.epoch += index / tokens_->windows();
        state.index = index % tokens_->windows();
    }
    return state;
}

std::vector<SampleId> Loader::samples(std::uint64_t ahead, std::uint64_t count) const {
    std::vector<SampleId> ids;
    for (std::uint64_t i = ahead; one_batch_ && i < ahead + count; i++) {
        const std::uint64_t window = i % tokens_->windows();
        std::size_t which = 0;
        while (window >= tokens_->sources()[which].first_window + tokens_->sources()[which].windows) which++;
        ids.push_back({which, 0, window});
    }
    if (one_batch_) return ids;
    LoaderState state = after(ahead);
    for (std::uint64_t i = 0; i < count; i++) {
        std::size_t which = 0;
        std::uint64_t seed = seed_, sample = state.epoch * tokens_->windows() + state.index + i;
        if (tokens_->is_mixture()) {
            which = choose(state);
            seed ^= hash64(state.sources[which].name);   // so that sources of one size are not read alike
            sample = state.sources[which].samples - 1;
        }
        const TokenSet::Source& source = tokens_->sources()[which];
        const std::uint64_t epoch = sample / source.windows;
        const Permutation order(source.windows, seed, epoch);
        ids.push_back({which, epoch, source.first_window + order(sample % source.windows)});
    }
    return ids;
}

void Loader::read(std::uint64_t ahead, std::uint64_t count, const std::vector<TokenRange>& ranges,
                  std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    std::size_t T = 0;   // tokens of the ranges
    for (const TokenRange& range : ranges) T += static_cast<std::size_t>(range.length);
    ENSURE(inputs.size() == count * T && targets.size() == count * T, count, " samples into ", inputs.size(),
           " tokens");
    const std::vector<SampleId> ids = samples(ahead, count);
    for (std::size_t i = 0; i < ids.size(); i++) {
        tokens_->read_window(ids[i].window, ranges, inputs.subspan(i * T, T), targets.subspan(i * T, T));
    }
}

void Loader::read_starts(std::uint64_t ahead, std::uint64_t count, std::int64_t length,
                         const std::vector<TokenRange>& ranges, std::span<std::int32_t> starts) const {
    const std::size_t local = starts.size() / static_cast<std::size_t>(count);
    std::size_t to = 0;
    for (const SampleId& id : samples(ahead, count)) {
        tokens_->read_starts(id.window, length, ranges, starts.subspan(std::exchange(to, to + local), local));
    }
}

void Loader::advance(std::uint64_t samples) { state_ = after(samples); }
