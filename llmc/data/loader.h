// Reads training samples from token files, in an order that depends on nothing but (seed, epoch, sample index).
//
// A sample is a window of T + 1 tokens: inputs are its first T, targets its last T. Windows start at every multiple of
// T and lie inside one shard, so a shard of n tokens has (n - 1) / T of them; what is left over at its end is not used.
// Windows are numbered through all shards in the order of their names.
//
// Sample `index` of `epoch` is window Permutation(windows, seed, epoch)(index): no rank, micro-batch size or number of
// processes enters, so the same tokens make the same step under every layout, and the whole state of a loader is
// (epoch, index). Batches run on from one epoch into the next.
//
// In a mixture (mixture.h), the next sample comes from the source whose weights in force, summed over all samples up to
// and including this one, exceed the number of its samples the most; ties go to the source named first. Each source has
// epochs and a permutation of its own. So everything follows from the number of the sample again, and a run that goes
// on with other weights neither repeats a sample nor leaves one out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/mixture.h"
#include "llmc/data/permutation.h"
#include "llmc/data/token_file.h"
#include "llmc/mesh/context_cut.h"

// Rule by which documents, which stand one after another in a shard, are told apart.
struct DocumentRule {
    std::int32_t end_of_text = -1;   // the token that each begins with; -1: they are not told apart
    bool boundary_loss = true;       // false: no target at a document's last token, which would be the next one's first
};

// The token files behind one pattern or folder, or the list of a mixture, cut into windows.
class TokenSet {
public:
    // `flag` is the option the pattern came from (data_files.h). All headers and sizes are checked here, all ids too
    // where the files hold at most `check_all_bytes`; larger sets would delay the start by minutes, so their ids are
    // checked as they are read, as all are.
    TokenSet(const FileSystem& files, const std::string& flag, const std::string& pattern, std::int64_t T,
             std::int64_t vocab_size, std::uint64_t check_all_bytes = 4ull << 30);

    std::int64_t T() const { return T_; }
    std::uint64_t windows() const { return first_window_.back(); }
    std::uint64_t tokens() const { return tokens_; }
    std::size_t shards() const { return shards_.size(); }
    const std::vector<TokenFile>& files() const { return shards_; }

    void tell_documents_apart(const DocumentRule& rule) { documents_ = rule; }
    const DocumentRule& documents() const { return documents_; }
    // `bytes`: bytes of text that each id stands for; ids beyond them stand for none.
    void tell_text_bytes(std::vector<std::uint32_t> bytes) { text_bytes_ = std::move(bytes); }
    bool knows_text_bytes() const { return !text_bytes_.empty(); }

    // The one source without a name, or those of a mixture: their windows follow one another.
    struct Source {
        DataSource data;
        std::uint64_t first_window, windows;
    };
    const std::vector<Source>& sources() const { return sources_; }
    bool is_mixture() const { return !sources_.front().data.name.empty(); }

    // Shard of a window, and the number of the window's first token there.
    struct Location {
        const TokenFile& shard;
        std::uint64_t token;
    };
    Location location_of(std::uint64_t window) const;

    // Reads window `index`, 0 <= index < windows(), into inputs[0, T) and targets[0, T).
    void read_window(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
        read_window(index, std::vector<TokenRange>{{0, T_}}, inputs, targets);
    }
    // Reads only these ranges of the window's inputs and targets, one after another.
    void read_window(std::uint64_t index, const std::vector<TokenRange>& ranges, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) const;
    // Writes for each token where its document begins, as a position in the token's sequence: the window is cut into
    // sequences of `length` tokens. Of each sequence only these ranges are written, one after another.
    void read_starts(std::uint64_t index, std::int64_t length, const std::vector<TokenRange>& ranges,
                     std::span<std::int32_t> starts) const;
    // Returns how many positions of a window have a loss.
    std::int64_t count_targets(std::uint64_t index) const;
    // Returns the bytes of text that the window's targets stand for; 0: not known.
    std::int64_t count_text_bytes(std::uint64_t index) const;

private:
    std::vector<Source> sources_;
    DocumentRule documents_;
    std::vector<TokenFile> shards_;
    std::vector<std::uint64_t> first_window_;   // first window of each shard; one more entry holds the sum
    std::int64_t T_, vocab_size_;
    std::uint64_t tokens_ = 0;
    std::vector<std::uint32_t> text_bytes_;   // by id
};

// Position of a loader: the next sample. A checkpoint needs to save no more.
struct LoaderState {
    std::uint64_t epoch = 0;
    std::uint64_t index = 0;   // in [0, windows); in a mixture, the number of the sample

    struct Source {
        std::string name;
        std::uint64_t samples = 0, windows = 0;   // samples read so far, in epochs of so many
        std::int64_t credit = 0;                  // sum of weights - kWeightSum * samples
        bool operator==(const Source&) const = default;
    };
    std::vector<Source> sources = {};   // sources of a mixture
    std::int64_t T = 0;                 // tokens of a sample
    bool operator==(const LoaderState&) const = default;
};

// Source, epoch and window of a sample.
struct SampleId {
    std::size_t source;
    std::uint64_t epoch, window;   // window: of the TokenSet
    bool operator==(const SampleId&) const = default;
};

class Loader {
public:
    // Keeps `tokens`, which must outlive the loader. `phases` of a mixture come in their order; before the first one,
    // its own weights are in force. `one_batch`: sample i is window i modulo windows(), whatever the state.
    Loader(const TokenSet& tokens, std::uint64_t seed, std::vector<MixturePhase> phases = {}, bool one_batch = false);

    LoaderState state() const { return state_; }
    // Goes on from `state`; Error(bad_data) where it is not of these data. New sources begin here. Where samples had
    // another length, each source begins a new epoch.
    void seek(const LoaderState& state);

    // Reads samples [ahead, ahead + count) after the state into inputs and targets of shape (count, T). The state
    // stays: the caller reads its own part of a step's samples, then advances by all of them.
    void read(std::uint64_t ahead, std::uint64_t count, std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) const {
        read(ahead, count, {{0, tokens_->T()}}, inputs, targets);
    }
    // Reads only these ranges of each sample.
    void read(std::uint64_t ahead, std::uint64_t count, const std::vector<TokenRange>& ranges,
              std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
    // Writes for each sample what TokenSet::read_starts gives.
    void read_starts(std::uint64_t ahead, std::uint64_t count, std::int64_t length,
                     const std::vector<TokenRange>& ranges, std::span<std::int32_t> starts) const;
    void advance(std::uint64_t samples);
    LoaderState after(std::uint64_t samples) const;   // the state to which advance() would lead
    std::vector<SampleId> samples(std::uint64_t ahead, std::uint64_t count) const;

private:
    LoaderState with_new_length(LoaderState state) const;
    std::size_t choose(LoaderState& state) const;   // the source of a mixture's next sample; moves `state` past that

    const TokenSet* tokens_;
    std::uint64_t seed_;
    bool one_batch_;
    std::vector<MixturePhase> phases_;
    LoaderState state_;
};
