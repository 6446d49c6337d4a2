// The tensors of a run in its checkpoint: the files that hold them, the ranks that write them, and the parts each rank
// reads.
//
// Two files for each of the N units (embedding, layers, head), numbered from 1:
//   model-00002-of-0000N.safetensors       the parameters in Hugging Face's form and the build's precision
//                                          (model_export.h); model.safetensors.index.json says which are where
//   optimizer-00002-of-0000N.safetensors   the exact state, without padding, stored [out, in]: the optimizer's states
//                                          in their type, "master.<name>", "m.<name>" and "v.<name>"; without masters
//                                          first "parameter.<name>" in the build's precision, of compact ones also
//                                          "master_lower_half.<name>", 16 bits
// With local steps these are of the first replica, and each other one has optimizer files of its own, whose names begin
// with "replica-1-" and so on: what it needs to go on by itself.
// With compressed gradients each of the N data-parallel ranks, or with --zero-group each group, has files besides,
// "data-rank-0-optimizer-..." to N - 1, with "gradient_error.<name>", what compression has left out of its gradients;
// as many of them go on with it. "gradient_factor.<name>", right factors of powersgd, is in the first kind of files, in
// a shape of its own, which depends on how tp cuts the matrix. Nothing else in the files depends on the mesh or the
// ZeRO stage. Each unit is written by one rank of the stage that holds it (a tied embedding: of the first stage). Units
// are dealt out in turns, so that the ranks of a stage write at the same time. A rank reads the ranges that it keeps,
// and the headers; parameters that have masters are rounded from them. Masters of either form are read into either, and
// moments of either type.
//
// Host memory per rank: pinned memory for the tensors that it writes, from its first checkpoint on, and 16 MiB while it
// reads. So a run waits only for the copy to host memory; a thread writes the files while the run goes on.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/pinned.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/precision.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/gather.h"

// A rank's part of a run's tensors.
struct TrainedTensors {
    const ModelState<floatX>& parameters;   // as the last update left them, on all ranks
    const std::vector<OptimizerState>& states;
    int replica = 0;   // with local steps, number of the model that this is a part of

    const ParamStorage& storage() const { return parameters.storage(); }
};

// Returns the content of model.safetensors.index.json.
std::string tensor_index(const ParamTable& table);

// Bytes of a checkpoint's tensors; its other files are small.
// `replicas`: models that take local steps. `sums`: compressed_sums().
std::uint64_t checkpoint_tensor_bytes(const ParamTable& table, const std::vector<OptimizerStateSpec>& states,
                                      int replicas = 1, int sums = 1);

// Tensors that this rank writes, in host memory. Made once, filled for each checkpoint.
class HostTensors {
public:
    // Allocates the memory; copies nothing.
    HostTensors(const TrainedTensors& tensors, const Gatherer& gatherer);

    // Returns the bytes of what rank `rank` of a stage's `ranks` would allocate. `tensors` may be those of a counting
    // arena.
    static std::size_t bytes_of(const TrainedTensors& tensors, int ranks, int rank);

    std::size_t bytes() const { return memory_.values().size(); }

    // Gathers and copies the tensors to this memory. Collective over the ranks of the stage; waits for the stream.
    // `tensors` must be those of the constructor.
    void fill(const TrainedTensors& tensors, const Gatherer& gatherer);

    // Writes this rank's files from the last fill(). Does not use the device, so any thread may call it.
    void write(CheckpointWriter& checkpoint) const;

private:
    struct Held {
        int unit;
        const ParamInfo* info;         // in the shape that is saved
        const OptimizerState* state;   // null: the parameter
        int sum;                       // one of compressed_sums(); -1: all have the same
        std::size_t offset;            // in bytes
    };
    std::size_t lay_out(const TrainedTensors& tensors, const Gatherer& gatherer);   // returns the bytes of all
    template <class T>
    std::span<T> values_of(const Held& held) const;
    void write_unit(CheckpointWriter& checkpoint, std::span<const Held> unit) const;

    const ParamTable& table_;
    bool has_weights_;   // the optimizer has master weights; otherwise the parameters are part of the exact state
    int replica_;
    std::vector<Held> held_;   // in the order of gathering
    PinnedBuffer<std::byte> memory_;
};

// Opens a state of the optimizer that holds weights (such as their average) as a model's weights. Throws
// Error(bad_data) if the checkpoint has no such state.
std::unique_ptr<WeightSource> open_saved_state(const FileSystem& files, const std::string& folder,
                                               const std::string& state);

// Tells whether a checkpoint holds a state of the optimizer.
bool holds_state(const FileSystem& files, const std::string& folder, const ParamTable& table, const std::string& state);

// Returns sentences about states that a checkpoint holds in a type other than the run's.
std::vector<std::string> about_types(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors);

// Tells whether a checkpoint holds this rank's tensors of a state, in their shapes.
bool holds_whole_state(const FileSystem& files, const std::string& folder, const OptimizerState& state);

// Returns how many tensors a checkpoint has of a state that each of compressed_sums() has its own of, and this run does
// not keep.
int tensors_not_taken(const FileSystem& files, const std::string& folder, const ParamTable& table,
                      const OptimizerStateSpec& state);

// Returns of how many compressed_sums() a checkpoint holds states of their own; 0: it holds none.
int saved_sums(const FileSystem& files, const std::string& folder, const ParamTable& table);

// Reads this rank's part of the tensors; padding becomes zero. Throws Error(bad_data) if the files are of another
// model, or have masters and the run has none, or the other way round. `only_weights`: reads no state of the optimizer
// but the master weights, and the weights from which local steps began. Averages that are not read start from the
// weights. States of compressed_sums() are read if the files are of as many, else zero.
void read_tensors(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors,
                  cudaStream_t stream, bool only_weights = false);
