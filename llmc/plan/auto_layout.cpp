#include "llmc/plan/auto_layout.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/plan/closed_form.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/search.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/options/sync_options.h"

namespace {

bool fits(const Options& options, Recompute level, double device_bytes) {
    const PlannedRun run = planned_run(options);
    for (const int stage : fullest_stages(run.options)) {
        if (static_cast<double>(fullest_rank(run, stage, level).high_water()) > 0.9 * device_bytes) return false;
    }
    return true;
}

// Returns false if the options refuse this number of sequences.
bool is_possible(const Options& options) {
    try {
        planned_run(options);
        return true;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        return false;
    }
}

std::optional<Machine> machine_in_table(const std::string& device, bool tf32) {
    std::vector<std::string> names = known_gpus();
    std::ranges::sort(names, std::greater<>(), &std::string::size);   // GH200 before H200
    for (const std::string& name : names) {
        std::string upper = name, found = device;
        for (std::string* word : {&upper, &found}) std::ranges::transform(*word, word->begin(), ::toupper);
        if (found.find(upper) == std::string::npos) continue;
        auto has = [&](const char* word) { return found.find(word) != std::string::npos; };
        if ((has("PCIE") || has("NVL")) && upper.find("PCIE") == std::string::npos) return {};
        const Machine machine = known_machine(name, tf32);
        return machine.measured ? std::optional(machine) : std::nullopt;   // a run can measure its own
    }
    return {};
}

}   // namespace

int largest_micro_batch(const Options& requested, double device_bytes) {
    refuse_if(requested.total_batch == 0, "--micro-batch auto without --total-batch",
              "Say how many tokens a step has; micro-batches are the largest shares of it that fit.");
    Options options = requested;
    options.micro_batch = 1;
    planned_run(options);   // throws for what no micro-batch can cure
    const std::int64_t most = options.total_batch / options.seq_len;
    std::vector<Recompute> levels{Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block};
    if (requested.recompute) levels = {*requested.recompute};
    for (const Recompute level : levels) {
        int largest = 0;
        for (int sequences = 1; sequences <= most; sequences++) {
            options.micro_batch = sequences;
            if (most % sequences != 0 || !is_possible(options)) continue;
            if (!fits(options, level, device_bytes)) break;
            largest = sequences;
        }
        if (largest > 0) return largest;
    }
    throw Error(ErrorKind::usage,
                formatted("--micro-batch auto: one sequence of %d tokens does not fit into nine tenths of %.2f GiB",
                          requested.seq_len, device_bytes / (1 << 30)),
                "Take more devices, --recompute block, --moments bf16, a higher --zero, or let --layout auto (of a "
                "plan: --search) choose.");
}

Options best_layout(const Options& options, const Machine& machine, int ranks,
                    const std::function<bool(const Options&)>& is_allowed) {
    const Candidate best = search_layouts(options, machine, ranks, is_allowed).front();
    refuse_if(!best.fits(machine),
              formatted("--layout auto: no layout of %d ranks fits into nine tenths of %.2f GiB", ranks,
                        machine.memory_bytes / (1 << 30)),
              "Take more devices, a smaller --micro-batch, or leave more options to it.");
    return best.run.options;
}

Machine machine_of_device(const std::string& device, bool tf32) {
    if (std::optional<Machine> machine = machine_in_table(device, tf32)) return *machine;
    throw Error(ErrorKind::usage, text("--layout auto: the speeds of this device, ", device, ", are not in the table"),
                "Measure them with `train_gpt check --write-machine FILE`, and add --machine FILE.");
}

int multiprocessors_left(const Options& options, const ModelConfig& config, const MeshShape& mesh, int devices_per_node,
                         const std::string& device) {
    const std::optional<Machine> machine = machine_in_table(device, options.tf32);
    if (mesh.size() == 1 || mesh.size() > devices_per_node || !is_predicted(options) || !machine)
        return options.comm_sms;
    return collectives_share(options, ParamTable(config), mesh, *machine) > 1.0 / 3 ? options.comm_sms : 0;
}

int multiprocessors_left(const Options& options, const ModelConfig& config, World& world) {
    const int own =
        multiprocessors_left(options, config, world.mesh(), world.place().local_ranks, device_properties().name);
    return value_of<int>(world.from_first(to_bytes(own)));
}
