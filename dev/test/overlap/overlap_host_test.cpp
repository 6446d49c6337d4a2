// How much of data parallelism's traffic is hidden behind computation, judged on the stand-in's virtual clock
// (llmc/cuda_on_cpu/clock/record.h): with the same order of work, so much would be hidden on a machine of the given
// speeds, of whose multiprocessors communication takes some. What is recorded is the training loop itself, so that what
// it asks for between passes counts.
#include "dev/test/overlap/overlap_testing.h"
#include "llmc/data/token_file.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/telling_files_testing.h"

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
    return costs.charged();
}

// Simulates a stray wait of the host, for a value to print, say, whenever gradients are complete.
class StrayWait : public UnitHooks {
public:
    explicit StrayWait(UnitHooks& inner) : inner_(inner) {}
    void pass_begins(const std::vector<std::vector<int>>& uses) override { inner_.pass_begins(uses); }
    void use_begins() override { inner_.use_begins(); }
    void use_ends() override { inner_.use_ends(); }
    bool communicates(Direction direction) const override { return inner_.communicates(direction); }
    void gradients_begin(int slot) override { inner_.gradients_begin(slot); }
    void gradients_ready(int slot, bool at_once) override {
        inner_.gradients_ready(slot, at_once);
        CUDA_CHECK(cudaDeviceSynchronize());
    }

private:
    UnitHooks& inner_;
};

enum class Flaw {
    none,
    wait_in_backward,        // the host waits whenever a unit's gradients are complete
    question_after_update,   // a small all-reduce, and a wait for it, after each step: no flaw, gathers come later
    gathers_at_once,         // all of ZeRO's gathers, and a wait for them, after each step
};

constexpr int steps = 3;

// The training loop over `count` steps of two micro-batches, as every rank asks for it. `algorithms`, where given:
// those of the first rank's matmuls.
std::vector<host::Recording> record_steps(int zero, Flaw flaw, std::vector<MatmulAlgorithm>* algorithms = nullptr,
                                          int staleness = 0, int count = steps) {
    std::vector<host::Recording> recordings(ranks);
    on_ranks(ranks, [&](TestRank& me) {
        TemporaryFolder folder;
        write_token_file(real_files(), folder / "tokens.bin", TokenFormat::gpt2, std::vector<std::uint32_t>(2000, 5));
        Options asked;
        asked.layers = layers, asked.heads = 2, asked.channels = 64, asked.seq_len = T, asked.micro_batch = B;
        asked.total_batch = 2 * B * T * ranks, asked.max_steps = count, asked.val_every = 0, asked.sample_every = 0;
        fit_to_ranks(asked, ranks);
        StageOptions options;
        options.B = B;
        options.T = T;
        options.comm_sms = 16;
        options.place = {me.world.mesh(), me.world.at(), zero};
        Stage model(custom_model_config(layers, 2, 64, T, 97), options, me.arena, me.stream);
        initialize_parameters(model.parameters(), 1, model.stream());
        Communicator* group = me.world.group(zero_axes);
        const TrainingGroups groups{group, &me.all, group};
        asked.staleness = staleness;
        Step step(model, asked, me.arena, groups);
        StrayWait careless(*model.hooks());
        if (flaw == Flaw::wait_in_backward) model.set_hooks(&careless);
        const DeviceBuffer<std::int32_t> question = me.on_device(std::vector<std::int32_t>{0});
        TellingFiles files(real_files(), [&] {
            if (flaw == Flaw::gathers_at_once) step.wait_for_all_gather();
            if (flaw != Flaw::question_after_update) return;
            group->all_reduce(question.data(), 1, ReduceOp::max, me.stream);
            question.download(me.stream);
        });
        const TokenSet tokens(real_files(), "--train-data", folder / "tokens.bin", T, 97);
        const StopSignals signals;
        const Log log(false);
        Metrics metrics(files, folder / "out");
        Agreement agreement(me.arena, groups.everyone(), &me.world, signals, me.stream);
        Trainer trainer({asked, log, me.arena, step, tokens, nullptr, files, metrics, agreement, nullptr, nullptr, "",
                         count, 0.0, groups, &me.world});
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] { trainer.run(); });
        CUDA_CHECK(cudaDeviceSynchronize());
        if (algorithms != nullptr && me.rank() == 0) *algorithms = model.matmul().algorithms();
    });
    return recordings;
}

// A transfer of a layer: of its 12 tensors together, or of its whole buffer.
bool is_of_layer(const std::string& name) {
    static const std::int64_t padded = [] {
        const ParamTable table(custom_model_config(layers, 2, 64, T, 97));
        return ParamStorage(table, RankLayout{{1, ranks, 1, 1}, {}, 0}, StageUnits{{{0, layers}}, true, true})
            .units()[1]
            .padded;
    }();
    return std::count(name.begin(), name.end(), '+') == 11 || name.starts_with(text("all-reduce of ", padded, " "));
}

struct Hidden {
    double busy = 0, hidden = 0;   // seconds of layers' transfers, and of these the part with computation beside
    int transfers = 0;
    double share() const { return hidden / busy; }
};

