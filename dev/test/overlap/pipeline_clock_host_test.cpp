// A pipeline on the stand-in's virtual clock (llmc/cuda_on_cpu/clock/record.h): what the program asks for, recorded and
// replayed at given costs, takes as long as the simulator says of its lists (llmc/parallel/schedule.h), and little
// longer where communication takes multiprocessors, which the simulator does not know. Modelled, not measured: a matmul
// takes its flops, scaled for each stage, everything else nothing.
#include <algorithm>
#include <set>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/cuda_on_cpu/clock/record.h"

using namespace certificate;

namespace {

enum class Flaw {
    none,
    one_communicator,   // for both directions between two stages
    stray_wait,         // the host waits for the device behind every boundary it sends
};

void damage(Rank& rank, Flaw flaw) {
    const PipelineLinks& links = rank.groups().links;
    if (flaw == Flaw::one_communicator) {
        if (links.input_gradient) {
            links.input_gradient->set_tap([&links](const CommCall& call, const Communicator::Make&) {
                links.input->send(static_cast<const floatX*>(call.in), call.count, 0, call.stream);
            });
        }
        if (links.output_gradient) {
            links.output_gradient->set_tap([&links](const CommCall& call, const Communicator::Make&) {
                links.output->receive(static_cast<floatX*>(call.out), call.count, 1, call.stream);
            });
        }
    }
    if (flaw == Flaw::stray_wait && links.output) {
        links.output->set_tap([](const CommCall& call, const Communicator::Make& make) {
            make(call);
            CUDA_CHECK(cudaDeviceSynchronize());
        });
    }
}

// A step of every rank, not the first.
std::vector<host::Recording> record_step(const Layout& layout, Flaw flaw = Flaw::none) {
    std::vector<host::Recording> recordings(static_cast<std::size_t>(layout.mesh().size()));
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        rank.gradients(1);
        CUDA_CHECK(cudaDeviceSynchronize());
        damage(rank, flaw);
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] { rank.gradients(2); });
        CUDA_CHECK(cudaDeviceSynchronize());
        for (Communicator* group : rank.communicators()) group->set_tap(nullptr);
    });
    return recordings;
}

// FLOPs of each piece's actions, and the operations that they consist of.
struct Measured {
    PipelineCosts costs;
    std::set<std::string> operations;
    double boundary_bytes = 0;
};

Measured measure(const Layout& layout) {
    Measured result;
    const int stages = layout.pipe.stages;
    result.costs.pieces.resize(static_cast<std::size_t>(stages * layout.pipe.chunks));
    for (int at = 0; at < stages; at++) {
        OwnedStream stream;
        Arena arena;
        Stage stage(model(layout), Rank::options(layout, {at, 0, 0, 0}), arena, stream.get());
        initialize_parameters(stage.parameters(), seed, stage.stream());
        BatchBuffer batch(arena, stage.sizes().B, stage.sizes().T, stage.sizes().V);
        const std::vector<int> tokens(static_cast<std::size_t>(stage.tokens()), 5);
        batch.upload(tokens, tokens, stream.get());
        result.boundary_bytes =
            static_cast<double>(sizeof(floatX)) * static_cast<double>(stage.micro_batches().boundary_elements());
        const std::size_t boundary =
            sizeof(floatX) * static_cast<std::size_t>(stage.micro_batches().boundary_elements());
        auto zero = [&](const BoundaryTensor& memory) {
            CUDA_CHECK(cudaMemsetAsync(memory.data, 0, boundary, stream.get()));
        };
        auto flops = [&](auto&& work) {
            CUDA_CHECK(cudaStreamSynchronize(stream.get()));
            double sum = 0;
            for (const host::RecordedStep& step : host::record(work)) {
                if (step.kind != host::RecordedStep::Kind::operation) continue;
                sum += step.work.flops;
                if (step.work.flops > 0) result.operations.insert(step.name);
            }
            CUDA_CHECK(cudaStreamSynchronize(stream.get()));
            return sum;
        };
        for (int chunk = 0; chunk < stage.chunks(); chunk++) {
            ActionCosts& costs = result.costs.pieces[static_cast<std::size_t>(chunk * stages + at)];
            if (!stage.chunk(chunk).embedding) zero(stage.micro_batches().input(chunk, 0));
            costs.forward = flops([&] { stage.forward(chunk, 0, batch.batch(), Purpose::training); });
            if (!stage.chunk(chunk).head) zero(stage.micro_batches().output_gradient(chunk, 0));
            costs.input = flops([&] { stage.backward_input(chunk, 0, batch.batch(), 1.0f); });
            costs.weight = 0;
            if (!stage.chunk(chunk).embedding) stage.micro_batches().release_input_gradient(chunk, 0);
            if (!delays_weights(layout.pipe.kind)) continue;
            costs.weight = flops([&] { stage.backward_weight(chunk, 0); });
        }
    }
    return result;
}

