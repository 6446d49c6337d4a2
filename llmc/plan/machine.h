// What a plan believes of a machine: the speed of a device's matmuls and memory, and of the links between devices.
//
// From a table of GPUs, whose every number was measured and says by whom; or from a file, which
// `train_gpt check --write-machine FILE` writes after measuring; options change single numbers of either.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"

struct Link {
    double bytes_per_second = 0;   // that a rank sends, of a large message
    double seconds = 0;            // of the smallest message, one way
};

struct MatmulRate {
    double flops;        // of one matmul
    double per_second;   // at that size
};

struct Machine {
    std::string name, source;
    std::vector<MatmulRate> matmul;     // by size, ascending; between two of them on a line, beyond them the nearest
    double attention_per_second = 0;    // FLOPs of attention, of which a causal mask leaves half
    double copy_bytes_per_second = 0;   // read and written together
    double kernel_seconds = 0;          // from the end of a kernel to the work of the next one
    double memory_bytes = 0;            // of a device
    int multiprocessors = 0;            // 0: communication slows nothing down
    int devices_per_node = 8;
    Link intra, inter;       // between devices of a node, and of several
    double peak_flops = 0;   // that MFU divides by: the data sheet's, dense; 0: the fastest matmul's

    double matmul_per_second(double flops) const;
    // Of an operation that moves `bytes` of device memory and makes `flops` of matmuls: the longer of the two.
    double seconds_of(double flops, double bytes) const;
    double best_matmul() const;
    double mfu_peak() const { return peak_flops > 0 ? peak_flops : best_matmul(); }
    const Link& link(int nodes) const { return nodes > 1 ? inter : intra; }
};

// GPUs that the table has, with what is said of each.
std::vector<std::string> known_gpus();
// Error(usage) naming the known ones.
Machine known_machine(const std::string& gpu);

Json to_json(const Machine& machine);
Machine machine_from(const Json& json);          // JsonError
Machine read_machine(const std::string& path);   // Error(io), Error(bad_data)

// "GB/s,us": the values of --link-intra and --link-inter. Error(usage).
Link link_from(const std::string& flag, const std::string& given);
