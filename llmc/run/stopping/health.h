// Looking at the tensors of a run when something is wrong, or may be. All of it waits for the device; an ordinary step
// does none of it.
#pragma once

#include <string>
#include <vector>

#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/run/step.h"

// Which tensor of this rank first has a value that is not finite, after a step whose loss or norm is not: parameters in
// the order of the forward pass, then `activation`, then gradients in the order of the backward pass, so that what
// spread from it comes later. "<order> <words>", for earliest(); empty: none.
std::string first_not_finite(const TrainedTensors& tensors, AnyGradients& gradients, cudaStream_t stream,
                             const std::string& activation = "");

// The same of activations: makes the forward passes of a step's micro-batches again, and looks at what each layer
// makes, the losses last. Of several micro-batches the first layer counts. Collective: every rank makes its own.
std::string first_not_finite_activation(Step& step, const Pipeline::Read& read, int micro_batches);

// The words of what comes first, of everyone's first_not_finite() by rank, and which rank it is; or that all are
// finite.
std::string earliest(const std::vector<std::string>& by_rank);

// Hashes of what this rank keeps of each tensor, parameters and optimizer states, with which part of it that is; a line
// for each, and a line for all together that meshes cut and copy alike, so that ranks which have copies of one of them
// have copies of all: few, however many layers there are.
struct ReplicaHashes {
    std::string groups, tensors;
};
ReplicaHashes replica_hashes(const TrainedTensors& tensors, cudaStream_t stream);

// Which ranks keep the same part of a tensor with other bits (dp copies, tensors that tp does not cut, both owners of a
// tied one), of everyone's lines by rank, those of groups or of tensors: the ranks that differ from the majority, or
// all of them where there is none. Empty: copies are equal.
std::string differing_replicas(const std::vector<std::string>& by_rank);
