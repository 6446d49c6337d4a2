// The certificate over pipelines: stages, schedules, micro-batches, data-parallel ranks and ZeRO stages.
#include "dev/test/certificate/certificate_testing.h"

#include "llmc/parallel/schedule_edits_testing.h"
#include "llmc/parallel/zero_formulas.h"

using namespace certificate;

namespace {

Layout pipeline(const Pipe& pipe, int micro_batches, int layers, bool tied = true, int dp = 1, int zero = 0) {
    Layout layout{dp, zero, micro_batches};
    layout.pipe = pipe;
    layout.layers = layers;
    layout.tied = tied;
    return layout;
}

void certify(const Layout& layout, int steps = 3) {
    Layout alone;
    alone.tied = layout.tied, alone.layers = layout.layers, alone.kind = layout.kind;
    certificate::certify(layout, Rank(alone).train(steps));
}

// Requires the same bits as one process that runs the micro-batches one after the other.
void same_as_alone(const Layout& layout, int steps = 3) {
    Layout alone = layout;
    alone.pipe = {};
    const Result expected = Rank(alone).train(steps);
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(steps);
        me.require(found.losses == expected.losses, "other losses than one process has");
        me.require(found.gradients == expected.gradients, "other gradients than one process has");
        me.require(found == expected, "other norms than one process has");
    });
}

constexpr auto naive = PipelineKind::naive, gpipe = PipelineKind::gpipe, one_f_one_b = PipelineKind::one_f_one_b,
               interleaved = PipelineKind::interleaved, zb = PipelineKind::zero_bubble;

}   // namespace

TEST_CASE("certificate: pipelines alone give one process's losses to the bit") {
    same_as_alone(pipeline({2, one_f_one_b}, 4, 3, false), 2);
    same_as_alone(pipeline({3, gpipe}, 2, 4, false), 2);
    same_as_alone(pipeline({2, interleaved, 2}, 4, 5, false), 2);
    same_as_alone(pipeline({3, zb}, 4, 4, false), 2);
    same_as_alone(pipeline({2, naive}, 1, 3, true), 2);
}

TEST_CASE("certificate: zb gives one process's losses to the bit with every recompute level, ZeRO's stages agree") {
    for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block}) {
        Layout layout = pipeline({2, zb, 1, recompute == Recompute::none ? 1 : 0}, 4, 4, false);
        layout.recompute = recompute;
        same_as_alone(layout, 2);
        // the gradients of micro-batches are reduced one by one with ZeRO-2 and 3, whatever the schedule
        Layout other = pipeline({2, one_f_one_b}, 4, 4, false, 2, 2);
        other.recompute = recompute;
        Result expected;
        if (!on_layout(other,
                       [&](Rank& rank, TestRank& me) {
                           const Result found = rank.train(2);
                           if (me.rank() == 0) expected = found;
                       }) ||
            !ranks_are_threads()) {
            continue;
        }
        for (const int zero : {2, 3}) {
            layout = pipeline({2, zb}, 4, 4, false, 2, zero);
            layout.recompute = recompute;
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                me.require(rank.train(2) == expected, "other results than 1f1b has with ZeRO-2");
                require_equal_copies(rank, me);
            });
        }
    }
}

TEST_CASE("certificate: pipelines with data parallelism and ZeRO") {
    certify(pipeline({2, zb}, 4, 3, true, 2, 0), 2);
    certify(pipeline({2, zb, 1, 1}, 4, 5, true, 2, 3), 2);
    Layout rms = pipeline({2, zb}, 4, 3, false, 2, 2);   // gradients of norms wait aside
    rms.kind = ModelKind::rms;
    certify(rms, 2);
    certify(pipeline({2, gpipe}, 2, 3, true, 2, 1), 2);
    certify(pipeline({2, one_f_one_b}, 2, 3, true, 2, 2), 2);
    certify(pipeline({2, interleaved, 2}, 2, 5, true, 2, 3), 2);
    certify(pipeline({4, one_f_one_b}, 4, 5, true), 2);
}

