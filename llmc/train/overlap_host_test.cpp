// How much of data parallelism's traffic is hidden behind computation, judged on the stand-in's virtual clock
// (llmc/host/record.h): with the same order of work, so much would be hidden on a machine of the given speeds.
#include "llmc/host/record.h"
#include "llmc/parallel/on_ranks.h"
#include "llmc/train/optimizer.h"

namespace {

constexpr int layers = 12, ranks = 2, B = 4, T = 32;

// A machine on which the traffic of a layer takes about half as long as its computation: the model allows hiding it.
// (Small layers on a slow machine; only the ratio matters.)
host::CostModel machine() {
    host::CostModel costs;
    costs.seconds_per_flop = 1e-12;
    costs.seconds_per_byte = 1e-12;
    costs.seconds_per_exchanged_byte = 1.0 / 20e9;
    costs.seconds_per_exchange = 1e-7;
    return costs;
}

// What someone adds without a thought: the host waits, for a value to print, say, whenever gradients are complete.
class StrayWait : public UnitWatcher {
public:
    explicit StrayWait(UnitWatcher& inner) : inner_(inner) {}
    void pass_begins(const std::vector<std::vector<int>>& uses) override { inner_.pass_begins(uses); }
    void use_begins() override { inner_.use_begins(); }
    void use_ends() override { inner_.use_ends(); }
    void gradients_begin(int slot) override { inner_.gradients_begin(slot); }
    void gradients_ready(int slot) override {
        inner_.gradients_ready(slot);
        CUDA_CHECK(cudaDeviceSynchronize());
    }

private:
    UnitWatcher& inner_;
};

// Two steps of two micro-batches and the forward pass that follows, as every rank asks for them.
std::vector<host::Recording> record_steps(int zero, bool stray_wait) {
    std::vector<host::Recording> recordings(ranks);
    on_ranks(ranks, [&](TestRank& me) {
        GptOptions options;
        options.B = B;
        options.T = T;
        options.place = {me.world.mesh(), me.world.at(), zero};
        Gpt model(custom_model_config(layers, 2, 64, T, 97), options, me.arena, me.stream);
        model.initialize(1);
        auto optimizer = Optimizer::make(model, {}, me.arena, me.world.group(MeshAxis::zero));
        StrayWait careless(*model.watcher());
        if (stray_wait) model.set_watcher(&careless);
        BatchBuffer batch(me.arena, B, T, 97);
        batch.upload(std::vector<int>(B * T, 5), std::vector<int>(B * T, 6), me.stream);
        CUDA_CHECK(cudaDeviceSynchronize());
        const float share = 1.0f / (2 * B * T * ranks);
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] {
            for (int step = 1; step <= 2; step++) {
                for (int i = 0; i < 2; i++) optimizer->forward_backward(batch.batch(), share, i == 0, i == 1);
                optimizer->finish_gradients();
                optimizer->update(step, 1e-3f);
            }
            model.forward_loss(batch.batch());
        });
        CUDA_CHECK(cudaDeviceSynchronize());
    });
    return recordings;
}

// A transfer of a layer: of its 12 tensors together, or of its whole buffer.
bool is_of_layer(const std::string& name) {
    static const std::int64_t room = [] {
        const ParamTable table(custom_model_config(layers, 2, 64, T, 97));
        return ModelLayout(table, ShardPlace{{1, ranks, 1, 1}, {}, 0}, StageUnits{{0, layers}, true, true})
            .units()[1]
            .room;
    }();
    return std::count(name.begin(), name.end(), '+') == 11 || name.starts_with(text("all-reduce of ", room, " "));
}

struct Hidden {
    double busy = 0, hidden = 0;   // seconds of layers' transfers, and of these the part with computation beside
    int transfers = 0;
    double share() const { return hidden / busy; }
};

Hidden hidden_traffic(const host::Timeline& timeline, int compute_stream) {
    Hidden result;
    for (const host::Span& transfer : timeline.spans) {
        if (transfer.rank != 0 || transfer.stream == compute_stream || !is_of_layer(transfer.name)) continue;
        result.transfers++;
        result.busy += transfer.end - transfer.active;
        for (const host::Span& work : timeline.spans) {
            if (work.rank != 0 || work.stream != compute_stream) continue;
            result.hidden += std::max(0.0, std::min(work.end, transfer.end) - std::max(work.begin, transfer.active));
        }
    }
    return result;
}

Hidden hidden_traffic(int zero, bool stray_wait) {
    const std::vector<host::Recording> recordings = record_steps(zero, stray_wait);
    const auto first = std::find_if(recordings[0].begin(), recordings[0].end(), [](const host::RecordedStep& step) {
        return step.name.starts_with("encoder_forward");
    });
    REQUIRE(first != recordings[0].end());
    return hidden_traffic(host::replay(recordings, machine()), first->stream);
}

}   // namespace

TEST_CASE("overlap: at least 80% of the layers' traffic is hidden, unless the host waits in backward") {
    const int transfers[] = {2 * layers, 4 * layers, 6 * layers, 2 * 2 * 3 * layers + layers};
    for (int zero : {0, 1, 2, 3}) {
        INFO("zero ", zero);
        const Hidden sound = hidden_traffic(zero, false), careless = hidden_traffic(zero, true);
        MESSAGE("zero ", zero, ": ", 100 * sound.share(), "% of the layers' traffic hidden; with a stray wait ",
                100 * careless.share(), "%");
        CHECK(sound.transfers == transfers[zero]);
        CHECK(sound.share() >= 0.8);
        CHECK(careless.transfers == transfers[zero]);
        CHECK(careless.share() < 0.8);
    }
}
