// Documents that share a sequence and do not see each other: the same as each alone, under every axis of parallelism
// (certificate_testing.h), and what goes wrong when they are masked wrongly.
#include "dev/test/certificate/certificate_testing.h"

using namespace certificate;

namespace {

Layout with_documents(int cp = 1, int ulysses = 1, ModelKind kind = ModelKind::gpt2) {
    Layout layout;
    layout.cp = cp, layout.ulysses = ulysses;
    layout.seq_len = 48, layout.heads = 4, layout.kv_heads = kind == ModelKind::gpt2 ? 0 : 2;
    layout.kind = kind, layout.targets = Targets::documents;
    return layout;
}

// Trains a layout's model and batches in one process.
Result alone(const Layout& layout, int steps) {
    Layout one;
    one.seq_len = layout.seq_len, one.heads = layout.heads, one.kv_heads = layout.kv_heads, one.kind = layout.kind;
    one.layers = layout.layers, one.targets = layout.targets, one.step_sequences = layout.step_sequences;
    one.window = layout.window;
    return Rank(one).train(steps);
}

// Returns the certificate's findings on rank 0; none if too few processes were started.
std::optional<std::string> verdict(const Layout& layout) {
    const Result expected = alone(layout, 2);
    std::string story;
    const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(2);
        CUDA_CHECK(cudaDeviceSynchronize());
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
    });
    if (!ran) return std::nullopt;
    return from_first_process(story);
}

}   // namespace

TEST_CASE("certificate: documents, by rings, Ulysses, both, tensor and pipeline parallelism") {
    for (const ModelKind kind : {ModelKind::gpt2, ModelKind::llama}) {
        std::vector<Layout> layouts;
        for (const auto& [cp, ulysses] :
             std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 4}, {4, 2}}) {
            layouts.push_back(with_documents(cp, ulysses, kind));
            if (cp == 4) layouts.back().recompute = Recompute::block;
        }
        layouts[1].dp = 2, layouts[1].zero = 2, layouts[1].micro_batches = 2;
        Layout tensor = with_documents(1, 1, kind);
        tensor.tp = 2, tensor.sequence_parallel = true, tensor.tp_chunks = 2;
        Layout both = with_documents(2, 1, kind);
        both.tp = 2, both.recompute = Recompute::gelu_norm;
        layouts.push_back(tensor);
        layouts.push_back(both);
        for (const PipelineKind order : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble}) {
            Layout pipe = with_documents(order == PipelineKind::zero_bubble ? 2 : 1, 1, kind);
            pipe.pipe = {3, order}, pipe.micro_batches = 4;   // the stage between reads where documents begin
            pipe.recompute = Recompute::block;
            if (pipe.mesh().size() <= 8) layouts.push_back(pipe);
        }
        if (kind == ModelKind::llama)
            std::erase_if(layouts, [](const Layout& of) { return of.mesh().size() % 4 != 2; });
        const Result expected = alone(with_documents(1, 1, kind), 3);
        for (const Layout& layout : layouts) certify(layout, expected);
    }
}

TEST_CASE("certificate: sliding windows, with documents and without, by rings, Ulysses, tensors and pipelines") {
    for (const Targets targets : {Targets::all, Targets::documents}) {
        std::vector<Layout> layouts{with_documents(2, 1), with_documents(2, 2), with_documents(4, 2),
                                    with_documents(1, 1)};
        layouts[0].recompute = Recompute::block, layouts[0].tp = 2;
        layouts[3].pipe = {3, PipelineKind::one_f_one_b}, layouts[3].micro_batches = 4;
        for (Layout& layout : layouts) layout.window = 7, layout.targets = targets;
        const Result expected = alone(layouts[0], 2);
        for (const Layout& layout : layouts) certify(layout, expected);
    }
    Layout longer = with_documents(2);
    longer.targets = Targets::all, longer.window = 6;
    const Result expected = alone(longer, 2);
    longer.window = 7;
    std::string story;
    const bool ran = on_layout(longer, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(2);
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model(longer)));
    });
    if (ran) CHECK(from_first_process(story) != "");
}

TEST_CASE("windows: one of all tokens or more is the same to the bit as none, one less is another model") {
    Layout layout = with_documents();
    layout.targets = Targets::all;
    const Result none = alone(layout, 2);
    for (const int window : {layout.seq_len, layout.seq_len + 1}) {
        layout.window = window;
        CHECK(alone(layout, 2) == none);
    }
    layout.window = layout.seq_len - 1;
    CHECK(alone(layout, 2).losses != none.losses);
}

// One sequence at a time, so that nobody sees the keys of some steps: also of the first one, which begins gradients.
TEST_CASE("certificate: documents so short that steps of a ring are passed over") {
    std::vector<Layout> layouts{with_documents(4), with_documents(4), with_documents(2)};
    layouts[1].recompute = Recompute::block;
    for (Layout& layout : layouts) layout.step_sequences = layout.micro_batches = 8;
    const Result expected = alone(layouts[0], 3);
    for (const Layout& layout : layouts) certify(layout, expected);
}

TEST_CASE("documents: one in each sequence, masked, is the same to the bit as none masked") {
    for (const ModelKind kind : {ModelKind::gpt2, ModelKind::llama}) {
        Layout masked = with_documents(1, 1, kind), plain = masked;
        masked.targets = Targets::one_document, plain.targets = Targets::all;
        Rank masking(masked), other(plain);
        other.stage().attention().use(masking.stage().attention().kind());   // a library may lack the mask
        const Result with = masking.train(3), without = other.train(3);
        CHECK(with.losses == without.losses);
        CHECK(with.norms == without.norms);
        const ParamTable table(model(plain));
        for (int param = 0; param < table.size(); param++) {
            const auto i = static_cast<std::size_t>(param);
            CHECK_MESSAGE(with.gradients[i] == without.gradients[i], table[param].name, " of ", plain.name());
        }
    }
}

