// The certificate over every axis of parallelism together: a covering set of layouts (layout_cover_testing.h), whose
// table `make layouts` prints; numbers of ranks that share nothing evenly; and mistakes in traffic between axes.
#include <atomic>
#include <iostream>
#include <map>

#include "llmc/base/log.h"
#include "llmc/parallel/zero.h"
#include "llmc/run/certificate/damage_testing.h"
#include "llmc/run/certificate/layout_cover_testing.h"

using namespace certificate;

namespace {

constexpr bool is_fp32 = sizeof(floatX) == 4;

// One process's runs of the models of layouts.
class Alone {
public:
    explicit Alone(int steps) : steps_(steps) {}
    const Result& result(const Layout& layout) {
        const auto key = std::tuple(layout.heads, layout.layers, layout.tied, layout.kind, layout.kv_heads,
                                    layout.targets, layout.seq_len, layout.sequences());
        const auto [at, is_new] = results_.try_emplace(key);
        if (is_new) {
            Layout alone;
            alone.heads = layout.heads, alone.layers = layout.layers, alone.tied = layout.tied;
            alone.kind = layout.kind, alone.kv_heads = layout.kv_heads;
            alone.targets = layout.targets, alone.seq_len = layout.seq_len;
            alone.step_sequences = layout.sequences();
            at->second = Rank(alone).train(steps_);
        }
        return at->second;
    }

private:
    int steps_;
    std::map<std::tuple<int, int, bool, ModelKind, int, Targets, int, int>, Result> results_;
};

std::string row_name(const Layout& layout) {
    constexpr const char* recompute[] = {"none", "gelu", "gelu+norm", "block"};
    return text(layout.name(), layout.tp_chunks > 1 ? text(", ", layout.tp_chunks, " tp chunks") : "", ", recompute ",
                recompute[static_cast<int>(layout.recompute)]);
}

// The certificate of a layout, and a row of the table.
void certify(Layout layout, Alone& alone, int steps, bool prints = false) {
    if (is_fp32) layout.grad_dtype = DType::fp32;   // never narrower than parameters
    const Result& expected = alone.result(layout);
    const ParamTable table(model(layout));
    std::string row;
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(steps);
        require_same_everywhere(found, me);
        require_equal_copies(rank, me);
        const std::string story = difference(found, expected, table);
        if (me.rank() == 0) {
            const Tolerance far = distances(found, expected);
            row =
                formatted("%2d ranks  %8.1e %8.1e %8.1e %8.1e  %s%s", me.ranks(), far.first_loss, far.losses, far.norm,
                          far.gradients, row_name(layout).c_str(), story.empty() ? "" : "  OUT OF TOLERANCE");
        }
        me.require(story.empty(), story);
    });
    if (prints && !row.empty()) std::cout << row << std::endl;
}

void print_head() {
    std::cout << formatted("%-8s  %8s %8s %8s %8s  %s\n%8s  %8.0e %8.0e %8.0e %8.0e", is_fp32 ? "fp32" : "bf16",
                           "loss 1", "losses", "norm 1", "gradient", "layout", "allowed", tolerance.first_loss,
                           tolerance.losses, tolerance.norm, tolerance.gradients)
              << std::endl;
}

Layout composed(int tp, const Pipe& pipe, int cp, int ulysses, int dp, int zero, int micro_batches,
                Recompute recompute = Recompute::gelu, bool sequence_parallel = true) {
    Layout layout{dp, zero, micro_batches};
    layout.tp = tp, layout.sequence_parallel = sequence_parallel && tp > 1;
    layout.pipe = pipe, layout.cp = cp, layout.ulysses = ulysses;
    layout.recompute = recompute;
    layout.heads = 12, layout.layers = std::max(3, pipe.stages * pipe.chunks);
    layout.seq_len = cover_seq_len, layout.step_sequences = cover_sequences;
    return layout;
}

Communicator* ring_of(Rank& rank, TestRank& me) {
    std::vector<int> members;
    for (const int cp : rank.stage().context().ring_members()) {
        MeshCoordinates at = me.world.at();
        at.cp = cp;
        members.push_back(rank_of(me.world.mesh(), at));
    }
    return me.world.group("cp ring", members);
}

