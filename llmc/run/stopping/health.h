// Looks at the tensors of a run when something is wrong, or may be. Everything here waits for the device; an ordinary
// step uses none of it.
#pragma once

#include <string>
#include <vector>

#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/run/step/step.h"
#include "llmc/run/stopping/agreement.h"

// Finds this rank's first tensor with a value that is not finite, after a step whose loss or norm is not finite:
// parameters in the order of the forward pass, then `activation`, then gradients in the order of the backward pass, so
// that a cause comes before its effects. Returns "<order> <words>" for earliest(), or an empty string.
std::string first_not_finite(const TrainedTensors& tensors, const Gradients& gradients, cudaStream_t stream,
                             const std::string& activation = "");

// Like first_not_finite(), for activations: repeats the forward passes of a step's micro-batches, and looks at each
// layer's results, the losses last. Over several micro-batches the first layer counts. Collective: every rank takes
// part.
std::string first_not_finite_activation(Step& step, const Pipeline::Read& read, int micro_batches);

// Returns the words of the first finding among all ranks' first_not_finite(), and its rank; or that all are finite.
std::string earliest(const std::vector<std::string>& by_rank);

// Hashes of this rank's part of each tensor (parameters and optimizer states), a line each in `tensors`. `groups` has a
// line for all tensors that meshes cut and copy alike: ranks that hold copies of one of them hold copies of all. So it
// is short, however many layers there are.
struct ReplicaHashes {
    std::string groups, tensors;
};
ReplicaHashes replica_hashes(const TrainedTensors& tensors, cudaStream_t stream);

// Compares all ranks' lines, of `groups` or of `tensors`, and names the ranks whose copy of a part has other bits (dp
// copies, tensors that tp does not cut, both owners of a tied one): those that differ from the majority, or all if
// there is none. Returns an empty string if all copies are equal.
std::string differing_replicas(const std::vector<std::string>& by_rank);

// Throws Error(resumable) if copies of a part differ between ranks, after step `step`. Collective.
void check_replicas(int step, const TrainedTensors& tensors, cudaStream_t stream, Agreement& agreement);