// Measures the layers' first `counted` transfers: after the last update of a run there is no work to hide them.
Hidden hidden_traffic(const host::Timeline& timeline, int compute_stream, int counted) {
    Hidden result;
    for (const host::Span& transfer : timeline.spans) {
        if (transfer.rank != 0 || transfer.stream == compute_stream || !is_of_layer(transfer.name)) continue;
        if (++result.transfers > counted) continue;
        result.busy += transfer.end - transfer.active;
        for (const host::Span& work : timeline.spans) {
            if (work.rank != 0 || work.stream != compute_stream) continue;
            result.hidden += std::max(0.0, std::min(work.end, transfer.end) - std::max(work.active, transfer.active));
        }
    }
    return result;
}

// How much longer a step takes than where links are free and communication takes no multiprocessors.
double longer(const std::vector<host::Recording>& recordings, const host::CostModel& costs) {
    host::CostModel free_links = uncharged(machine());
    free_links.seconds_per_exchanged_byte = free_links.seconds_per_exchange = 0;
    return host::replay(recordings, costs).seconds / host::replay(recordings, free_links).seconds - 1;
}

Hidden hidden_traffic(int zero, Flaw flaw, int counted) {
    const std::vector<host::Recording> recordings = record_steps(zero, flaw);
    const auto first = std::find_if(recordings[0].begin(), recordings[0].end(), [](const host::RecordedStep& step) {
        return step.name.starts_with("embedding_forward");
    });
    REQUIRE(first != recordings[0].end());
    if (flaw == Flaw::none) {
        const double all = longer(recordings, machine()), of_links = longer(recordings, uncharged(machine()));
        MESSAGE("zero ", zero, ": a step is ", 100 * all, "% longer than without communication, ",
                100 * (all - of_links), "% of it for the 16 of 132 multiprocessors");
    }
    return hidden_traffic(host::replay(recordings, machine()), first->stream, counted);
}

}   // namespace

TEST_CASE("overlap: at least 80% of the layers' traffic is hidden, unless the host waits where it must not") {
    const int transfers[] = {layers, 2 * layers, 3 * layers, 6 * layers};   // per step
    for (int zero : {0, 1, 2, 3}) {
        INFO("zero ", zero);
        const bool gathers_after_update = zero == 1 || zero == 2;
        const int all = steps * transfers[zero], counted = all - (gathers_after_update ? layers : 0);
        auto share = [&](Flaw flaw) {
            const Hidden found = hidden_traffic(zero, flaw, counted);
            CHECK(found.transfers == all);
            return found.share();
        };
        const double sound = share(Flaw::none), careless = share(Flaw::wait_in_backward),
                     asking = share(Flaw::question_after_update), at_once = share(Flaw::gathers_at_once);
        MESSAGE("zero ", zero, ": ", 100 * sound, "% of the layers' traffic hidden; with a wait in backward ",
                100 * careless, "%, with a question after the update ", 100 * asking,
                "%, with a wait there for all gathers ", 100 * at_once, "%");
        CHECK(sound >= 0.8);
        CHECK(careless < 0.8);
        CHECK(asking >= 0.8);
        if (gathers_after_update) CHECK(at_once < sound - 0.1);   // the gathers are a part of the traffic
    }
}

TEST_CASE("overlap: matmuls leave multiprocessors to collectives that run beside them, and only to those") {
    for (int zero : {0, 1, 2, 3}) {
        INFO("zero ", zero);
        std::vector<MatmulAlgorithm> algorithms;
        record_steps(zero, Flaw::none, &algorithms);
        auto any = [&](const char* use, bool leaves) {
            return std::ranges::any_of(algorithms, [&](const MatmulAlgorithm& one) {
                return one.problem.starts_with(use) && one.problem.ends_with(" leaving 16") == leaves;
            });
        };
        CHECK(any("forward", true) == (zero >= 2));   // beside gathers of parameters; ZeRO-2: the head's logits
        CHECK(any("forward", false) == (zero != 3));
        CHECK(any("weight + bias gradient", true));   // beside reductions: of the last micro-batch, or of each
        CHECK(any("weight + bias gradient", false) == (zero < 2));   // the head's gradients leave before a layer's
    }
}

namespace {

// Recordings of runs of three and of six steps, whose difference is steps of a run that is under way.
struct ShortAndLong {
    std::vector<host::Recording> three, six;
    ShortAndLong(int zero, int staleness)
        : three(record_steps(zero, Flaw::none, nullptr, staleness, 3)),
          six(record_steps(zero, Flaw::none, nullptr, staleness, 6)) {}
    // Seconds of a step where traffic takes `slower` times as long as on machine().
    double step(double slower) const {
        host::CostModel costs = machine();
        costs.seconds_per_exchanged_byte *= slower, costs.seconds_per_exchange *= slower;
        return (host::replay(six, costs).seconds - host::replay(three, costs).seconds) / 3;
    }
};

}   // namespace

TEST_CASE("overlap: gradients that are applied a step late hide behind all of the next step") {
    for (int zero : {0, 1}) {
        const ShortAndLong in_time(zero, 0), late(zero, 1);
        const double none = in_time.step(0);
        for (double slower : {1.0, 5.0}) {
            const double waits = in_time.step(slower) / none - 1, hides = late.step(slower) / none - 1;
            MESSAGE("zero ", zero, ", links ", slower, " times as slow: a step is ", 100 * waits,
                    "% longer than with free links, with --staleness 1 ", 100 * hides, "%");
            CHECK(hides < waits);
            if (zero == 0 && slower == 5) CHECK(hides < waits / 3);   // under ZeRO 1 parameters wait all the same
        }
    }
}