constexpr auto gpipe = PipelineKind::gpipe, one_f_one_b = PipelineKind::one_f_one_b,
               interleaved = PipelineKind::interleaved, zb = PipelineKind::zero_bubble;

}   // namespace

// Llama's or OLMo2's kind, with so many heads of queries and of keys and values.
Layout grouped(int heads, int kv_heads, Layout layout, ModelKind kind = ModelKind::llama) {
    layout.kind = kind, layout.heads = heads, layout.kv_heads = kv_heads;
    return layout;
}

// Adds to a sum on the device the squares of the gradients of heads that other ranks hold too.
void add_squares_of_copies(Rank& rank, double* sum, cudaStream_t stream) {
    const ParamStorage& storage = rank.stage().storage();
    const auto gradients = rank.stage().gradients().kept().as<float>();
    double squares = 0, own = 0;
    for (const TensorLayout& place : storage.tensors()) {
        const TensorSpec& tensor = storage.table()[place.param].tensor;
        for (const OwnedRange& range : owned_ranges(tensor, storage.place(), StateKind::optimizer, Heads::copied)) {
            std::vector<float> values(static_cast<std::size_t>(range.length));
            CUDA_CHECK(cudaMemcpyAsync(values.data(), gradients.owned(place.param) + range.local_begin,
                                       values.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
            CUDA_CHECK(cudaStreamSynchronize(stream));
            for (const float g : values) squares += static_cast<double>(g) * static_cast<double>(g);
        }
    }
    CUDA_CHECK(cudaMemcpyAsync(&own, sum, sizeof own, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    own += squares;
    CUDA_CHECK(cudaMemcpyAsync(sum, &own, sizeof own, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

// tp, and tp times Ulysses' groups, divide the heads of keys and values or are a multiple of them.
TEST_CASE("certificate: heads of keys and values that several ranks hold") {
    Alone alone(2);
    certify(grouped(6, 2, composed(2, {}, 1, 1, 2, 1, 2)), alone, 2);
    certify(grouped(6, 2, composed(6, {}, 1, 1, 1, 0, 2, Recompute::block)), alone, 2);
    certify(grouped(4, 1, composed(2, {2, zb}, 1, 1, 2, 3, 2, Recompute::none, false)), alone, 2);
    certify(grouped(4, 1, composed(4, {}, 1, 1, 2, 2, 2)), alone, 2);
    certify(grouped(4, 1, composed(2, {}, 2, 2, 2, 1, 2)), alone, 2);   // and Ulysses copies what tp has copied
    certify(grouped(6, 2, composed(1, {}, 6, 6, 1, 3, 1)), alone, 2);
    certify(grouped(4, 1, composed(1, {}, 4, 2, 2, 2, 2)), alone, 2);   // copies travel the ring
}

// Columns read the residual stream, and norms read the output of rows.
TEST_CASE("certificate: norms after sublayers, and of rows of queries and keys that ranks share") {
    Alone alone(2);
    auto olmo2 = [](const Layout& layout) { return grouped(4, 1, layout, ModelKind::olmo2); };
    certify(olmo2(composed(1, {}, 1, 1, 2, 3, 2, Recompute::gelu_norm)), alone, 2);
    certify(olmo2(composed(2, {}, 1, 1, 2, 1, 2, Recompute::block)), alone, 2);
    certify(olmo2(composed(2, {}, 2, 1, 1, 2, 2, Recompute::none, false)), alone, 2);
    certify(olmo2(composed(2, {2, zb}, 1, 1, 2, 3, 2, Recompute::none)), alone, 2);
    certify(olmo2(composed(2, {2, zb}, 1, 1, 1, 0, 2, Recompute::block, false)), alone, 2);
    certify(olmo2(composed(1, {2, interleaved, 2}, 2, 2, 1, 2, 2, Recompute::gelu)), alone, 2);
}

// The tp ranks add sums of rows for each micro-batch: of every layer, of the loss, and of every layer in backward.
TEST_CASE("certificate: sums of rows of queries and keys that are not taken over ranks make it fail, either way") {
    const Layout layout = grouped(4, 1, composed(2, {}, 1, 1, 2, 1, 2), ModelKind::olmo2);
    Alone alone(1);
    const Result& expected = alone.result(layout);
    auto verdict = [&](bool forward, bool backward, bool copies) -> std::optional<std::string> {
        std::string story;
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            const int L = layout.layers, turn = 2 * L + 1;
            int calls = 0;
            rank.groups().tensor->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                const auto sums = 2 * static_cast<std::size_t>(rank.stage().sizes().rows());
                if (call.operation != std::string("all-reduce") || call.count != sums) return make(call);
                const int at = calls++ % turn;
                if (at == L || (at < L ? forward : backward)) make(call);
            });
            rank.groups().same_heads->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                if (copies) make(call);
            });
            const Result found = rank.train(1);
            CUDA_CHECK(cudaDeviceSynchronize());
            for (Communicator* group : {rank.groups().tensor, rank.groups().same_heads}) group->set_tap(nullptr);
            me.require(calls == turn * layout.micro_batches, calls, " sums of rows");
            if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
        });
        if (!ran) return std::nullopt;
        return from_first_process(story);
    };
    const auto sound = verdict(true, true, true);
    if (!sound) return;
    CHECK(*sound == "");
    const char* const shows = sizeof(floatX) == sizeof(float) ? "loss of step 1" : "gradient of";   // in bf16 no loss
    CHECK(verdict(false, true, true)->find(shows) != std::string::npos);
    const std::string backward = *verdict(true, false, true);
    CHECK(backward.find("loss") == std::string::npos);
    CHECK(backward.find("gradient of h.0.attn.c_attn.weight") != std::string::npos);
    CHECK(verdict(true, true, false)->find("gradient of h.0.attn.k_norm.weight") != std::string::npos);
}

TEST_CASE("certificate: gradients of heads that ranks share, not summed or counted twice in the norm, make it fail") {
    const Layout layout = grouped(4, 1, composed(2, {}, 1, 1, 2, 1, 2));
    Alone alone(1);
    const Result& expected = alone.result(layout);
    auto verdict = [&](bool sums, bool counts_twice) -> std::optional<std::string> {
        std::string story;
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            rank.groups().same_heads->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                if (sums) make(call);
            });
            rank.groups().all->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                if (counts_twice && me.world.at().tp > 0 && call.type == ncclFloat64) {
                    add_squares_of_copies(rank, static_cast<double*>(call.out) + step_sums - 1, call.stream);
                }
                make(call);
            });
            const Result found = rank.train(1);
            CUDA_CHECK(cudaDeviceSynchronize());
            for (Communicator* group : {rank.groups().same_heads, rank.groups().all}) group->set_tap(nullptr);
            if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
        });
        if (!ran) return std::nullopt;
        return from_first_process(story);
    };
    const auto sound = verdict(true, false);
    if (!sound) return;
    CHECK(*sound == "");
    CHECK(verdict(false, false)->find("gradient of h.0.attn.c_attn.weight") != std::string::npos);
    const std::string twice = *verdict(true, true);
    CHECK(twice.starts_with("first gradient norm"));
    CHECK(std::count(twice.begin(), twice.end(), '\n') == 1);   // nothing else
}

