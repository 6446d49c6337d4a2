// How much of tensor parallelism's traffic is hidden behind matmuls, judged on the stand-in's virtual clock
// (llmc/cuda_on_cpu/clock/record.h) at the sizes of a large model: 12,288 channels over 8 ranks, links of 370 GB/s, 650
// TFLOP/s in matmuls, bf16, 16 of 132 multiprocessors for communication. What runs is a small model on the same ranks:
// times of matmuls grow with rows x channels^2, of traffic with rows x channels, so costs are scaled to its channels.
// Kernels that only move memory cost nothing.
#include <optional>

#include "dev/test/overlap/overlap_testing.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr int layers = 12, ranks = 8, C = 128, B = 8, T = 16;

host::CostModel machine() {
    host::CostModel costs;
    const double scale = 12288.0 / C;
    costs.seconds_per_flop = scale * scale / 650e12;
    costs.seconds_per_exchanged_byte = scale / 370e9 * 2 / sizeof(floatX);
    return costs.charged();
}

bool is_weight_gradient(const host::RecordedStep& step) {
    return step.name.find("weight gradient") != std::string::npos ||
           step.name.find("weight + bias gradient") != std::string::npos;
}

// Makes the gradients of weights that run behind a collective run after it.
void use_no_queue(host::Recording& recording) {
    std::optional<std::size_t> last;   // the last operation of the compute stream, if it is a gradient of weights
    int compute = -1;
    for (std::size_t i = 0; i < recording.size(); i++) {
        const host::RecordedStep& step = recording[i];
        if (is_weight_gradient(step)) compute = step.stream;
        if (step.stream != compute) continue;
        if (step.kind == host::RecordedStep::Kind::operation)
            last = is_weight_gradient(step) ? std::optional(i) : std::nullopt;
        if (step.kind != host::RecordedStep::Kind::event_awaited || !last) continue;
        const auto from = recording.begin();
        std::rotate(from + static_cast<std::ptrdiff_t>(*last), from + static_cast<std::ptrdiff_t>(i),
                    from + static_cast<std::ptrdiff_t>(i) + 1);
        ++*last;
    }
}

// Makes the host wait for every gather once it has been started.
void add_stray_waits(host::Recording& recording) {
    host::Recording result;
    for (const host::RecordedStep& step : recording) {
        result.push_back(step);
        if (!step.name.starts_with("all-gather")) continue;
        host::RecordedStep& wait = result.emplace_back();
        wait.kind = host::RecordedStep::Kind::host_waited_for_stream;
        wait.stream = step.stream;
    }
    recording = std::move(result);
}

// Forward and backward of a step with one micro-batch, as every rank asks for it.
std::vector<host::Recording> record_step(int chunks, bool sequence_parallel) {
    std::vector<host::Recording> recordings(ranks);
    on_ranks(MeshShape{1, 1, 1, ranks}, [&](TestRank& me) {
        TrainingGroups groups = training_groups(me.world);
        StageOptions options;
        options.B = B;
        options.T = T;
        options.recompute = Recompute::none;
        options.sequence_parallel = sequence_parallel;
        options.place = {me.world.mesh(), me.world.at(), 0};
        options.tp_chunks = chunks;
        options.groups.tp = groups.tensor;
        options.matmul.workspace_bytes = 1 << 16;
        Stage model(custom_model_config(layers, ranks, C, T, 97), options, me.arena, me.stream);
        initialize_parameters(model.parameters(), 1, model.stream());
        Step step(model, {}, me.arena, groups);
        recordings[static_cast<std::size_t>(me.rank())] = recorded_gradients(model, step);
    });
    return recordings;
}

struct Part {
    double busy = 0, hidden = 0;   // seconds of traffic, and of these the ones with computation beside
    int transfers = 0;
    double hidden_share() const { return hidden / busy; }
    void add(const host::Span& transfer, const std::vector<host::Span>& spans, int compute) {
        transfers++;
        busy += transfer.end - transfer.active;
        for (const host::Span& work : spans) {
            if (work.stream != compute) continue;
            hidden += std::max(0.0, std::min(work.end, transfer.end) - std::max(work.active, transfer.active));
        }
    }
};
struct Found {
    Part forward, backward;
    double seconds = 0;   // until backward's last operation ends, before norms and numbers travel
};

