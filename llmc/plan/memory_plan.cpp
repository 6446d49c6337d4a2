#include "llmc/plan/memory_plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/optim/optimizer.h"
#include "llmc/process/sockets.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/run_parts.h"

namespace {

constexpr Recompute kLevels[] = {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block};

// Counts the attention that the run asks for, if it can serve here; auto: the library's, which may need a workspace.
void count_attention(CoreAttention& attention, AttentionKind requested) {
    const AttentionKind kind = requested == AttentionKind::auto_ ? AttentionKind::library : requested;
    if (attention.refusal(kind).empty()) attention.use(kind);
}

// Memory of the machine that a rank may take besides what is counted: libraries, buffers of communication.
constexpr std::size_t kUncounted = std::size_t{64} << 20;

struct CountedRun {
    Arena arena;
    std::size_t checkpoint_bytes;
};
CountedRun counted_with_checkpoint(Options options, const ModelConfig& config, World& world) {
    const AttentionKind attention = std::exchange(options.attention, AttentionKind::own);
    CountedRun run{Arena::counting(), 0};
    RunParts parts(options, config, world, run.arena, nullptr);
    count_attention(parts.stage.attention(), attention);
    Step& step = parts.make_step(options, run.arena);
    if (options.output_dir.empty()) return run;
    const Communicator* const stage = parts.groups.stage;
    const TrainedTensors tensors{step.stage().parameters(), step.optimizer().states(), step.stage().options().replica};
    run.checkpoint_bytes = HostTensors::bytes_of(tensors, stage ? stage->size() : 1, stage ? stage->rank() : 0);
    return run;
}

// Counts the memory of any rank, alone, in a World whose other ranks are only planned.
Arena counted_alone(Options options, const ModelConfig& config, const MeshShape& mesh, const MeshCoordinates& at,
                    Recompute recompute) {
    options.recompute = recompute;
    World world(mesh, rank_of(mesh, at), options.comm_sms);
    return counted_run(options, config, world);
}

}   // namespace

void check_processes(const Options& o, bool dp_is_open) {
    const std::int64_t ranks = o.startup.ranks, replica = std::int64_t{o.pp} * o.cp * o.tp,
                       unit = replica * std::max(1, o.dp);
    if (ranks <= 0 || (dp_is_open ? ranks % unit == 0 : ranks == unit)) return;
    std::string axes;
    for (const auto& [flag, size] : {std::pair(" --pp ", o.pp), {" --cp ", o.cp}, {" --tp ", o.tp}, {" --dp ", o.dp}}) {
        if (size > 1) axes += text(flag, size);
    }
    std::string hint = text("Give --processes ", unit);
    if (o.dp > 0) {
        hint += ranks % replica == 0
                    ? text(", or leave --dp out: ", ranks / replica, " replicas of the model use all ", ranks, ".")
                    : ", or another layout.";
    } else {
        const std::int64_t below = ranks / unit * unit;
        hint = below > 0 ? text("Give --processes ", below, " or ", below + unit) : hint;
        hint += text(", or a layout that divides ", ranks, ".");
    }
    throw Error(ErrorKind::usage,
                dp_is_open
                    ? text("--processes ", ranks, axes, ": expected a multiple of ", unit)
                    : text("--processes ", ranks, axes, ": the layout has ", unit, unit == 1 ? " rank" : " ranks"),
                hint);
}

ModelConfig planned_model(const Options& o) {
    if (o.layers == 0 && !is_descriptor(o.model)) {
        throw Error(ErrorKind::usage, text("--model ", o.model, ": a plan of a model in a file"),
                    "Give a size such as gpt2:124M, or --layers, --heads and --channels.");
    }
    return described_model(o, o.vocab_size);
}