namespace {

// Each axis beside tp ranks that share heads: alone, and in pairs.
std::vector<Layout> grouped_layouts() {
    struct Model {
        int heads, kv_heads, tp;
    };
    struct Sequences {
        int cp, ulysses;
    };
    const std::vector<Pipe> pipes{{},     {2, PipelineKind::naive}, {2, gpipe}, {2, one_f_one_b}, {2, interleaved, 2},
                                  {2, zb}};
    const std::vector<Sequences> sequences{{1, 1}, {2, 1}, {2, 2}, {4, 2}};
    std::vector<Layout> layouts;
    int turn = 0;
    for (const Model& model : {Model{6, 2, 2}, Model{6, 2, 6}, Model{4, 1, 2}, Model{4, 1, 4}}) {
        for (const int dp : {1, 2}) {
            for (const int zero : {0, 1, 2, 3}) {
                for (const Pipe& pipe : pipes) {
                    for (const auto& [cp, ulysses] : sequences) {
                        const int axes = (dp > 1) + (pipe.stages > 1) + (cp > 1);
                        if (axes > 2 || (dp * cp == 1 && zero > 0) || (dp == 1 && cp > 1 && zero != turn % 4)) continue;
                        if (model.heads % (model.tp * ulysses) != 0) continue;
                        layouts.push_back(grouped(model.heads, model.kv_heads,
                                                  composed(model.tp, pipe, cp, ulysses, dp, zero, 2,
                                                           static_cast<Recompute>(turn % 4), turn % 3 != 0)));
                        turn++;
                    }
                }
            }
        }
    }
    return layouts;
}

}   // namespace

