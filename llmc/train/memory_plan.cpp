#include "llmc/train/memory_plan.h"

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/train/layout_options.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/part_options.h"

namespace {

ModelConfig model_of(const Options& o) {
    if (o.layers == 0 && !is_descriptor(o.model)) {
        throw Error(ErrorKind::usage, text("--print-memory with --model ", o.model),
                    "Give a size such as gpt2:124M, or --layers, --heads and --channels.");
    }
    const std::int64_t vocab = o.vocab_size > 0 ? o.vocab_size : 50257;
    ModelConfig config =
        o.layers > 0 ? custom_model_config(o.layers, o.heads, o.channels, o.seq_len, vocab) : model_config(o.model);
    config.tied = o.tie_embeddings;
    config.vocab_size = vocab;
    config.padded_vocab_size = padded_vocab(vocab);
    return config;
}

Arena counted(const Options& options, const ModelConfig& config, const MeshShape& mesh, int pipeline_stage,
              cudaStream_t stream) {
    StageOptions of_stage = stage_options(options, mesh, {pipeline_stage, 0, 0, 0});
    of_stage.attention = AttentionKind::auto_;   // what a library takes is known only where it runs
    add_pipeline(of_stage, options, config);
    Arena arena = Arena::counting();
    Stage stage(config, of_stage, arena, stream);
    Optimizer::make(stage, options, arena);
    return arena;
}

}   // namespace

std::string memory_plan(const Options& asked) {
    Options options = asked;
    const std::int64_t replica = std::int64_t{options.pp} * options.cp * options.tp;
    const auto dp = static_cast<int>(std::max<std::int64_t>(1, options.startup.ranks / replica));
    fit_to_ranks(options, options.dp > 0 ? options.dp : dp);
    const MeshShape mesh{options.pp, options.dp, options.cp, options.tp};
    const ModelConfig config = model_of(options);
    check_model_fits(options, config);
    OwnedStream stream;
    Arena most;
    int at = 0;
    for (int stage = 0; stage < mesh.pp; stage++) {
        const Arena arena = counted(options, config, mesh, stage, stream.get());
        if (arena.bytes() <= most.bytes()) continue;
        most = arena;
        at = stage;
    }
    const std::string whose = mesh.pp > 1 ? text(", of pipeline stage ", at, ", which takes most") : std::string();
    return text("memory of one of ", mesh.size(), " ranks", whose, ":\n", most.table(),
                "  not counted: what ranks exchange through, a library's attention, samples, checkpoints\n");
}
