#include "llmc/train/pipeline_options.h"

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/parallel/pipeline.h"

PipelineShape pipeline_shape(const Options& options) {
    return {options.pp_schedule, options.pp, options.micro_steps(), options.pp_chunks};
}

void check_pipeline(const Options& o) {
    const bool interleaved = o.pp_schedule == PipelineKind::interleaved;
    if (o.pp_chunks > 1 && !interleaved) {
        throw Error(ErrorKind::usage,
                    text("--pp-chunks ", o.pp_chunks, ": a stage has one with --pp-schedule ", name_of(o.pp_schedule)),
                    "Give --pp-schedule interleaved, or leave --pp-chunks out.");
    }
    if (o.pp_chunks == 1 && interleaved) {
        throw Error(ErrorKind::usage, "--pp-schedule interleaved with --pp-chunks 1",
                    "Give --pp-chunks 2 or more; with one, 1f1b is the same with less memory.");
    }
    if (o.pp == 1) {
        if (!interleaved) return;
        throw Error(ErrorKind::usage, "--pp-schedule interleaved with --pp 1", "Give --pp 2 or more.");
    }
    if (!delays_weights(o.pp_schedule)) return;
    if (o.recompute != Recompute::none) {
        throw Error(ErrorKind::usage, text("--pp-schedule zb with --recompute ", name_of(o.recompute)),
                    "What zb's gradients of weights read must be kept: give --recompute none.");
    }
    if (o.zero >= 2) {
        throw Error(ErrorKind::usage, text("--pp-schedule zb with --zero ", o.zero),
                    "zb works with --zero 0 and 1; --zero 2 and 3 with the other schedules.");
    }
}

void check_micro_batches(const Options& o) {
    const int m = o.micro_steps(), p = o.pp;
    if (o.pp_schedule == PipelineKind::interleaved && m % p != 0) {
        const int below = m / p * p, above = below + p;
        const std::int64_t unit = o.tokens_per_micro_step();
        throw Error(ErrorKind::usage,
                    text("--pp-schedule interleaved: a step of ", m, " micro-batches, expected a multiple of --pp ", p),
                    below > 0 ? text("--total-batch ", below * unit, " and ", above * unit, " are nearest.")
                              : text("--total-batch ", above * unit, " is the smallest that works."));
    }
}

PipelineSchedule schedule_of_stage(const Options& options, int stage) {
    const PipelineShape shape = pipeline_shape(options);
    const std::vector<PipelineSchedule> lists = pipeline_schedules(shape);
    const std::string fault = fault_in(lists, shape.chunks, shape.micro_batches);
    ENSURE(fault.empty(), "--pp-schedule ", name_of(shape.kind), ": ", fault);
    return lists[static_cast<std::size_t>(stage)];
}

void add_pipeline(StageOptions& stage, const Options& options, const ModelConfig& config) {
    if (options.pp == 1) return;
    const PipelineShape shape = pipeline_shape(options);
    const int pieces = shape.stages * shape.chunks;
    if (config.layers < pieces) {
        throw Error(ErrorKind::usage,
                    shape.chunks == 1 ? text("--pp ", shape.stages, ": a model of ", config.layers, " layers")
                                      : text("--pp ", shape.stages, " x --pp-chunks ", shape.chunks, " = ", pieces,
                                             " pieces of a model of ", config.layers, " layers"),
                    text("Every piece needs a layer: at most --pp ",
                         std::max<std::int64_t>(1, config.layers / shape.chunks), " works."));
    }
    const int at = stage.place.at.pp;
    stage.chunks = chunks_of_stage(config, shape, at, options.seq_len);
    stage.in_flight = in_flight(schedule_of_stage(options, at), stage.chunks);
}

std::string pipeline_doubts(const Options& o) {
    const int m = o.micro_steps();
    if (o.pp == 1 || m >= o.pp) return "";
    return text("a step of ", m, " micro-batches keeps at most ", m, " of ", o.pp,
                " pipeline stages busy: --total-batch ", o.pp * o.tokens_per_micro_step(), " or more fills them");
}