TEST_CASE("layouts: heads of keys and values that several ranks hold, in every layout" * doctest::skip()) {
    constexpr int steps = 3;
    Alone alone(steps);
    print_head();
    for (const Layout& layout : grouped_layouts()) certify(layout, alone, steps, true);
}

// zb keeps what delayed gradients of weights read in places that sequence parallelism makes smaller.
TEST_CASE("certificate: tensor parallelism in pipelines") {
    Alone alone(2);
    certify(composed(2, {2, zb}, 1, 1, 1, 0, 2, Recompute::none), alone, 2);
    certify(composed(2, {2, zb}, 1, 1, 2, 3, 2, Recompute::block), alone, 2);
    certify(composed(2, {2, interleaved, 2}, 1, 1, 2, 3, 2, Recompute::block), alone, 2);
    certify(composed(3, {2, one_f_one_b}, 1, 1, 1, 0, 4, Recompute::gelu_norm, false), alone, 2);
}

TEST_CASE("certificate: shared sequences in pipelines") {
    Alone alone(2);
    certify(composed(1, {2, one_f_one_b}, 2, 1, 2, 2, 2), alone, 2);
    certify(composed(1, {2, zb}, 2, 2, 1, 1, 4, Recompute::none), alone, 2);
    certify(composed(1, {2, zb}, 2, 2, 1, 2, 4, Recompute::gelu_norm), alone, 2);
    certify(composed(1, {2, gpipe}, 4, 2, 1, 3, 2), alone, 2);
}

TEST_CASE("certificate: tensor parallelism over shared sequences") {
    Alone alone(2);
    certify(composed(2, {}, 2, 1, 2, 2, 2), alone, 2);
    certify(composed(2, {}, 4, 2, 1, 3, 1, Recompute::block), alone, 2);
    certify(composed(2, {}, 3, 3, 1, 1, 2, Recompute::none, false), alone, 2);
}

TEST_CASE("certificate: tensor and context parallelism in pipelines") {
    Alone alone(2);
    certify(composed(2, {2, one_f_one_b}, 2, 1, 1, 2, 2), alone, 2);
    certify(composed(2, {2, zb}, 2, 2, 1, 1, 2, Recompute::none), alone, 2);
    certify(composed(2, {2, zb}, 2, 1, 1, 3, 2, Recompute::block), alone, 2);
}

TEST_CASE("certificate: longer warm-ups with tensor parallelism, shared sequences and both") {
    Alone alone(2);
    certify(composed(2, {2, one_f_one_b, 1, 1}, 1, 1, 2, 2, 4), alone, 2);
    certify(composed(2, {2, zb, 1, 1}, 1, 1, 1, 0, 4, Recompute::gelu_norm), alone, 2);
    certify(composed(1, {2, zb, 1, 2}, 2, 1, 2, 3, 4, Recompute::none), alone, 2);
    certify(composed(1, {2, one_f_one_b, 1, 2}, 4, 2, 1, 1, 4, Recompute::block), alone, 2);
    certify(composed(2, {2, one_f_one_b, 1, 1}, 2, 1, 1, 1, 4), alone, 2);
}