namespace {

// A document by itself: its tokens and targets.
struct Document {
    std::vector<std::int32_t> tokens, targets;
};

// Documents of these lengths, one after the other, as their sequences of T tokens read them: one that crosses the end
// of a sequence goes on in the next as if it began there.
std::vector<Document> pieces_of(const std::vector<int>& lengths, int T, std::vector<std::int32_t>& tokens,
                                std::vector<std::int32_t>& targets, std::vector<std::int32_t>& starts) {
    std::vector<bool> borders;
    for (const int length : lengths) {
        for (int t = 0; t < length; t++) borders.push_back(t == 0);
    }
    const auto count = borders.size() / static_cast<std::size_t>(T) * static_cast<std::size_t>(T);
    for (std::size_t i = 0; i <= count; i++) tokens.push_back(static_cast<std::int32_t>(mix64(i) % 97));
    std::vector<Document> pieces;
    for (std::size_t i = 0; i < count; i++) {
        const auto t = static_cast<std::int32_t>(i % static_cast<std::size_t>(T));
        if (t == 0 || borders[i]) pieces.emplace_back();
        const auto begun = static_cast<std::int32_t>(pieces.back().tokens.size());
        starts.push_back(t - begun);
        targets.push_back(tokens[i + 1]);
        pieces.back().tokens.push_back(tokens[i]);
        pieces.back().targets.push_back(tokens[i + 1]);
    }
    tokens.resize(count);
    return pieces;
}

struct OneStep {
    double loss;
    std::vector<std::vector<float>> gradients;
};

OneStep step_of(const Layout& layout, const Pipeline::Read& read, float share) {
    Rank rank(layout);
    rank.step().gradients(one_stage_schedule(1), read, share);
    OneStep found{static_cast<double>(rank.step().result().loss), {}};
    for (int param = 0; param < rank.stage().table().size(); param++) found.gradients.push_back(rank.gradient(param));
    return found;
}

}   // namespace

TEST_CASE("documents: packed, they give the losses and gradients of the same documents alone") {
    const int seq_len = 24;
    for (const ModelKind kind : {ModelKind::gpt2, ModelKind::llama, ModelKind::olmo2}) {
        std::vector<std::int32_t> tokens, targets, starts;
        const std::vector<Document> pieces =
            pieces_of({1, 1, seq_len - 2, seq_len, seq_len + 1, 5, 1, 9, 3 * seq_len, 2, 7, seq_len}, seq_len, tokens,
                      targets, starts);
        Layout packed = with_documents(1, 1, kind);
        packed.window = kind == ModelKind::llama ? 5 : 0;
        packed.seq_len = seq_len, packed.step_sequences = static_cast<int>(tokens.size()) / seq_len;
        const float share = 1.0f / static_cast<float>(tokens.size());
        const OneStep together = step_of(
            packed,
            [&](int, const MicroBatch& to) {
                std::ranges::copy(tokens, to.tokens.begin());
                std::ranges::copy(targets, to.targets.begin());
                std::ranges::copy(starts, to.starts.begin());
            },
            share);
        Layout apart = packed;
        apart.targets = Targets::all, apart.step_sequences = static_cast<int>(pieces.size());
        const OneStep each = step_of(
            apart,
            [&](int, const MicroBatch& to) {
                std::ranges::fill(to.tokens, 0);
                std::ranges::fill(to.targets, -1);
                for (std::size_t i = 0; i < pieces.size(); i++) {
                    const auto at = static_cast<std::ptrdiff_t>(i) * seq_len;
                    std::ranges::copy(pieces[i].tokens, to.tokens.begin() + at);
                    std::ranges::copy(pieces[i].targets, to.targets.begin() + at);
                }
            },
            share);
        CHECK(std::abs(together.loss / each.loss - 1) < tolerance.first_loss);
        const ParamTable table(model(packed));
        for (int param = 0; param < table.size(); param++) {
            const auto &a = together.gradients[static_cast<std::size_t>(param)],
                       &b = each.gradients[static_cast<std::size_t>(param)];
            CHECK_MESSAGE(distance(a, b) < tolerance.gradients * length(b), table[param].name);
        }
    }
}

TEST_CASE("certificate: documents whose beginnings are a rank's own positions make it fail") {
    for (const auto& [cp, ulysses] : std::vector<std::pair<int, int>>{{2, 1}, {4, 2}}) {
        Layout layout = with_documents(cp, ulysses);
        layout.damage_starts = [](std::span<std::int32_t> starts, const std::vector<int>& positions) {
            for (auto& start : starts) {   // the number of own tokens before it
                start = static_cast<std::int32_t>(std::ranges::lower_bound(positions, start) - positions.begin());
            }
        };
        if (const auto story = verdict(layout)) CHECK(*story != "");
    }
}

TEST_CASE("certificate: documents that begin one token too late or too early make it fail") {
    Layout late = with_documents(2), early = late;
    late.damage_starts = [](std::span<std::int32_t> starts, const std::vector<int>& positions) {
        for (std::size_t t = 0; t < starts.size(); t++) {
            if (starts[t] < positions[t]) starts[t]++;
        }
    };
    early.damage_starts = [](std::span<std::int32_t> starts, const std::vector<int>&) {
        for (auto& start : starts) start = std::max(start - 1, 0);
    };
    if (const auto story = verdict(late)) CHECK(*story != "");
    if (const auto story = verdict(early)) CHECK(*story != "");
}