struct Times {
    double found, charged, simulated;   // charged: links take multiprocessors
};

// How long a step takes on stages of given slowness, as the program asks for it and as the simulator says. A boundary
// takes `link` times the forward of the first piece. `in_launch_order`: transfers start in that order, as in plans and
// in the simulator.
Times on_the_clock(const Layout& layout, const std::vector<double>& slowness, double link = 0,
                   bool in_launch_order = true, Flaw flaw = Flaw::none) {
    const std::vector<host::Recording> recordings = record_step(layout, flaw);
    Measured measured = measure(layout);
    for (std::size_t piece = 0; piece < measured.costs.pieces.size(); piece++) {
        const double slow = slowness[piece % static_cast<std::size_t>(layout.pipe.stages)];
        ActionCosts& costs = measured.costs.pieces[piece];
        costs = {costs.forward * slow, costs.input * slow, costs.weight * slow};
    }
    measured.costs.transfer = link * measured.costs.pieces[0].forward;
    host::CostModel machine;
    machine.seconds_per_exchanged_byte = measured.costs.transfer / measured.boundary_bytes;
    machine.in_launch_order = in_launch_order;
    machine.compute_seconds = [&](const host::RecordedStep& step) {
        if (!measured.operations.contains(step.name)) return 0.0;
        for (std::size_t rank = 0; rank < recordings.size(); rank++) {   // whose it is
            const host::Recording& own = recordings[rank];
            const std::less<> before;
            if (!before(&step, own.data()) && before(&step, own.data() + own.size())) {
                return step.work.flops * slowness[rank];
            }
        }
        return step.work.flops;
    };
    return {host::replay(recordings, machine).seconds, host::replay(recordings, machine.charged(link_sms(16))).seconds,
            simulate(pipeline_schedules(layout.pipeline()), layout.pipe.chunks, measured.costs).makespan};
}

// Bytes of a layer's parameters that each of two ranks has of it.
double layer_gather_bytes() {
    const Layout layout;
    const ParamTable table(model(layout));
    double elements = 0;
    for (int param = 0; param < table.size(); param++) {
        if (table[param].name.find("h.0.") != std::string::npos)
            elements += static_cast<double>(table[param].tensor.elements());
    }
    return elements / 2 * sizeof(floatX);
}

bool is_of_zero(const host::RecordedStep& step) {
    return step.name.starts_with("all-gather") || step.name.starts_with("reduce-scatter");
}

// Makes an exchange free of charge, but for the multiprocessors that it takes: those of a link, unless it is ZeRO's.
void free_bytes(host::RecordedStep& step) {
    if (!is_of_zero(step)) step.work.multiprocessors = link_sms(16);
    for (auto& exchange : step.work.exchanges) exchange.sends = exchange.receives = 0;
}

// Sums up what a rank's exchanges carry, in gathers of a layer.
double gathers_carried(const host::Recording& own) {
    double bytes = 0;
    for (const host::RecordedStep& step : own) {
        for (const auto& exchange : step.work.exchanges) bytes += exchange.sends;
    }
    return bytes / layer_gather_bytes();
}
constexpr double share_of_multiprocessors = 16.0 / 132;

Layout pipeline(const Pipe& pipe, int micro_batches, int layers, Recompute recompute = Recompute::none) {
    Layout layout{1, 0, micro_batches};
    layout.pipe = pipe;
    layout.layers = layers;
    layout.recompute = recompute;
    layout.tied = false;
    return layout;
}

}   // namespace

