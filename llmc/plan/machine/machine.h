// The speeds that a plan assumes of a machine: of a device's matmuls and memory, and of the links between devices.
//
// They come from a table of GPUs, which names the source of every number, or from a file that `train_gpt check
// --write-machine FILE` or the bench of collectives writes after measuring. Options override single numbers.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"

struct Link {
    double bytes_per_second = 0;   // sent by a rank, for a large message
    double seconds = 0;            // latency of the smallest message, one way
};

struct MatmulRate {
    double flops;        // FLOPs of one matmul
    double per_second;   // at that size
};

constexpr int kCollectiveMultiprocessors = 16;   // that a collective is taken to need where NCCL chooses (--comm-sms 0)

struct Machine {
    std::string name, source;
    bool measured = true;              // false: by data sheets
    std::vector<MatmulRate> matmul;    // by size, ascending; interpolated between two sizes, the nearest beyond them
    double attention_per_second = 0;   // FLOPs per second, counting the pairs that a causal mask leaves, at most
    double attention_tokens = 0, attention_channels = 0;   // sequence and head at which half is reached; 0: any
    double copy_bytes_per_second = 0;                      // bytes read plus bytes written
    double kernel_seconds = 0;                             // gap between two kernels of a stream
    double memory_bytes = 0;                               // per device
    double watts = 0;                                      // highest power of a device; 0: not known
    int multiprocessors = 0;                               // 0: communication slows nothing down
    int devices_per_node = 8;
    Link intra, inter;       // inside a node, and between nodes
    double peak_flops = 0;   // divisor of MFU: the data sheet's, dense; 0: the fastest matmul's

    double matmul_per_second(double flops) const;
    // Seconds of an operation that moves `bytes` of device memory and does `flops` in matmuls: the longer of the two.
    double seconds_of(double flops, double bytes) const;
    double best_matmul() const;
    // FLOPs per second of attention, forward and backward together.
    double attention_rate(double tokens, double head_size) const;
    double mfu_peak() const { return peak_flops > 0 ? peak_flops : best_matmul(); }
    double allowed_bytes() const { return 0.9 * memory_bytes; }   // that a plan may use of a device
    const Link& link(int nodes) const { return nodes > 1 ? inter : intra; }
    // Bytes that each rank of a collective sends per second. NCCL makes as many rings as a node has ranks of the group,
    // and each leaves the node by another rank's link.
    double collective_bytes_per_second(int ranks, int nodes) const;
    // Seconds in which a rank sends `bytes` in equal parts to all others of its group, over both of its links at once.
    double all_to_all_seconds(double bytes, int ranks, int nodes) const;
};

std::vector<std::string> known_gpus();   // names of the table
// Returns a GPU of the table, by its name in any case; in builds for fp32 with the speed of TF32 if `tf32`. Throws
// Error(usage) naming the known ones.
Machine known_machine(const std::string& gpu, bool tf32 = false);

Json to_json(const Machine& machine);
Machine machine_from(const Json& json);          // throws JsonError
Machine read_machine(const std::string& path);   // throws Error(io), Error(bad_data)

// Parses "GB/s,us", the form of --link-intra and --link-inter. Throws Error(usage).
Link link_from(const std::string& flag, const std::string& given);
