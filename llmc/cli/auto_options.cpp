#include "llmc/cli/auto_options.h"

#include <algorithm>

#include "llmc/base/check.h"
#include "llmc/plan/auto_layout.h"
#include "llmc/plan/plan.h"
#include "llmc/plan/search.h"
#include "llmc/process/startup.h"
#include "llmc/process/world.h"
#include "llmc/run/options/option_names.h"

namespace {

// Returns the machine that training runs on. A device's memory is divided among the ranks that share it.
Machine own_machine(const Options& o, const LaunchEnvironment& launch, bool layout) {
    if (launch.ranks > 1) load_kernels_at_start();
    const cudaDeviceProp device = device_properties();
    Machine machine;
    if (layout)
        machine = o.plan.machine.empty() ? machine_of_device(device.name, o.tf32) : read_machine(o.plan.machine);
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    const int here = std::max(1, launch.local_ranks), sharing = (here + devices - 1) / std::max(1, devices);
    machine.memory_bytes = static_cast<double>(device.totalGlobalMem) / sharing;
    if (launch.local_ranks > 0) machine.devices_per_node = launch.local_ranks;
    return machine;
}

}   // namespace

std::string settle_auto_options(Verb verb, Options& o, bool layout, const std::function<bool(const char*)>& is_given) {
    const bool any_size = o.micro_batch == kAutoMicroBatch;
    if (!layout && !any_size) return "";
    const LaunchEnvironment launch = read_launch_environment();
    const Machine machine = verb == Verb::plan ? planned_machine(o) : own_machine(o, launch, layout);
    Options planned = o;
    if (planned.startup.ranks <= 0) planned.startup.ranks = std::max(1, launch.ranks);
    if (any_size) planned.micro_batch = 1;
    std::string told;
    if (layout) {
        auto kept = [&](const Options& other) { return keeps_given(o, other, is_given); };
        const Options best = best_layout(planned, machine, planned.startup.ranks, kept);
        take_layout(o, best);
        take_layout(planned, best);
        told = " " + layout_text(o);
    }
    if (any_size) {
        o.micro_batch = largest_micro_batch(planned, machine.memory_bytes);
        told += text(" --micro-batch ", o.micro_batch);
    }
    return "chosen:" + told;
}
