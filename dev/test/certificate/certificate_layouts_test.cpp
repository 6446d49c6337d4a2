// The certificate over every axis of parallelism together: a covering set of layouts (layout_cover_testing.h), whose
// table `make layouts` prints; numbers of ranks that share nothing evenly; and mistakes in traffic between axes.
#include <atomic>

#include "dev/test/certificate/composed_layouts_testing.h"
#include "dev/test/certificate/damage_testing.h"
#include "llmc/parallel/zero_formulas.h"

using namespace certificate;

namespace {

Communicator* ring_of(Rank& rank, TestRank& me) {
    std::vector<int> members;
    for (const int cp : rank.stage().context().ring_members()) {
        MeshCoordinates at = me.world.at();
        at.cp = cp;
        members.push_back(rank_of(me.world.mesh(), at));
    }
    return me.world.group("cp ring", members);
}

}   // namespace

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
        std::vector<bool> pairs(settings * 8 * settings * 8);
        for (const Choice& choice : choices) {
            for (std::size_t i = 0; i < settings; i++) {
                for (std::size_t j = 0; j < i; j++) pairs[((i * 8 + choice[i]) * settings + j) * 8 + choice[j]] = true;
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
            rank.step().wait_for_all_gather();
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
