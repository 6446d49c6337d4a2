// How much of tensor parallelism's traffic is hidden behind matmuls, judged on the stand-in's virtual clock
// (llmc/cuda_on_cpu/clock/record.h) at the sizes of a large model: 12,288 channels over 8 ranks, links of 370 GB/s, 650
// TFLOP/s in matmuls, bf16, 16 of 132 multiprocessors for communication. What runs is a small model on the same ranks:
// times of matmuls grow with rows x channels^2, of traffic with rows x channels, so costs are scaled to its channels.
// Kernels that only move memory cost nothing.
#include "llmc/parallel/tensor_parallel.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/overlap/overlap_testing.h"

namespace {

constexpr int layers = 12, ranks = 8, C = 128, B = 8, T = 16;

host::CostModel machine() {
    host::CostModel costs;
    const double scale = 12288.0 / C;
    costs.seconds_per_flop = scale * scale / 650e12;
    costs.seconds_per_exchanged_byte = scale / 370e9 * 2 / sizeof(floatX);
    return costs.charged();
}

enum class Flaw {
    none,
    no_queue,     // gradients of weights do not run behind collectives
    stray_wait,   // the host waits for the device whenever a gather has been started
};

class Flawed : public TensorParallel {
public:
    Flawed(Flaw flaw, Communicator& group, int chunks, Arena& arena)
        : TensorParallel(group, chunks, arena), flaw_(flaw) {}
    void will_gather_to_tp(const floatX* in, cudaStream_t stream) override {
        TensorParallel::will_gather_to_tp(in, stream);
        if (flaw_ == Flaw::stray_wait) CUDA_CHECK(cudaDeviceSynchronize());
    }
    floatX* gather_to_tp_backward(floatX* din, WeightGradientQueue& queue, cudaStream_t stream) override {
        if (flaw_ != Flaw::no_queue) return TensorParallel::gather_to_tp_backward(din, queue, stream);
        WeightGradientQueue none;
        floatX* const result = TensorParallel::gather_to_tp_backward(din, none, stream);
        queue.drain();
        return result;
    }

private:
    Flaw flaw_;
};

// Forward and backward of a step with one micro-batch, as every rank asks for it.
std::vector<host::Recording> record_step(int chunks, bool sequence_parallel, Flaw flaw) {
    std::vector<host::Recording> recordings(ranks);
    on_ranks(MeshShape{1, 1, 1, ranks}, [&](TestRank& me) {
        TrainingGroups groups = training_groups(me.world);
        Flawed cut_points(flaw, *groups.tensor, chunks, me.arena);
        StageOptions options;
        options.B = B;
        options.T = T;
        options.recompute = Recompute::none;
        options.sequence_parallel = sequence_parallel;
        options.place = {me.world.mesh(), me.world.at(), 0};
        options.cut_points = &cut_points;
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
    host::CostModel free_links = costs.uncharged();
    free_links.seconds_per_exchanged_byte = 0;
    for (int chunks : {1, 4}) {
        const std::vector<host::Recording> recordings = record_step(chunks, true, Flaw::none);
        const Found found = on_the_clock(recordings, costs, chunks);
        const double unhindered = on_the_clock(recordings, free_links).seconds;
        const double longer = found.seconds / unhindered - 1;
        const double of_links = on_the_clock(recordings, costs.uncharged()).seconds / unhindered - 1;
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
    const double without_queue = on_the_clock(record_step(1, true, Flaw::no_queue), machine()).backward.hidden_share();
    const double with_waits = on_the_clock(record_step(1, true, Flaw::stray_wait), machine()).backward.hidden_share();
    MESSAGE("backward hidden without the queue ", 100 * without_queue, "%, where the host waits ", 100 * with_waits,
            "%");
    CHECK(without_queue <= 0.67);
    CHECK(with_waits < 0.95);
}
