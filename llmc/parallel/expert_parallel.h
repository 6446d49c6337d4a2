// Exchanges between ranks for a mixture of experts (expert_ranks.h).
//
// A balance loss counts where the tokens of each whole sequence went: ranks of cp, and of tp under sequence
// parallelism, have parts of them. They add up B E int32 a layer and micro-batch, in forward; what is recomputed adds
// nothing. Bytes sent per rank, layer and micro-batch, of n such ranks: 8 B E (n - 1) / n.
//
// With --ep N experts are dealt out to N neighbouring ranks. They gather each other's counts, 4 (N - 1) E bytes, and
// the host waits for them, once a layer in forward: NCCL must be told how much it sends. Then rows travel, those of one
// expert and one pair of ranks as one message, straight to where the holder's matmuls read them. All of it is on a
// stream of its own, chunk by chunk of each rank's experts, and on a communicator of its own, so that it waits for no
// sum of gradients over the same ranks. With R rows of tokens, K experts a token and b bytes an element, each rank
// sends, if experts have equal loads, 4 R K C b (N - 1) / N in all (to the experts and back, in forward and in
// backward), 4 R K (N - 1) / N for weights and as much for their gradients. Under --recompute block the rows go to the
// experts once more; if gradients of weights are delayed, so do the outputs' gradients.
#pragma once

#include <memory>

#include "llmc/model/stage/stage.h"
#include "llmc/process/world.h"

inline constexpr const char* kExpertGroup = "ep";   // name of the ranks that experts are dealt out to
// Returns their communicator. The first call is collective over the world.
Communicator* expert_group(World& world);

// Makes the exchanges of a stage with these options; they must outlive the stage. Null if one device has all that it
// would ask others for. If `arena` only counts, they need no device, and exchange nothing. Collective.
std::unique_ptr<ExpertRanks> make_expert_ranks(World& world, const StageOptions& options, const ModelConfig& config,
                                               const Arena& arena);
