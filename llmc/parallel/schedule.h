// Schedules of a pipeline: for each stage a list of the actions of one step. The lists are made by pure functions,
// checked and simulated without a device, and carried out in order (pipeline.h).
//
// The model is cut into stages x chunks pieces; piece q is chunk q / stages of stage q % stages, so every piece hands
// its output to the next stage, and if stages have several chunks, the last stage hands to the first. One stage is one
// device.
//
//   naive        one micro-batch at a time, to compare with
//   gpipe        all forwards, then all backwards: Huang et al., "GPipe", 2018
//   1f1b         a stage holds no more micro-batches than there are stages: Narayanan et al., "PipeDream", 2019
//   interleaved  the same with several chunks per stage: Narayanan et al., "Efficient large-scale language model
//                training on GPU clusters using Megatron-LM", 2021; micro-batches must be a multiple of stages
//   zb           ZB-H1: gradients of weights wait until nothing else can be done: Qi et al., "Zero bubble pipeline
//                parallelism", 2023
//
// 1f1b and zb can begin with more forwards (PipelineShape::warmup): 1 + n instead of one micro-batch between
// neighbours hide a part of transfers that take up to n / 2 (F + B + W) each way, and stage i of p keeps up to
// n (p - 1 - i) sets of activations more. Zhuang et al., "On optimizing the communication of model parallelism", 2022.
// (Interleaved stages have two between neighbours, and would wait for each other for ever with more: the last one's
// forwards come behind its backwards.)
//
// In all of them the backwards of a chunk come in the order of micro-batches, so that gradients are added in the order
// in which one device adds them.
//
// Transfers are actions too, on both ends. A device may hold everything up until a transfer of its list has gone
// through (NCCL runs the calls of a communicator in order, and operations of several communicators may wait for each
// other). So lists are valid only if they end even when every stage does one action at a time and a transfer waits for
// its other end. `with_transfers` gives all transfers one order, that of a nominal clock, which each stage follows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/enum_names.h"

struct Action {
    enum class Kind : std::uint8_t {
        forward,
        backward_input,    // with the gradients of weights, unless the stage delays them (InFlight::delayed)
        backward_weight,   // gradients of weights, if delayed
        receive_input,     // from the chunk before, which is on another stage
        send_output,       // to the chunk after
        receive_output_gradient,
        send_input_gradient,
    } kind;
    int chunk;   // index in the stage
    int micro_batch;
    friend bool operator==(const Action&, const Action&) = default;
};
using PipelineSchedule = std::vector<Action>;   // list of one stage

constexpr bool is_transfer(Action::Kind kind) { return kind >= Action::Kind::receive_input; }
const char* name_of(Action::Kind kind);
std::string describe(const Action& action);   // "forward of micro-batch 3, chunk 0"

// Returns the list of one device: each micro-batch forward through all chunks and back, one after the other.
inline PipelineSchedule one_stage_schedule(int micro_batches, int chunks = 1) {
    PipelineSchedule schedule;
    for (int m = 0; m < micro_batches; m++) {
        for (int chunk = 0; chunk < chunks; chunk++) schedule.push_back({Action::Kind::forward, chunk, m});
        for (int chunk = chunks; chunk-- > 0;) schedule.push_back({Action::Kind::backward_input, chunk, m});
    }
    return schedule;
}

inline int micro_batches_of(const PipelineSchedule& schedule) {
    int most = 0;
    for (const Action& action : schedule) most = std::max(most, action.micro_batch + 1);
    return most;
}

// ---------------------------------------------------------------------------------------------------------------------
// Pipelines

enum class PipelineKind : std::uint8_t { naive, gpipe, one_f_one_b, interleaved, zero_bubble };

// How stages work on their micro-batches, as a run is asked to.
struct PipelineOptions {
    PipelineKind kind = PipelineKind::one_f_one_b;
    int chunks = 1;   // PipelineShape's
    int warmup = 0;
    bool operator==(const PipelineOptions&) const = default;
};

struct PipelineShape {
    PipelineKind kind = PipelineKind::one_f_one_b;
    int stages = 1;
    int micro_batches = 1;
    int chunks = 1;   // per stage; several only if interleaved, or on one stage
    int warmup = 0;   // more forwards before the first backward, for every stage between here and the last
};
template <>
struct EnumNames<PipelineKind> {
    static constexpr EnumName<PipelineKind> list[]{{"1f1b", PipelineKind::one_f_one_b},
                                                   {"interleaved", PipelineKind::interleaved},
                                                   {"zb", PipelineKind::zero_bubble},
                                                   {"gpipe", PipelineKind::gpipe},
                                                   {"naive", PipelineKind::naive}};
};
// True if the warm-up can be longer.
constexpr bool warms_up(PipelineKind kind) {
    return kind == PipelineKind::one_f_one_b || kind == PipelineKind::zero_bubble;
}
// True if gradients of weights are delayed.
constexpr bool delays_weights(PipelineKind kind) { return kind == PipelineKind::zero_bubble; }

// True if stages take micro-batches in groups of as many as there are stages.
constexpr bool takes_groups(PipelineKind kind) { return kind == PipelineKind::interleaved; }

// Returns the lists of all stages; a single stage gets one_stage_schedule(), whatever the kind.
std::vector<PipelineSchedule> pipeline_schedules(const PipelineShape& shape);
// Returns lists that run micro-batches forward, one after the other, without backward.
std::vector<PipelineSchedule> forward_schedules(int stages, int chunks, int micro_batches);

// Adds the transfers to lists of computation.
std::vector<PipelineSchedule> with_transfers(const std::vector<PipelineSchedule>& lists, int chunks);

// Returns "" if the lists of all stages together do a whole step (or, with `backward` false, its forward part) and
// always end; else says what is wrong.
std::string fault_in(const std::vector<PipelineSchedule>& lists, int chunks, int micro_batches, bool backward = true);

// ---------------------------------------------------------------------------------------------------------------------
// Simulation

// Times of one micro-batch in a piece, in any unit. If gradients of weights are not delayed, a backward takes both.
struct ActionCosts {
    double forward = 1, input = 1, weight = 1;
    double all() const { return forward + input + weight; }
};
struct PipelineCosts {
    std::vector<ActionCosts> pieces;   // in the order of the model: stages x chunks
    double transfer = 0;               // time of a boundary on a link
};

struct TimedAction {
    Action action;
    double begin, end;
};
struct Simulation {
    std::vector<std::vector<TimedAction>> stages;   // computation only
    double makespan = 0;
    double busy = 0;   // working time of all stages together
    // Idle time of the stages, over the time they work, and over the whole time. Papers mean either.
    double overhead() const { return makespan * static_cast<double>(stages.size()) / busy - 1; }
    double idle_share() const { return 1 - busy / (makespan * static_cast<double>(stages.size())); }
};
// Simulates lists without a fault. A stage launches the transfers of its list in their order, each once what it sends
// has been computed and the one before of its kind has ended. Each direction of a stage's link carries one at a time,
// whichever both ends have launched first. Lists without transfers launch them as soon as what they carry has been
// computed.
Simulation simulate(const std::vector<PipelineSchedule>& lists, int chunks, const PipelineCosts& costs);

// Most (chunk, micro-batch) pairs that a stage has at once between forward and backward_input, and between forward and
// the end of backward.
struct LivePeak {
    int to_input = 0, to_weight = 0;
};
LivePeak live_peak(const PipelineSchedule& list);
