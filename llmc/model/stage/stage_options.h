// Options of a stage, and the purpose of a forward.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/choices.h"
#include "llmc/model/stage/micro_batches.h"

class Communicator;   // llmc/process/comm.h
class ExpertRanks;    // llmc/model/layer/expert_ranks.h

// Groups of ranks that share the work of a stage; null: one rank has all that it would ask others for.
struct StageGroups {
    Communicator* tp = nullptr;                         // shards of every matrix
    Communicator *ring = nullptr, *ulysses = nullptr;   // parts of every sequence (ContextCut)
};

struct StageOptions : StageChoices {
    int B = 4;                               // sequences of a micro-batch
    int T = 1024;                            // tokens of a whole sequence, at most max_seq_len
    std::vector<int> shorter_lengths = {};   // into which sequences of T tokens are cut in some steps; they divide T
    Recompute recompute = Recompute::none;
    int classifier_rows = 0;   // rows of logits that exist at once; 0: chosen so that they take at most 2.25 GiB
    MatmulOptions matmul = {};
    int comm_sms = 0, link_sms = 0;   // multiprocessors that matmuls leave to collectives, and links of a pipeline
    bool backward = true;             // false: only forward passes, and no memory for anything else
    RankLayout place = {};            // which part of the model this rank keeps; by default all of it
    int replica = 0, replicas = 1;   // with local steps: number of the model that `place` is of, and how many there are
    int ulysses = 1;                 // cp ranks of a group that exchanges heads for tokens (context_cut.h)
    std::vector<Chunk> chunks = {};   // in the order of the model; empty: one chunk with everything
    InFlight in_flight = {};
    // Both must outlive the stage.
    StageGroups groups = {};
    ExpertRanks* expert_ranks = nullptr;   // null: that of one device
};

// Purpose of a forward: it decides what the last chunk does.
enum class Purpose : std::uint8_t {
    training,   // activations are kept; the head waits for backward_input
    loss,       // the loss of every position
    logits,     // logits of some rows may be asked for
};