TEST_CASE("covering set: it is of at least 100 layouts, and every pair of settings that can stand together is in it") {
    auto pairs_of = [](const std::vector<Choice>& choices) {
        std::set<std::array<std::size_t, 4>> pairs;
        for (const Choice& choice : choices) {
            for (std::size_t i = 0; i < settings; i++) {
                for (std::size_t j = 0; j < i; j++) pairs.insert({i, choice[i], j, choice[j]});
            }
        }
        return pairs;
    };
    const std::vector<Choice> choices = covering_choices(100);
    CHECK(choices.size() >= 100);
    CHECK(std::set<Choice>(choices.begin(), choices.end()).size() == choices.size());
    CHECK(pairs_of(choices) == pairs_of(possible_choices()));
    std::set<int> ranks;
    int all_three = 0;
    for (const Layout& layout : prime_layouts()) ranks.insert(layout.mesh().size());
    for (const Choice& choice : choices) {
        const Layout layout = layout_of(choice).value();
        ranks.insert(layout.mesh().size());
        all_three += layout.tp > 1 && layout.cp > 1 && layout.pipe.stages > 1;
    }
    MESSAGE(choices.size(), " layouts, ", all_three, " with tensor, pipeline and context parallelism");
    for (const int count : {3, 5, 6, 7, 8}) CHECK(ranks.contains(count));
    CHECK(all_three >= 3);
}

TEST_CASE("covering set: a sample") {
    Alone alone(2);
    print_head();
    for (const Choice& choice : covering_choices(4, Cover::begin)) certify(layout_of(choice).value(), alone, 2, true);
}

TEST_CASE("layouts: every pair of settings, with a table" * doctest::skip()) {
    constexpr int steps = 5;
    Alone alone(steps);
    print_head();
    for (const Choice& choice : covering_choices(100)) certify(layout_of(choice).value(), alone, steps, true);
    for (const Layout& layout : prime_layouts()) certify(layout, alone, steps, true);
}

// Losses that are scaled by what a rank or a micro-batch has itself are wrong here.
TEST_CASE("certificate: micro-batches with other numbers of targets and ranks with none") {
    Alone alone(2);
    Layout ragged = composed(2, {2, one_f_one_b}, 1, 1, 2, 2, 2);
    ragged.targets = Targets::ragged;
    certify(ragged, alone, 2);
    Layout few = composed(2, {}, 2, 2, 2, 1, 1);   // a dp rank has none, and of the other one's cp ranks one
    few.targets = Targets::few;
    certify(few, alone, 2);
}

TEST_CASE("tensor parallelism: where gradients of weights are delayed, those of outputs are gathered once more") {
    const Layout layout = composed(2, {2, zb}, 1, 1, 1, 0, 2, Recompute::none);
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        std::map<std::string, int> calls;
        Communicator& group = *rank.groups().tensor;
        group.set_tap([&](const CommCall& call, const Communicator::Make& make) {
            calls[call.operation]++;
            make(call);
        });
        rank.gradients(1);
        CUDA_CHECK(cudaDeviceSynchronize());
        group.set_tap(nullptr);
        const Chunk chunk = rank.stage().chunk(0);
        const auto layers = static_cast<int>(chunk.layers.size());
        const int ends = (chunk.embedding ? 1 : 0) + (chunk.head ? 1 : 0);
        me.require(calls["all-gather"] == 2 * (layers * (2 + 4 + 2) + ends), "all-gathers ", calls["all-gather"]);
        me.require(calls["reduce-scatter"] == 2 * (layers * (2 + 2) + ends), "scatters ", calls["reduce-scatter"]);
    });
}