// Every number of stages with every schedule, each with several numbers of micro-batches, ranks and ZeRO stages, with
// and without recompute, tied or not.
TEST_CASE("certificate: pipelines, a covering set up to 8 ranks" * doctest::skip()) {
    int runs = 0;
    for (const int stages : {2, 3, 4, 8}) {
        for (const PipelineKind kind : {naive, gpipe, one_f_one_b, interleaved, zb}) {
            const int chunks = kind == interleaved ? 2 + stages % 2 : 1;
            int turn = 0;
            for (const int m : {1, 2, 3, 4, 6, 8, 12, 16}) {
                if (kind == interleaved && m % stages != 0) continue;
                turn++;
                if (kind != interleaved && (turn + static_cast<int>(kind)) % 2 == 0) continue;
                const int dp = stages <= 4 && turn % 3 != 2 ? std::min(8 / stages, 1 + turn % 4) : 1;
                if (sequences % (dp * m) != 0) continue;
                const int zero = dp == 1 ? 0 : (turn + static_cast<int>(kind)) % 4;
                Layout layout =
                    pipeline({stages, kind, chunks}, m, stages * chunks + turn % 3, turn % 2 == 0, dp, zero);
                if (turn % 4 == 3) layout.recompute = Recompute::block;
                if (turn % 4 == 0) layout.recompute = Recompute::none;
                if (turn % 2 == 1 && warms_up(kind)) layout.pipe.warmup = 1;
                certify(layout, 3);
                runs++;
            }
        }
    }
    CHECK(runs >= 60);
    MESSAGE(runs, " layouts");
}

TEST_CASE("certificate: pipelines alone, all schedules, to the bit" * doctest::skip()) {
    for (const int stages : {2, 3, 4}) {
        for (const PipelineKind kind : {naive, gpipe, one_f_one_b, interleaved, zb}) {
            const int chunks = kind == interleaved ? 2 : 1, m = kind == interleaved ? stages : 4;
            same_as_alone(pipeline({stages, kind, chunks}, m, stages * chunks + 1, false));
            if (kind != interleaved) same_as_alone(pipeline({stages, kind, 1}, 1, stages, true));
        }
    }
}

TEST_CASE("certificate: what a pipeline sends is a boundary for each micro-batch and direction, and the tied shards") {
    for (const Layout& layout : {pipeline({3, one_f_one_b}, 4, 3), pipeline({2, gpipe}, 2, 3, true, 2, 1),
                                 pipeline({2, one_f_one_b}, 2, 3, true, 2, 3)}) {
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            for (Communicator* group : rank.communicators()) group->reset_traffic();
            rank.gradients(1);
            rank.step().update(1, 1e-3f);
            rank.step().wait_for_all_gather();
            rank.step().result();
            const PipelineLinks& links = rank.groups().links;
            const int m = layout.micro_batches;
            const double boundary = 1.0 * sequences / layout.dp / m * T * 48 * sizeof(floatX);
            auto sent = [&](const Communicator* link) { return link ? link->traffic().total() : 0; };
            auto expect = [&](const Communicator* link, double bytes) {
                if (link)
                    me.require(link->traffic().point_to_point == bytes && sent(link) == bytes, link->name(), " ",
                               sent(link));
            };
            expect(links.output, m * boundary);
            expect(links.input_gradient, m * boundary);
            expect(links.input, 0);
            expect(links.output_gradient, 0);
            const ParamStorage& storage = rank.stage().storage();
            const TensorLayout* wte = storage.find(storage.table().index("wte.weight"));
            me.require((wte != nullptr) == (links.tied != nullptr), "who has the tied tensor");
            if (wte != nullptr) {
                const double shard =
                    static_cast<double>(storage.padded_elements(*wte, StateKind::optimizer)) * sizeof(float);
                me.require(sent(links.tied) == shard, "tied gradients ", sent(links.tied), " ",
                           shard);   // 2 f, f = 1 / 2
            }
            const ZeroTraffic formula = zero_traffic(storage, m, sizeof(floatX), sizeof(float));
            const Communicator* zero = rank.groups().zero;
            if (zero == nullptr) return;
            const double gathered = zero->traffic().all_gather, reduced = zero->traffic().total() - gathered;
            me.require(reduced == formula.reduce, "reduced ", reduced, " ", formula.reduce);
            const bool all = layout.zero < 3;   // stage 3: but for what stays
            me.require(all ? gathered == formula.gather : gathered <= formula.gather && gathered > formula.gather / 2,
                       "gathered ", gathered, " ", formula.gather);
        });
    }
}

TEST_CASE("certificate: the exchange of tied gradients, dropped or doubled, makes it fail") {
    for (const bool doubled : {false, true}) {
        const Layout layout = pipeline({2, one_f_one_b}, 2, 3);
        const Result expected = train_alone(1, 1);
        std::string story;
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            rank.groups().links.tied->set_tap([&](const CommCall& call, const Communicator::Make& make) {
                for (int i = 0; i < (doubled ? 2 : 0); i++) make(call);
            });
            const Result found = rank.train(1);
            rank.groups().links.tied->set_tap(nullptr);
            if (me.rank() == 0) story = difference(found, expected, ParamTable(model()));
        });
        if (!ran) return;
        story = from_first_process(story);
        CHECK(story.find("gradient of wte.weight") != std::string::npos);
        CHECK(story.find("first gradient norm") != std::string::npos);
    }
}

