// The tensors of a run in its checkpoint: which files hold them, who writes which, and who reads what.
//
// Two files for each of the N units (embedding, layers, head), numbered from 1:
//   model-00002-of-0000N.safetensors       the parameters in Hugging Face's form and the build's precision
//                                          (model_export.h); model.safetensors.index.json says which are where
//   optimizer-00002-of-0000N.safetensors   the exact state, without padding, stored [out, in]: the optimizer's states
//                                          in fp32, "master.<name>", "m.<name>" and "v.<name>"; without masters first
//                                          "parameter.<name>" in the build's precision
// The files do not depend on the mesh or the ZeRO stage. A unit is written by one rank of the stage that holds it (a
// tied embedding: of the first), dealt in turns, so that the ranks of a stage write at the same time. A rank reads the
// ranges that it keeps, and nothing else but headers; parameters that have masters are rounded from them.
//
// Host memory of a rank: what it writes, page-locked, from its first checkpoint on, 16 MiB when it reads. So a run
// waits for the copy to host memory alone, and a thread writes while it goes on.
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

// What a rank keeps of a run's tensors.
struct TrainedTensors {
    const ModelState<floatX>& parameters;   // as the last update left them everywhere
    const std::vector<OptimizerState>& states;

    const ParamStorage& storage() const { return parameters.storage(); }
};

// model.safetensors.index.json's content.
std::string tensor_index(const ParamTable& table);

// Bytes of a checkpoint's tensors; what else it holds is small.
std::uint64_t checkpoint_tensor_bytes(const ParamTable& table, const std::vector<OptimizerStateSpec>& states);

// The tensors of the units that this rank writes, in host memory. Made once, filled for each checkpoint.
class HostTensors {
public:
    // Takes the memory; nothing is copied yet.
    HostTensors(const TrainedTensors& tensors, const Gatherer& gatherer);

    std::size_t bytes() const { return memory_.values().size(); }

    // Copies them here. Collective over the ranks of the stage; waits for the stream. `tensors`: those it was made for.
    void fill(const TrainedTensors& tensors, const Gatherer& gatherer);

    // Writes this rank's files from what fill() has copied; without the device, so in any thread.
    void write(CheckpointWriter& checkpoint) const;

private:
    struct Held {
        int unit, param;
        std::string state;   // empty: the parameter
        std::size_t at;      // byte
    };
    std::size_t lay_out(const TrainedTensors& tensors, const Gatherer& gatherer);   // the bytes of all
    template <class T>
    std::span<T> values_of(const Held& held) const;
    void write_unit(CheckpointWriter& checkpoint, std::span<const Held> unit) const;

    const ParamTable& table_;
    bool has_weights_;         // else parameters are a part of the exact state
    std::vector<Held> held_;   // in the order in which they are gathered
    PinnedBuffer<std::byte> memory_;
};

// What a checkpoint has of the weights in a state of the optimizer, such as their average. Error(bad_data) where it has
// none.
std::unique_ptr<WeightSource> open_saved_state(const FileSystem& files, const std::string& folder,
                                               const std::string& state);

// Reads what this rank keeps; padding becomes zero. Error(bad_data) where the files are of another model or choice of
// master weights. `only_weights`: of the optimizer's states none but exact weights. Averages that are not read begin as
// the weights.
void read_tensors(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors,
                  cudaStream_t stream, bool only_weights = false);
