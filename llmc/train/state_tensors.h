// The tensors of a run in its checkpoint: which files hold them, who writes which, and who reads what.
//
// Two files for each of the N units (embedding, layers, head), numbered from 1:
//   model-00002-of-0000N.safetensors       the parameters in Hugging Face's form and the build's precision
//                                          (model_export.h); model.safetensors.index.json says which are where
//   optimizer-00002-of-0000N.safetensors   the exact state, without padding, stored [out, in]: "master.<name>", or
//                                          "parameter.<name>" in the build's precision where there are no masters; and
//                                          "m.<name>", "v.<name>". fp32 but for parameters
// The files do not depend on the mesh or the ZeRO stage. A unit is written by one rank of the stage that holds it (a
// tied embedding: of the first), dealt in turns, so that the ranks of a stage write at the same time. A rank reads the
// ranges that it keeps, and nothing else but headers; parameters that have masters are rounded from them.
//
// Host memory of a rank: one tensor and 16 MiB when it writes, 16 MiB when it reads.
#pragma once

#include <string>
#include <vector>

#include "llmc/io/checkpoint.h"
#include "llmc/model/precision.h"
#include "llmc/parallel/gather.h"

// What a rank keeps of them.
struct TrainedTensors {
    const ModelState<floatX>& parameters;   // as the last update left them everywhere
    const ModelState<float>&m, &v;
    const ModelState<float>* masters = nullptr;   // null: there are none

    const ParamStorage& storage() const { return parameters.storage(); }
};

// model.safetensors.index.json's content.
std::string tensor_index(const ParamTable& table);

// Writes this rank's share of the files. Collective over the ranks of the stage, also where a file fails
// (CheckpointWriter::attempt).
void write_tensors(CheckpointWriter& checkpoint, const TrainedTensors& tensors, const Gatherer& gatherer);

// Reads what this rank keeps; padding becomes zero. Error(bad_data) where the files are of another model or choice of
// master weights.
void read_tensors(const FileSystem& files, const std::string& folder, const TrainedTensors& tensors,
                  cudaStream_t stream);