TEST_CASE("layouts of several axes: each axis sends the bytes of its formula, over what the others leave a rank") {
    for (const int zero : {1, 2}) {
        const Layout layout = composed(2, {2, one_f_one_b}, 2, 1, 1, zero, 2, Recompute::block);
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            Communicator& ring = *ring_of(rank, me);
            for (Communicator* group : rank.communicators()) group->reset_traffic();
            ring.reset_traffic();
            rank.gradients(1);
            rank.step().update(1, 1e-3f);
            rank.step().result();
            auto expect = [&](const std::string& what, double sent, double bytes) {
                me.require(std::abs(sent - bytes) < 1, what, ": ", sent, " bytes, not ", bytes);
            };
            const Stage& stage = rank.stage();
            const Chunk& chunk = stage.chunk(0);
            const double m = 2, b = sizeof(floatX), R = stage.sizes().rows(), C = stage.sizes().C, f = 1.0 / 2;
            const double layers = static_cast<double>(chunk.layers.size()), ends = chunk.embedding + chunk.head;

            const Traffic& tensor = rank.groups().tensor->traffic();
            expect("tp", tensor.all_gather + tensor.reduce_scatter,
                   m * (layers * (4 + 6 + 3) + ends * 2) * f * R * C * b);
            const double norms = (4 * layers + (chunk.head ? 2 : 0)) * 64 * sizeof(float);   // halves of 96
            expect("loss and norms", tensor.all_reduce, 2 * f * ((chunk.head ? 3 * R * 4 * m : 0) + norms));

            const double s = R * C / 2;   // keys of a tp rank's heads; forward is made twice
            expect("ring", ring.traffic().total(), m * layers * (2 * 2 * s * b + 2 * s * b + 2 * s * sizeof(float)));

            const PipelineLinks& links = rank.groups().links;
            const Communicator* const sends = chunk.embedding ? links.output : links.input_gradient;
            expect("boundary", sends->traffic().total(), m * R / 2 * C * b);

            const ParamStorage& storage = stage.storage();
            const TensorLayout& wte = *storage.find(storage.table().index("wte.weight"));
            expect("tied", links.tied->traffic().total(),
                   static_cast<double>(storage.padded_elements(wte, StateKind::optimizer)) * sizeof(float));
            const ZeroTraffic formula = zero_traffic(storage, 2, b, sizeof(float));
            const Communicator& shares = *rank.groups().zero;
            expect("gradients", shares.traffic().reduce_scatter, formula.reduce);
            expect("parameters", shares.traffic().all_gather, formula.gather);
        });
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The same bits

namespace {

// Returns a layout's result of two steps; nothing if ranks are processes, which cannot see another layout's run.
std::optional<Result> result_of(const Layout& layout) {
    if (!ranks_are_threads()) return std::nullopt;
    Result result;
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(2);
        if (me.rank() == 0) result = found;
    });
    return result;
}

void same_bits(const Layout& one, const Layout& other) {
    const std::optional<Result> a = result_of(one), b = result_of(other);
    INFO(row_name(one));
    INFO(row_name(other));
    if (a) CHECK(a->losses == b->losses);
    if (a) CHECK(a->gradients == b->gradients);
}

}   // namespace

TEST_CASE("layouts of several axes: ZeRO 0 and 1, and ZeRO 2 and 3, give the same bits") {
    same_bits(composed(2, {2, one_f_one_b}, 1, 1, 2, 0, 2), composed(2, {2, one_f_one_b}, 1, 1, 2, 1, 2));
    same_bits(composed(2, {2, gpipe}, 2, 1, 1, 2, 2), composed(2, {2, gpipe}, 2, 1, 1, 3, 2));
}

TEST_CASE("layouts of several axes: block recompute gives the same bits") {
    same_bits(composed(2, {2, one_f_one_b}, 2, 1, 1, 2, 2, Recompute::none),
              composed(2, {2, one_f_one_b}, 2, 1, 1, 2, 2, Recompute::block));
}