TEST_CASE("pipeline: a recorded step takes as long as the simulator says, with free links and its own costs") {
    if (!ranks_are_threads()) return;
    for (const Layout& layout :
         {pipeline({3, PipelineKind::one_f_one_b}, 6, 4), pipeline({3, PipelineKind::gpipe}, 4, 5),
          pipeline({3, PipelineKind::zero_bubble}, 6, 4), pipeline({3, PipelineKind::zero_bubble, 1, 1}, 8, 3),
          pipeline({3, PipelineKind::one_f_one_b, 1, 1}, 8, 5), pipeline({3, PipelineKind::naive}, 2, 3),
          pipeline({2, PipelineKind::interleaved, 2}, 6, 5),
          pipeline({2, PipelineKind::zero_bubble}, 4, 3, Recompute::block)}) {
        for (const std::vector<double>& slowness :
             {std::vector<double>{1, 1, 1}, std::vector<double>{1, 2.5, 0.5}, std::vector<double>{2, 0.75, 1.5}}) {
            const Times times = on_the_clock(layout, slowness);
            INFO(layout.name(), " ", slowness[1]);
            CHECK(std::abs(times.found / times.simulated - 1) <= 1e-9);
        }
    }
}

// The clock's step also sends a few numbers, which the simulator does not know.
TEST_CASE("pipeline: with slow links too, because what arrives waits for no memory that other work uses") {
    if (!ranks_are_threads()) return;
    for (const Pipe& pipe : {Pipe{3, PipelineKind::one_f_one_b}, Pipe{3, PipelineKind::one_f_one_b, 1, 1},
                             Pipe{3, PipelineKind::gpipe}, Pipe{3, PipelineKind::zero_bubble},
                             Pipe{2, PipelineKind::interleaved, 2}}) {
        for (const double link : {0.25, 0.9}) {
            const Times times = on_the_clock(pipeline(pipe, 6, 4), {1, 1, 1}, link);
            INFO(name_of(pipe.kind), ", a link takes ", link);
            CHECK(std::abs(times.found / times.simulated - 1) <= 1e-4);
        }
    }
}

// A receive holds its multiprocessors from its launch, long before the data comes: of inputs from the stage before, of
// gradients from the stage behind.
TEST_CASE("pipeline: links slow a stage by no more than the multiprocessors of a receive from each neighbour") {
    if (!ranks_are_threads()) return;
    for (const PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble, PipelineKind::gpipe}) {
        for (const int stages : {2, 3, 4}) {
            const int warmup = kind == PipelineKind::gpipe ? 0 : 1, receives = stages == 2 ? 1 : 2;
            const Times times = on_the_clock(pipeline({stages, kind, 1, warmup}, 12, stages + 1),
                                             std::vector<double>(static_cast<std::size_t>(stages), 1.0), 0.25, false);
            const double longer = times.charged / times.found - 1;
            MESSAGE(std::string(name_of(kind)), ", ", stages, " stages: ", 100 * longer,
                    "% longer where a link takes 2 of 132 multiprocessors");
            CHECK(longer > 0.004);
            CHECK(longer < receives * link_sms(16) / 132.0);
        }
    }
}

TEST_CASE("pipeline: the clock sees one communicator for both directions, and a host that waits") {
    if (!ranks_are_threads()) return;
    auto seconds = [](Flaw flaw) {
        return on_the_clock(pipeline({3, PipelineKind::one_f_one_b}, 6, 4), {1, 1, 1}, 0.9, false, flaw).found;
    };
    const double without = seconds(Flaw::none);
    for (const Flaw flaw : {Flaw::one_communicator, Flaw::stray_wait}) {
        const double longer = seconds(flaw) / without - 1;
        MESSAGE("flaw ", static_cast<int>(flaw), ": ", 100 * longer, "% longer");
        CHECK(longer >= 0.1);
    }
}