TEST_CASE("certificate: a loss that every stage counts makes it fail") {
    const Layout layout = pipeline({2, one_f_one_b}, 2, 3);
    const Result expected = train_alone(1, 1);
    std::string story;
    const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
        rank.groups().all->set_tap([&](const CommCall& call, const Communicator::Make& make) {
            const double loss = static_cast<double>(expected.losses[0]);   // which the first stage has not made
            if (call.type == ncclFloat64 && me.world.at().pp == 0) {
                CUDA_CHECK(cudaMemcpyAsync(call.out, &loss, sizeof loss, cudaMemcpyHostToDevice, call.stream));
            }
            make(call);
        });
        const Result found = rank.train(1);
        rank.groups().all->set_tap(nullptr);
        if (me.rank() == 0) story = difference(found, expected, ParamTable(model()));
    });
    if (!ran) return;
    story = from_first_process(story);
    CHECK(story.starts_with("loss of step 1 is off by"));
    CHECK(story.find("gradient") == std::string::npos);
}

TEST_CASE("pipeline: gradients of weights before those of inputs are a bug that names the micro-batch") {
    const Layout layout = pipeline({2, zb}, 2, 3);
    OwnedStream stream;
    Arena arena;
    Stage stage(model(layout), Rank::options(layout, {1, 0, 0, 0}), arena, stream.get());
    initialize_parameters(stage.parameters(), seed, stage.stream());
    const BoundaryTensor& input = stage.micro_batches().input(0, 1);
    const std::size_t bytes = sizeof(floatX) * static_cast<std::size_t>(stage.micro_batches().boundary_elements());
    CUDA_CHECK(cudaMemsetAsync(input.data, 0, bytes, stream.get()));
    stage.forward(0, 1, Batch{}, Purpose::training);
    std::string found;
    try {
        stage.backward_weight(0, 1);
    } catch (const Error& error) {
        found = error.message();
    }
    CHECK(found.find("backward_weight of chunk 0 of micro-batch 1 before its backward_input") != std::string::npos);
    CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

// The last stage of zb has made the gradients of inputs of a micro-batch, and those of weights wait, when the next one
// arrives: whoever has its activations by then spoils what they read.
TEST_CASE("certificate: an activation slot that is given away before the gradients of weights makes it fail") {
    for (const bool early : {false, true}) {
        const Layout layout = pipeline({2, zb}, 4, 3);
        const Result expected = train_alone(1, 1);
        std::string story;
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            Communicator* const input = rank.groups().links.input;
            if (input != nullptr && early) {
                input->set_tap([&, arrived = 0](const CommCall& call, const Communicator::Make& make) mutable {
                    make(call);
                    if (++arrived != 3) return;
                    const MicroBatches::Output slot = rank.stage().micro_batches().output(0, 1);
                    const std::size_t bytes =
                        sizeof(floatX) * static_cast<std::size_t>(rank.stage().micro_batches().boundary_elements());
                    CUDA_CHECK(cudaMemsetAsync(const_cast<floatX*>(slot.data), 0, bytes, rank.stage().stream()));
                });
            }
            const Result found = rank.train(1);
            if (input != nullptr) input->set_tap(nullptr);
            if (me.rank() == 0) story = difference(found, expected, ParamTable(model()));
        });
        if (!ran) return;
        story = from_first_process(story);
        CHECK((story.find("gradient of h.2.mlp.c_proj.weight") != std::string::npos) == early);
        CHECK(story.empty() == !early);
    }
}

