#include "llmc/plan/memory_plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/optim/optimizer.h"
#include "llmc/process/sockets.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/option_names.h"
#include "llmc/run/part_options.h"
#include "llmc/run/run_parts.h"

namespace {

constexpr Recompute kLevels[] = {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block};

ModelConfig model_of(const Options& o) {
    if (o.layers == 0 && !is_descriptor(o.model)) {
        throw Error(ErrorKind::usage, text("--print-memory with --model ", o.model),
                    "Give a size such as gpt2:124M, or --layers, --heads and --channels.");
    }
    return described_model(o, o.vocab_size);
}

// What a library takes is known only where it runs.
AttentionKind counted_attention(const Options& options) {
    const bool own = options.attention == AttentionKind::own_sm90 && sm90_attention_refusal().empty();
    return own ? AttentionKind::own_sm90 : AttentionKind::auto_;
}

// Of any rank, without the world that it would be in: what ranks exchange through is missing.
Arena counted_alone(Options options, const ModelConfig& config, const MeshShape& mesh, const MeshCoordinates& at,
                    Recompute recompute, cudaStream_t stream) {
    options.recompute = recompute;
    options.attention = counted_attention(options);
    Arena arena = Arena::counting();
    Stage stage(config, stage_options(options, config, mesh, at), arena, stream);
    Optimizer::make(stage, options, arena);
    return arena;
}

}   // namespace

std::string memory_plan(const Options& asked) {
    Options options = asked;
    const std::int64_t replica = std::int64_t{options.pp} * options.cp * options.tp;
    const auto dp = static_cast<int>(std::max<std::int64_t>(1, options.startup.ranks / replica));
    fit_to_ranks(options, options.dp > 0 ? options.dp : dp);
    const MeshShape mesh = make_mesh(options.pp * options.dp * options.cp * options.tp, options.pp, options.cp,
                                     options.tp, options.dp, world_options(options).zero_group);
    const ModelConfig config = model_of(options);
    check_model_fits(options, config);
    OwnedStream stream;
    auto of_fullest_stage = [&](Recompute recompute) {
        std::pair<Arena, int> most;
        const bool unequal = options.optimizer == OptimizerKind::muon && options.zero == 1;   // matrices have owners
        const int shares = unequal ? group_size(mesh, zero_axes) : 1;
        for (int rank = 0; rank < mesh.pp * shares; rank++) {
            const int stage = rank / shares, share = rank % shares;
            const MeshCoordinates place{stage, share / mesh.cp, share % mesh.cp, 0};
            Arena arena = counted_alone(options, config, mesh, place, recompute, stream.get());
            if (rank == 0 || arena.bytes() > most.first.bytes()) most = {std::move(arena), stage};
        }
        return most;
    };
    const auto [arena, at] = of_fullest_stage(options.recompute.value_or(Recompute::none));
    const std::string whose = mesh.pp > 1 ? text(", of pipeline stage ", at, ", which takes most") : std::string();
    std::string levels;
    if (!options.recompute) {
        levels = "  this is with --recompute none;";
        for (const Recompute level : kLevels) {
            if (level == Recompute::none) continue;
            levels += formatted("%s %s: %.2f MiB", level == Recompute::gelu ? "" : ",", name_of(level),
                                static_cast<double>(of_fullest_stage(level).first.bytes()) / (1 << 20));
        }
        levels += "\n";
    }
    return text("memory of one of ", mesh.size(), " ranks", whose, ":\n", arena.table(), levels,
                "  not counted: what ranks exchange through, a library's attention, samples, checkpoints\n");
}

std::string own_device(const World& world) {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");   // may be another one for each rank
    return text(own_host_identity(), ":", visible != nullptr ? visible : "", ":", world.place().local_rank % devices);
}

Arena counted_run(Options options, const ModelConfig& config, World& world, cudaStream_t stream) {
    options.attention = counted_attention(options);
    Arena arena = Arena::counting();
    RunParts(options, config, world, arena, stream).make_step(options, arena);
    return arena;
}

Recompute recompute_that_fits(const Options& options, const ModelConfig& config, World& world) {
    std::size_t free_bytes = 0, all_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
    OwnedStream stream;
    std::string own = text(all_bytes);
    for (const Recompute level : kLevels) {
        Options with_level = options;
        with_level.recompute = level;
        own += text(" ", counted_run(with_level, config, world, stream.get()).high_water());
    }
    struct Device {
        double bytes = 0, taken[std::size(kLevels)] = {};
    };
    std::map<std::string, Device> devices;
    for (const std::string& rank : world.gather_text(own + " " + own_device(world))) {
        std::istringstream words(rank);
        double bytes = 0, taken[std::size(kLevels)] = {};
        std::string name;
        words >> bytes;
        for (double& level : taken) words >> level;
        std::getline(words, name);
        Device& device = devices[name];
        device.bytes = bytes;
        for (std::size_t i = 0; i < std::size(kLevels); i++) device.taken[i] += taken[i];
    }
    for (std::size_t i = 0; i < std::size(kLevels); i++) {
        const bool fits = std::all_of(devices.begin(), devices.end(), [&](const auto& device) {
            return device.second.taken[i] <= 0.9 * device.second.bytes;
        });
        if (fits) return kLevels[i];
    }
    return Recompute::block;
}