PlannedRun planned_run(const Options& requested) {
    Options options = requested;
    check_processes(options, options.dp == 0);
    const std::int64_t replica = std::int64_t{options.pp} * options.cp * options.tp;
    const auto dp = static_cast<int>(std::max<std::int64_t>(1, options.startup.ranks / replica));
    fit_to_ranks(options, options.dp > 0 ? options.dp : dp);
    const MeshShape mesh = make_mesh(options.pp * options.dp * options.cp * options.tp, options.pp, options.cp,
                                     options.tp, options.dp, world_options(options).zero_group, options.ep);
    const ModelConfig config = planned_model(options);
    check_model_fits(options, config);
    return {options, config, mesh};
}

Arena fullest_rank(const PlannedRun& run, int stage, Recompute recompute) {
    Arena most;
    const MeshShape& mesh = run.mesh;
    const bool unequal =
        run.options.optimizer == OptimizerKind::muon && run.options.zero == 1;   // matrices have owners
    const int shares = unequal ? group_size(mesh, zero_axes) : 1;
    for (int share = 0; share < shares; share++) {
        const MeshCoordinates place{stage, share / mesh.cp, share % mesh.cp, 0};
        Arena arena = counted_alone(run.options, run.config, mesh, place, recompute);
        if (share == 0 || arena.high_water() > most.high_water()) most = std::move(arena);
    }
    return most;
}

std::vector<int> fullest_stages(const Options& options) {
    std::vector<int> stages;
    for (int stage = 0; stage < options.pp; stage++) {
        const bool is_end = stage == 0 || stage == options.pp - 1;
        if (is_end || stage == 1 || delays_weights(options.pipeline.kind)) stages.push_back(stage);
    }
    return stages;
}

std::string memory_plan(const Options& requested) {
    const PlannedRun run = planned_run(requested);
    auto of_fullest_stage = [&](Recompute recompute) {
        std::pair<Arena, int> most;
        for (int stage = 0; stage < run.mesh.pp; stage++) {
            Arena arena = fullest_rank(run, stage, recompute);
            if (stage == 0 || arena.high_water() > most.first.high_water()) most = {std::move(arena), stage};
        }
        return most;
    };
    const auto [arena, at] = of_fullest_stage(run.options.recompute.value_or(Recompute::none));
    const std::string whose = run.mesh.pp > 1 ? text(", of pipeline stage ", at, ", which takes most") : std::string();
    std::string levels;
    if (!run.options.recompute) {
        levels = "  this is with --recompute none;";
        for (const Recompute level : kLevels) {
            if (level == Recompute::none) continue;
            levels += formatted("%s %s: %.2f MiB", level == Recompute::gelu ? "" : ",", name_of(level),
                                static_cast<double>(of_fullest_stage(level).first.high_water()) / (1 << 20));
        }
        levels += "\n";
    }
    const int asked_per_node = run.options.startup.gpus_per_node;
    const std::vector<std::string> hosts = hosts_in_blocks(run.mesh.size(), asked_per_node > 0 ? asked_per_node : 8);
    std::string warnings;
    for (const std::string& warning : layout_warnings(run.options, hosts)) warnings += "  warning: " + warning + "\n";
    return text("memory of one of ", run.mesh.size(), " ranks", whose, ":\n", arena.table(), levels,
                "  not counted: a library's attention where none serves here, samples, checkpoints\n", warnings);
}

std::string own_device(const World& world) {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");   // may differ between ranks
    return text(own_host_identity(), ":", visible != nullptr ? visible : "", ":", world.place().local_rank % devices);
}

Arena counted_run(Options options, const ModelConfig& config, World& world) {
    return counted_with_checkpoint(std::move(options), config, world).arena;
}

MemoryNeed memory_need(const Options& options, const ModelConfig& config, World& world) {
    MemoryNeed need;
    need.host = own_host_identity();
    need.device = own_device(world);
    const MemoryLimits* const of_device = stand_in() ? &stand_in()->memory_limits() : nullptr;
    need.device_is_host = of_device != nullptr;
    need.machine = of_device != nullptr ? *of_device : memory_limits();
    const CountedRun counted = counted_with_checkpoint(options, config, world);
    need.bytes = {counted.arena.high_water(), counted.checkpoint_bytes};
    need.table = counted.arena.table();
    std::size_t all_bytes = 0;   // asked now: counting has made communicators, which take memory of a GPU
    CUDA_CHECK(cudaMemGetInfo(&need.free_bytes, &all_bytes));
    return need;
}

