// Communicators of training: which ranks gather, reduce and pass on what.
#pragma once

#include "llmc/model/config.h"
#include "llmc/model/stage/stage_options.h"
#include "llmc/process/world.h"

// Makes the groups that share the work of this rank's stage. Collective over the world. `ulysses`: as in StageOptions.
StageGroups stage_groups(World& world, int ulysses);

// Ends of a pipeline stage's links to its neighbours: a communicator for each direction, whose sender is rank 0 and
// whose receiver is rank 1; because on a shared one sends and receives would wait for each other. Null: no such link.
struct PipelineLinks {
    Communicator *input = nullptr, *output = nullptr;
    Communicator *output_gradient = nullptr, *input_gradient = nullptr;
    Communicator* tied = nullptr;   // the first stage, which is rank 0, and the last one
};

// Groups of this rank; null: this rank alone.
struct TrainingGroups {
    Communicator* zero = nullptr;    // ranks with the same part of the model: gradients are summed, ZeRO cuts over them
    Communicator* all = nullptr;     // sums that every rank must know alike: loss, norm, requests to stop
    Communicator* stage = nullptr;   // ranks of a pipeline stage: its tensors are gathered from them
    Communicator* tensor = nullptr;   // tp ranks: each has a shard of every matrix
    PipelineLinks links = {};
    Communicator* same_heads = nullptr;   // tp ranks that hold copies of the same heads (TensorSpec::heads)
    Communicator* replicas = nullptr;     // ranks that hold copies of the same ZeRO shard: gradients are summed again
    Communicator* copy = nullptr;         // ranks of a stage that hold one copy of its states
    Communicator* holders = nullptr;      // ranks that hold the same experts: what `zero` is to all else
    // With local steps all groups above are within a replica. Then these are the ranks that hold the same part of the
    // model in other replicas, null if there is one, and all ranks of the run.
    Communicator *outer = nullptr, *world = nullptr;

    Communicator* everyone() const { return world != nullptr ? world : all; }
};

// Makes them; collective over the world when first asked for, later the same ones. `ring`: the last stage of the
// pipeline also hands its output to the first (several chunks per stage). `tied`: both have the token embedding.
// `head_copies`: neighbouring tp ranks that hold the same KV heads.
TrainingGroups training_groups(World& world, bool ring = false, bool tied = true, int head_copies = 1);

// Makes the groups of a model whose pipeline stages have `pp_chunks` chunks each. `local`: replicas take local steps.
TrainingGroups training_groups(World& world, const ModelConfig& config, int pp_chunks, bool local = false);