// Reductions cost time too, by their bytes, on the links and the stream of the gathers. Both together take less than
// the work that they travel behind where a gather takes 0.15 of a layer's forward; in bf16 a reduction, in fp32, takes
// twice that. What a micro-batch adds is then the multiprocessors that its gathers and reductions take; the first
// gathers of a step and its last reductions show once.
TEST_CASE("pipeline: ZeRO-3's traffic shows once a step, but for multiprocessors, if it is less than a piece of work") {
    if (!ranks_are_threads()) return;
    for (const PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble}) {
        double carried = 0;
        auto shown = [&](int m, double gather) {   // in gathers of a layer
            Layout layout = pipeline({2, kind}, m, 4);
            layout.dp = 2, layout.zero = 3;
            std::vector<host::Recording> recordings = record_step(layout);
            for (host::Recording& own : recordings) {
                for (host::RecordedStep& step : own) {
                    if (!is_of_zero(step)) free_bytes(step);
                }
            }
            carried = gathers_carried(recordings[0]);
            const Measured measured = measure(layout);
            const double layer = measured.costs.pieces[0].forward / 2;
            auto seconds = [&](double price) {
                host::CostModel machine;
                machine.seconds_per_exchanged_byte = price * layer / layer_gather_bytes();
                machine.compute_seconds = [&](const host::RecordedStep& step) {
                    return measured.operations.contains(step.name) ? step.work.flops : 0.0;
                };
                return host::replay(recordings, machine.charged()).seconds;
            };
            return (seconds(gather) - seconds(0)) / (gather * layer);
        };
        const double few = shown(4, 0.15), of_few = carried, many = shown(12, 0.15), of_many = carried;
        const double few_slow = shown(4, 1.5), many_slow = shown(12, 1.5);
        MESSAGE(std::string(name_of(kind)), ": 4 and 12 micro-batches show ", few, " and ", many, " gathers, of ",
                of_few, " and ", of_many, "; of slow ones ", few_slow, " and ", many_slow);
        CHECK(many - few <= 1.01 * share_of_multiprocessors * (of_many - of_few));
        CHECK(many_slow > few_slow + 8);
    }
}

// Gathers cost time and multiprocessors here, reductions and boundaries multiprocessors alone. Half the forward of a
// layer is less than any piece of work that a gather travels behind (the backward of the head is the shortest).
TEST_CASE("pipeline: ZeRO-3 gathers a layer twice a micro-batch; but for multiprocessors the first ones show") {
    if (!ranks_are_threads()) return;
    for (const PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble}) {
        for (const int m : {4, 12}) {
            Layout layout = pipeline({2, kind}, m, 4);
            layout.dp = 2, layout.zero = 3;
            std::vector<host::Recording> recordings = record_step(layout);
            for (host::Recording& own : recordings) {
                int gathers = 0;   // gathers of a layer: its 12 tensors together
                for (host::RecordedStep& step : own) {
                    const bool gather = step.name.starts_with("all-gather");
                    gathers += gather && std::count(step.name.begin(), step.name.end(), '+') == 11;
                    if (!gather) free_bytes(step);
                }
                CHECK(gathers <= 2 * m * 2);
                CHECK(gathers > 2 * m);   // a layer that stays is not fetched again
            }
            const Measured measured = measure(layout);
            const double layer = measured.costs.pieces[0].forward / 2;
            auto seconds = [&](double gather) {
                host::CostModel machine;
                machine.seconds_per_exchanged_byte = gather * layer / layer_gather_bytes();
                machine.compute_seconds = [&](const host::RecordedStep& step) {
                    return measured.operations.contains(step.name) ? step.work.flops : 0.0;
                };
                return host::replay(recordings, machine.charged()).seconds;
            };
            const double multiprocessors = share_of_multiprocessors * gathers_carried(recordings[0]);
            auto shown = [&](double gather) { return (seconds(gather) - seconds(0)) / (gather * layer); };   // gathers
            MESSAGE(m, " micro-batches: a gather of half a layer's forward shows ", shown(0.5), " times, ",
                    multiprocessors, " of it for multiprocessors, of two ", shown(2));
            // the first layer's and the embedding's, of any number of micro-batches
            CHECK(shown(0.5) <= 1.5 + multiprocessors);
            CHECK(shown(2) > m);
        }
    }
}