namespace {

// So many edits of a list that the validator finds sound, carried out: the same gradients to the bit.
void run_sound_edits(const Pipe& pipe, int micro_batches, int count) {
    Layout layout = pipeline(pipe, micro_batches, pipe.stages * pipe.chunks, false);
    const std::vector<PipelineSchedule> lists = pipeline_schedules(layout.pipeline());
    ListEdits edits(7);
    while (static_cast<int>(layout.more_schedules.size()) < count) {
        std::vector<PipelineSchedule> edited = edits.edited(lists, micro_batches);
        if (edited == lists || !fault_in(edited, pipe.chunks, micro_batches).empty()) continue;
        layout.more_schedules.push_back(std::move(edited));
    }
    Layout alone = layout;
    alone.pipe = {};
    Rank one(alone);
    one.gradients(1);
    std::vector<std::vector<float>> expected;
    const int params = one.stage().table().size();
    for (int param = 0; param < params; param++) expected.push_back(one.gradient(param));
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        for (std::size_t i = 0; i < layout.more_schedules.size(); i++) {
            rank.follow(layout.more_schedules[i]);
            rank.gradients(1);
            for (int param = 0; param < params; param++) {
                if (count > 20 && (param + static_cast<int>(i)) % 8 != 0) continue;
                me.require(rank.gradient(param) == expected[static_cast<std::size_t>(param)], "edit ", i, ", ",
                           rank.stage().table()[param].name, " has another gradient");
            }
        }
    });
}

}   // namespace

TEST_CASE("certificate: edited lists without a fault give the same gradients") {
    run_sound_edits({2, zb}, 4, 6);
    run_sound_edits({2, interleaved, 2}, 4, 4);
}

TEST_CASE("certificate: 500 edited lists without a fault give the same gradients" * doctest::skip()) {
    for (const int stages : {2, 3}) {
        run_sound_edits({stages, zb}, 6, 100);
        run_sound_edits({stages, one_f_one_b}, 6, 100);
        run_sound_edits({stages, interleaved, 2}, 6, 50);
        run_sound_edits({stages, gpipe}, 6, 50);
    }
}

TEST_CASE("certificate: a pipeline stage's arena has as many sets of activations as are live") {
    auto activations = [](PipelineKind kind, int stage, Recompute recompute) {
        Layout layout = pipeline({4, kind}, 8, 8);
        layout.recompute = recompute;
        OwnedStream stream;
        Arena arena;
        const Stage made(model(layout), Rank::options(layout, {stage, 0, 0, 0}), arena, stream.get());
        double sets = 0, one = 0;
        for (const Allocation& allocation : arena.allocations()) {
            if (allocation.name.starts_with("activations/h.")) one += static_cast<double>(allocation.bytes);
            if (allocation.name.starts_with("activations/h.") || allocation.name.starts_with("activations/set ")) {
                sets += static_cast<double>(allocation.bytes);
            }
        }
        const int live = live_peak(pipeline_schedules(layout.pipeline())[static_cast<std::size_t>(stage)]).to_weight;
        CHECK(sets == live * one);
        const int layers = static_cast<int>(made.chunk(0).layers.size());
        CHECK(one == static_cast<double>(activation_set_bytes(made.sizes(), layers, recompute)));
        return sets;
    };
    double most_zb = 0, most_1f1b = 0;
    for (int stage = 0; stage < 4; stage++) {
        most_1f1b = std::max(most_1f1b, activations(one_f_one_b, stage, Recompute::none));
        most_zb = std::max(most_zb, activations(zb, stage, Recompute::none));
        activations(gpipe, stage, Recompute::gelu);
        activations(zb, stage, Recompute::block);
    }
    CHECK(most_zb <= 1.15 * most_1f1b);
}

// Only the stage with the head has logits and losses; only the first and the last stage read tokens.
TEST_CASE(
    "certificate: a pipeline stage has logits and losses where its head is, and batches as many as it reads at once") {
    for (int stage = 0; stage < 4; stage++) {
        const Layout layout = pipeline({4, one_f_one_b}, 8, 8);
        OwnedStream stream;
        Arena arena;
        Stage made(model(layout), Rank::options(layout, {stage, 0, 0, 0}), arena, stream.get());
        const Pipeline executor(made, arena);
        int of_head = 0, batches = 0;
        for (const Allocation& allocation : arena.allocations()) {
            for (const char* name : {"logits", "lnf", "lnf_mean", "lnf_rstd", "losses"}) {
                of_head += allocation.name == text("workspace/", name);
            }
            batches += allocation.name == "batch/tokens";
        }
        CHECK(of_head == (stage == 3 ? 5 : 0));
        CHECK((made.losses() != nullptr) == (stage == 3));
        // from forward to backward, in backward; and one that is read ahead
        CHECK(batches == (stage == 0 ? 4 + 1 : stage == 3 ? 1 + 1 : 0));
    }
}

TEST_CASE("certificate: stages exchange no gradient where the classifier is a tensor of its own") {
    for (const bool tied : {true, false}) {
        on_layout(pipeline({2, one_f_one_b}, 1, 2, tied), [&](Rank& rank, TestRank& me) {
            me.require((rank.groups().links.tied != nullptr) == tied, "a communicator of the tied tensor");
        });
    }
}
