// For tests: a set of layouts of up to eight ranks in which every pair of settings that can stand together does, made
// greedily (as pairwise test generators do: Cohen et al., "The AETG system", 1997), the same ones every time.
#pragma once

#include <array>
#include <bitset>
#include <set>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/model/memory/activations.h"

namespace certificate {

// A choice: which value of each setting.
enum class Setting : std::uint8_t {
    tp,
    sequence_parallel,
    tp_chunks,
    pp,
    schedule,
    cp,
    ulysses,
    dp,
    zero,
    recompute,
    micro_batches,
    untied,
    model_kind,
    grad_dtype,
    targets,
    count
};
constexpr std::size_t settings = static_cast<std::size_t>(Setting::count);
using Choice = std::array<std::uint8_t, settings>;
constexpr Choice values_of{4, 2, 2, 4, 5, 4, 3, 4, 4, 4, 4, 2, 4, 2, 4};   // how many each has

constexpr int cover_seq_len = 48, cover_sequences = 24;   // sequences per step

// The layout of a choice, or nothing where its settings do not go together, or say nothing beside each other: each
// layout has one choice.
inline std::optional<Layout> layout_of(const Choice& choice) {
    auto value = [&](Setting setting) { return static_cast<int>(choice[static_cast<std::size_t>(setting)]); };
    constexpr PipelineKind kinds[] = {PipelineKind::one_f_one_b, PipelineKind::naive, PipelineKind::gpipe,
                                      PipelineKind::interleaved, PipelineKind::zero_bubble};
    Layout layout{1 + value(Setting::dp), value(Setting::zero), 1 + value(Setting::micro_batches)};
    layout.tp = 1 + value(Setting::tp), layout.sequence_parallel = value(Setting::sequence_parallel) != 0;
    layout.tp_chunks = 1 + value(Setting::tp_chunks);
    const PipelineKind kind = kinds[value(Setting::schedule)];
    layout.pipe = {1 + value(Setting::pp), kind, kind == PipelineKind::interleaved ? 2 : 1};
    layout.cp = 1 + value(Setting::cp);
    const int groups[] = {1, layout.cp, 2};   // ring, Ulysses, both
    layout.ulysses = groups[value(Setting::ulysses)];
    layout.recompute = static_cast<Recompute>(value(Setting::recompute));
    layout.tied = value(Setting::untied) == 0;
    layout.kind = static_cast<ModelKind>(value(Setting::model_kind));
    layout.grad_dtype = value(Setting::grad_dtype) == 0 ? DType::fp32 : DType::bf16;
    layout.targets = static_cast<Targets>(value(Setting::targets));
    layout.seq_len = cover_seq_len, layout.step_sequences = cover_sequences;
    layout.heads = 12 % (layout.tp * layout.ulysses) == 0 ? 12 : 8;
    // Heads of keys and values: as few as ranks can share; of untied models fewer, of which ranks hold copies.
    const int sharers = layout.tp * layout.ulysses;
    if (layout.like_llama() && layout.heads % sharers == 0) {
        layout.kv_heads = layout.tied ? sharers : sharers % 2 == 0 ? sharers / 2 : 1;
        if (layout.kv_heads < sharers) layout.heads = 2 * sharers;
    }
    layout.layers = std::max(5, layout.pipe.stages * layout.pipe.chunks + 1);   // uneven

    const bool alone = layout.tp == 1, unpiped = layout.pipe.stages == 1, whole = layout.cp == 1;
    const int replicas = layout.dp * layout.micro_batches, m = layout.micro_batches;
    if (layout.mesh().size() > 8 || layout.mesh().size() == 1 || cover_sequences % replicas != 0) return {};
    if (alone && (layout.sequence_parallel || layout.tp_chunks > 1)) return {};
    if (unpiped && value(Setting::schedule) != 0) return {};
    if (value(Setting::ulysses) == 2 ? layout.cp != 4 : value(Setting::ulysses) == 1 && whole) return {};
    if (layout.dp * layout.cp == 1 && layout.zero > 0) return {};
    if (kind == PipelineKind::interleaved && m % layout.pipe.stages != 0) return {};
    const int rows = cover_sequences / replicas * cover_seq_len / layout.cp;
    if (layout.heads % (layout.tp * layout.ulysses) != 0) return {};
    if (layout.sequence_parallel && rows % layout.tp != 0) return {};
    return layout;
}

inline std::vector<Choice> possible_choices() {
    std::vector<Choice> possible;
    Choice choice{};
    auto next = [&] {   // counts; false: it has begun again
        for (std::size_t i = 0; i < settings; i++) {
            if (++choice[i] < values_of[i]) return true;
            choice[i] = 0;
        }
        return false;
    };
    // gradients' type and targets, the last two settings, go with every choice of the others
    constexpr std::size_t others = settings - 2;
    static_assert(static_cast<std::size_t>(Setting::grad_dtype) == others);
    do {
        if (layout_of(choice)) possible.push_back(choice);
    } while (next() && choice[others] == 0);
    const std::size_t of_others = possible.size();
    for (std::size_t value = 1; value < std::size_t{values_of[others]} * values_of[others + 1]; value++) {
        for (std::size_t i = 0; i < of_others; i++) {
            Choice with = possible[i];
            with[others] = static_cast<std::uint8_t>(value % values_of[others]);
            with[others + 1] = static_cast<std::uint8_t>(value / values_of[others]);
            possible.push_back(with);
        }
    }
    return possible;
}

// Which pairs and triples of values have been seen.
class Covered {
public:
    // How many there are in this choice that have not been seen: pairs, then triples.
    std::pair<int, int> fresh(const Choice& choice) const {
        std::pair<int, int> count;
        visit(
            choice, [&](std::size_t pair) { count.first += !pairs_[pair]; },
            [&](std::size_t triple) { count.second += !triples_[triple]; });
        return count;
    }
    void see(const Choice& choice) {
        visit(
            choice, [&](std::size_t pair) { pairs_[pair] = true; },
            [&](std::size_t triple) { triples_[triple] = true; });
    }
    void see_pairs(const Choice& choice) {
        for (std::size_t i = 0; i < settings; i++) {
            for (std::size_t j = 0; j < i; j++) pairs_[pair_of(choice, i, j)] = true;
        }
    }
    std::size_t pairs() const { return pairs_.count(); }

private:
    static constexpr std::size_t kinds = settings * 5;   // pairs of a setting and its value
    static std::size_t pair_of(const Choice& choice, std::size_t i, std::size_t j) {
        return (i * 5 + choice[i]) * kinds + j * 5 + choice[j];
    }
    template <class Pair, class Triple>
    static void visit(const Choice& choice, Pair&& pair, Triple&& triple) {
        for (std::size_t i = 0; i < settings; i++) {
            for (std::size_t j = 0; j < i; j++) {
                const std::size_t both = pair_of(choice, i, j);
                pair(both);
                for (std::size_t k = 0; k < j; k++) triple(both * kinds + k * 5 + choice[k]);
            }
        }
    }
    std::bitset<kinds * kinds> pairs_;
    std::vector<bool> triples_ = std::vector<bool>(kinds * kinds * kinds);
};

enum class Cover : std::uint8_t { everything, begin };

// At least so many choices; further ones have most triples of settings that were not there. The first ones have most
// new pairs each: `begin` ends with them.
inline std::vector<Choice> covering_choices(std::size_t least, Cover cover = Cover::everything) {
    const std::vector<Choice> possible = possible_choices();
    Covered wanted, covered;
    for (const Choice& choice : possible) wanted.see_pairs(choice);
    std::vector<Choice> choices;
    auto is_enough = [&] {
        return choices.size() >= least && (cover == Cover::begin || covered.pairs() == wanted.pairs());
    };
    for (std::size_t turn = 0; !is_enough(); turn++) {
        const Choice* best = nullptr;
        std::pair<int, int> most{0, 0};
        for (const std::size_t stride : {std::size_t{211}, std::size_t{1}}) {   // some; all where they have nothing new
            for (std::size_t i = mix64(turn) % stride; i < possible.size(); i += stride) {
                const std::pair<int, int> fresh = covered.fresh(possible[i]);
                if (fresh > most) best = &possible[i], most = fresh;
            }
            if (most.first > 0 || covered.pairs() == wanted.pairs()) break;
        }
        if (best == nullptr) break;   // no triple is new
        covered.see(*best);
        choices.push_back(*best);
    }
    return choices;
}

// Numbers of ranks that divide nothing but sizes made for them, along each axis, with one thing after another beside
// it.
inline std::vector<Layout> prime_layouts() {
    constexpr PipelineKind kinds[] = {PipelineKind::zero_bubble, PipelineKind::gpipe, PipelineKind::one_f_one_b};
    std::vector<Layout> layouts;
    int turn = 0;
    for (const int n : {3, 5, 7}) {
        for (const char* axis : {"dp", "tp", "pp", "ring", "ulysses"}) {
            Layout& layout = layouts.emplace_back(Layout{1, 0, 1 + turn % 2});
            layout.heads = n, layout.seq_len = 4 * n, layout.step_sequences = 4 * n;
            layout.targets = static_cast<Targets>(turn % 4);
            layout.recompute = static_cast<Recompute>(turn % 4);
            const std::string which = axis;
            if (which == "dp") layout.dp = n;
            if (which == "tp") layout.tp = n, layout.sequence_parallel = n != 5;
            if (which == "pp") layout.pipe = {n, kinds[turn / 5]}, layout.layers = n + 1;
            if (which == "ring") layout.cp = n;
            if (which == "ulysses") layout.cp = layout.ulysses = n;
            if (layout.dp * layout.cp > 1) layout.zero = turn % 4;
            turn++;
        }
    }
    return layouts;
}

}   // namespace certificate