TEST_CASE("layouts of several axes: any pipeline of an untied model gives the bits of one stage") {
    Layout stage = composed(2, {}, 2, 1, 1, 1, 2, Recompute::none);
    stage.tied = false, stage.layers = 4;
    for (const Pipe& pipe : {Pipe{2, zb}, Pipe{2, interleaved, 2}}) {
        Layout stages = stage;
        stages.pipe = pipe;
        same_bits(stage, stages);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Mistakes

namespace {

enum class Damage { none, dropped, scaled };

// A kind of traffic between ranks of one axis.
struct Site {
    const char* name;
    std::function<Communicator*(Rank&, TestRank&)> group;   // null: this rank has no end of it
    std::function<bool(const CommCall& call, int rows)> chosen;
    bool scales = true;   // a doubled value must be found too
};

// Returns the certificate's findings on rank 0 for a run whose traffic of one kind is damaged on all ranks alike;
// nothing if it was skipped (on_ranks_testing.h).
std::optional<std::string> damaged(const Layout& layout, Damage damage, const Site& site, const Result& expected) {
    std::string story;
    std::atomic<int> hits = 0;
    const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
        Communicator* const group = site.group(rank, me);
        auto tap = [&](const CommCall& call, const Communicator::Make& make) {
            if (damage == Damage::none || !site.chosen(call, rank.stage().sizes().rows())) return make(call);
            hits++;
            if (damage == Damage::dropped) return;
            if (call.in != nullptr) double_values(const_cast<void*>(call.in), call.type, 0, call.count, call.stream);
            make(call);
        };
        if (group != nullptr) group->set_tap(tap);
        const Result found = rank.train(static_cast<int>(expected.losses.size()));
        CUDA_CHECK(cudaDeviceSynchronize());
        if (group != nullptr) group->set_tap(nullptr);
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model(layout)));
    });
    if (!ran) return std::nullopt;
    CHECK((damage == Damage::none || hits > 0 || !ranks_are_threads()));
    return from_first_process(story);
}

std::vector<Site> sites() {
    auto any = [](const CommCall&, int) { return true; };
    auto is = [](const char* operation) {
        return [operation](const CommCall& call, int) { return std::string(call.operation) == operation; };
    };
    auto sum_of = [is](int numbers_a_row) {
        return [=](const CommCall& call, int rows) {
            return is("all-reduce")(call, rows) && call.count == static_cast<std::size_t>(numbers_a_row * rows);
        };
    };
    auto zero = [](Rank& rank, TestRank&) { return rank.groups().zero; };
    auto tensor = [](Rank& rank, TestRank&) { return rank.groups().tensor; };
    return {{"gradients over dp x cp", zero, is("reduce-scatter")},
            {"parameters over dp x cp", zero, is("all-gather")},
            {"rows that enter columns", tensor, is("all-gather")},
            {"sums of rows", tensor, is("reduce-scatter")},
            {"maxima of the loss", tensor, sum_of(1), false},
            {"sums of the loss", tensor, sum_of(2)},
            {"gradients of norms", tensor,
             [=](const CommCall& call, int rows) {
                 return is("all-reduce")(call, rows) && !sum_of(1)(call, rows) && !sum_of(2)(call, rows);
             }},
            {"boundaries",
             [](Rank& rank, TestRank& me) {
                 const PipelineLinks& links = rank.groups().links;
                 return me.world.at().pp == 0 ? links.output : links.input;
             },
             any},
            {"gradients of boundaries",
             [](Rank& rank, TestRank& me) {
                 const PipelineLinks& links = rank.groups().links;
                 return me.world.at().pp == 0 ? links.output_gradient : links.input_gradient;
             },
             any},
            {"tied gradients", [](Rank& rank, TestRank&) { return rank.groups().links.tied; }, any},
            {"keys and values", ring_of, any},
            {"numbers of the step", [](Rank& rank, TestRank&) { return rank.groups().all; },
             [](const CommCall& call, int) { return call.type == ncclFloat64; }, false}};
}

}   // namespace

TEST_CASE("certificate: every kind of traffic of all axes together, dropped or scaled, makes it fail") {
    Layout layout = composed(2, {2, one_f_one_b}, 2, 1, 1, 1, 2);
    layout.heads = 4, layout.layers = 2, layout.seq_len = 16, layout.step_sequences = 8;
    Alone alone(2);   // parameters that do not travel show in the second step
    const Result& expected = alone.result(layout);
    const std::vector<Site> all = sites();
    const std::optional<std::string> sound = damaged(layout, Damage::none, all[0], expected);
    if (!sound) return;
    CHECK(*sound == "");
    for (const Site& site : all) {
        for (const Damage damage : {Damage::dropped, Damage::scaled}) {
            if (damage == Damage::scaled && !site.scales) continue;
            INFO(site.name, damage == Damage::dropped ? " dropped" : " scaled");
            CHECK(damaged(layout, damage, site, expected) != "");
        }
    }
}
