// The certificate of heads that several tp ranks hold, and of norms of rows that they share.
#include "dev/test/certificate/composed_layouts_testing.h"
#include "llmc/parallel/zero.h"

using namespace certificate;

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