std::string memory_that_suffices(const MemoryNeed& own, const std::vector<std::string>& devices,
                                 const std::vector<std::string>& bytes, const Log& log) {
    std::size_t of_device = 0, of_machine = 0, ranks = 0;
    for (std::size_t rank = 0; rank < devices.size(); rank++) {
        const auto of_rank = value_of<MemoryNeed::Bytes>(bytes[rank]);
        if (devices[rank].starts_with(own.host + ":")) of_machine += of_rank.machine;
        if (devices[rank] != own.device) continue;
        of_device += of_rank.device;
        ranks++;
    }
    auto size = [](std::size_t count) { return size_text(static_cast<double>(count)); };
    std::string words = size(own.bytes.device) + " a rank";
    if (ranks > 1) words += text(", ", ranks, " ranks on this device, together ", size(of_device));
    if (of_machine > 0) words += text(", and ", size(of_machine), " of the machine's for checkpoints");
    words += text(", of ", size(own.free_bytes), " free");
    const MemoryLimit& limit = own.machine.tightest();
    if (own.device_is_host) words += text(" (", limit.words(), ")");
    if (own.device_is_host) of_machine += of_device;   // one memory has both
    for (const MemoryLimit& slowing : own.machine.slowing) {
        if (of_machine <= slowing.free) continue;
        log.warning("%s leaves %s: the kernel slows down a run that needs %s", slowing.words().c_str(),
                    size(slowing.free).c_str(), size(of_machine).c_str());
    }
    if ((own.device_is_host ? of_machine : of_device) > own.free_bytes) {
        throw Error(ErrorKind::no_device, text("too little memory: ", words, ":\n", own.table), how_to_save_memory());
    }
    const std::size_t left = own.free_bytes - std::min(own.free_bytes, of_machine);
    if (own.device_is_host && left < ranks * kUncounted) {
        log.warning(
            "the run leaves %s of memory for libraries and communication, which are not counted: the kernel may "
            "kill it",
            size(left).c_str());
    }
    if (own.device_is_host || of_machine <= limit.free) return words;
    throw Error(ErrorKind::no_device,
                text("too little memory of the machine: its ranks keep ", size(of_machine), " for checkpoints, ",
                     size(limit.free), " are free (", limit.words(), "):\n", own.table),
                "Raise the limit, spread the run over more machines, or leave out --output-dir.");
}

Recompute recompute_that_fits(const Options& options, const ModelConfig& config, World& world) {
    std::size_t free_bytes = 0, all_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
    struct Memory {   // bytes of a rank or of a device
        double all = 0, taken[std::size(kLevels)] = {};
    };
    Memory own{.all = static_cast<double>(all_bytes)};
    for (std::size_t i = 0; i < std::size(kLevels); i++) {
        Options with_level = options;
        with_level.recompute = kLevels[i];
        own.taken[i] = static_cast<double>(counted_run(with_level, config, world).high_water());
    }
    const std::vector<std::string> names = world.gather_text(own_device(world)),
                                   ranks = world.gather_text(to_bytes(own));
    std::map<std::string, Memory> devices;
    for (std::size_t rank = 0; rank < ranks.size(); rank++) {
        const auto of_rank = value_of<Memory>(ranks[rank]);
        Memory& device = devices[names.at(rank)];
        device.all = of_rank.all;
        for (std::size_t i = 0; i < std::size(kLevels); i++) device.taken[i] += of_rank.taken[i];
    }
    for (std::size_t i = 0; i < std::size(kLevels); i++) {
        const bool fits = std::all_of(devices.begin(), devices.end(), [&](const auto& device) {
            return device.second.taken[i] <= 0.9 * device.second.all;
        });
        if (fits) return kLevels[i];
    }
    return Recompute::block;
}