Found on_the_clock(const std::vector<host::Recording>& recordings, const host::CostModel& costs, int chunks = 1) {
    const host::Timeline timeline = host::replay(recordings, costs);
    std::vector<host::Span> spans;   // on rank 0, forward and backward
    for (const host::Span& span : timeline.spans) {
        if (span.rank == 0) spans.push_back(span);
    }
    auto starts = [](const char* name) {
        return [name](const host::Span& span) { return span.name.starts_with(name); };
    };
    const auto compute = std::find_if(spans.begin(), spans.end(), starts("embedding_forward"));
    const auto loss = std::find_if(spans.begin(), spans.end(), starts("sharded_classifier_begin"));
    const auto end = std::find_if(spans.begin(), spans.end(), starts("pack_kernel"));
    REQUIRE(compute != spans.end());
    REQUIRE(loss != spans.end());
    REQUIRE(end != spans.end());
    Found found;
    std::vector<const host::Span*> forward;
    for (auto span = spans.begin(); span != end; ++span) {
        found.seconds = std::max(found.seconds, span->end);
        if (span->stream == compute->stream || span->end <= span->active) continue;
        if (span < loss) {
            forward.push_back(&*span);
        } else {
            found.backward.add(*span, spans, compute->stream);
        }
    }
    // without the embedding's, which has no matmul, and the head's, for which it waits as a whole
    for (auto i = static_cast<std::size_t>(chunks); i + 1 < forward.size(); i++) {
        found.forward.add(*forward[i], spans, compute->stream);
    }
    return found;
}

}   // namespace

TEST_CASE("overlap: tensor parallelism's backward is hidden, and all but one chunk of forward") {
    const host::CostModel costs = machine();
    host::CostModel free_links = uncharged(costs);
    free_links.seconds_per_exchanged_byte = 0;
    for (int chunks : {1, 4}) {
        const std::vector<host::Recording> recordings = record_step(chunks, true);
        const Found found = on_the_clock(recordings, costs, chunks);
        const double unhindered = on_the_clock(recordings, free_links).seconds;
        const double longer = found.seconds / unhindered - 1;
        const double of_links = on_the_clock(recordings, uncharged(costs)).seconds / unhindered - 1;
        MESSAGE(chunks, " chunks: backward ", 100 * found.backward.hidden_share(), "% hidden, forward ",
                100 * (1 - found.forward.hidden_share()), "% exposed; the step ", 100 * longer,
                "% longer than without communication, ", 100 * (longer - of_links), "% of it for the multiprocessors; ",
                found.forward.transfers, " + ", found.backward.transfers, " transfers");
        CHECK(found.forward.transfers == 4 * layers * chunks);
        CHECK(found.backward.transfers == 6 * layers + 2);   // the head's and the embedding's count
        CHECK(found.backward.hidden_share() >= 0.95);
        // attention's projection takes as long as its traffic, but for less than a thousandth
        CHECK(1 - found.forward.hidden_share() <= 1.01 / chunks);
        if (chunks == 4) CHECK(longer <= 0.07);
    }
}

TEST_CASE("overlap: the clock sees gradients of weights that do not wait for collectives, and a host that does") {
    const std::vector<host::Recording> sound = record_step(1, true);
    auto hidden_share = [&](void (*spoil)(host::Recording&)) {
        std::vector<host::Recording> recordings = sound;
        for (host::Recording& recording : recordings) spoil(recording);
        return on_the_clock(recordings, machine()).backward.hidden_share();
    };
    const double without_queue = hidden_share(use_no_queue), with_waits = hidden_share(add_stray_waits);
    MESSAGE("backward hidden without the queue ", 100 * without_queue, "%, where the host waits ", 100 * with_waits,
            "%");
    CHECK(without_queue <= 0.67);
    CHECK(with_waits < 0.95);
}

TEST_CASE("overlap: what gradients of weights read is gathered before a matmul that hides it, and used behind a sum") {
    // backward of the head and the last layer: g gathers rows, s adds up parts; d makes a gradient of inputs, w one of
    // weights; | waits for what has travelled
    const host::Recording recording = record_step(1, true)[0];
    auto step = std::find_if(recording.begin(), recording.end(),
                             [](const auto& found) { return found.name.starts_with("sharded_classifier_finish"); });
    REQUIRE(step != recording.end());
    const int compute = step->stream;
    std::string story;
    for (; step != recording.end() && story.size() < 20; ++step) {
        if (step->name.starts_with("all-gather")) story += "g";
        if (step->name.starts_with("reduce-scatter")) story += "s";
        if (step->name.find("input gradient") != std::string::npos) story += "d";
        if (is_weight_gradient(*step)) story += "w";
        if (step->kind == host::RecordedStep::Kind::event_awaited && step->stream == compute) story += "|";
    }
    const std::string head = "dws|", mlp = "g|dgdsw|", attention = "g|w|dgds";   // fc's hides attention's first
    CHECK(story == head + mlp + attention);
}
