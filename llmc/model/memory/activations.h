// Memory of forward and backward: activations that forward keeps for backward, one set per chunk and micro-batch in
// flight, and scratch, which all sets share. layer_memory.h lists both for a layer.
//
// The recompute level says which activations are dropped and computed again in backward, into one buffer shared by all
// layers of all sets (Chen et al., "Training deep nets with sublinear memory cost", 2016).
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stream.h"
#include "llmc/model/memory/layer_memory.h"

// Allocates named device memory and owns it.
class Buffers {
public:
    template <class T>
    T* take(Arena& arena, const std::string& name, std::int64_t count) {
        memory_.push_back(arena.allocate<std::byte>(name, sizeof(T) * static_cast<std::size_t>(count)));
        return static_cast<T*>(static_cast<void*>(memory_.back().data()));
    }

private:
    std::vector<DeviceBuffer<std::byte>> memory_;
};

// Activations that the forward of one chunk keeps of one micro-batch. Layer 0 is the chunk's first.
struct Activations {
    std::vector<LayerActivations> layers;
    std::vector<floatX*> residual;   // (Rr, C) input of layer i; one more: the output of the last
    OwnedEvent sent;                 // recorded after the send of the output to another rank
};

// Boundary buffer: a residual stream or its gradient, (Rr, C), that may cross to another rank. A stream waits for
// `used` before it touches the memory, and records `used` afterwards.
struct BoundaryTensor {
    floatX* data;
    OwnedEvent used;
};

// Holds items that are taken and given back.
template <class T>
class Pool {
public:
    explicit Pool(const char* name) : name_(name) {}
    void add(T item) { free_.push_back(&all_.emplace_back(std::move(item))); }
    // Takes the item that was given back longest ago: the work that used it has most likely ended.
    T* take() {
        ENSURE(!free_.empty(), "more than ", all_.size(), " ", name_, " in flight");
        T* item = free_.front();
        free_.pop_front();
        return item;
    }
    void give_back(T* item) { free_.push_back(item); }
    // Returns an item without taking it, for work that leaves nothing in it, while nothing is in flight.
    T& any() { return all_.front(); }

private:
    const char* name_;
    std::deque<T> all_;   // never moves
    std::deque<T*> free_;
};

// Numbers of (chunk, micro-batch) pairs between two actions of a schedule at once. One device needs one.
struct InFlight {
    int activations = 1;   // from forward to backward, or to the delayed gradients of weights
    int gradients = 1;     // residual streams' gradients, while backward is between its first chunk and its last
    int delayed = 0;       // from backward_input to backward_weight; 0: gradients of weights are made at once
    int inputs = 0;        // from their arrival from another rank to forward
    int batches = 0;       // micro-batches whose tokens are on the device; 0: one for each set of activations
};
inline InFlight most_of(const InFlight& a, const InFlight& b) {
    return {std::max(a.activations, b.activations), std::max(a.gradients, b.gradients), std::max(a.delayed, b.delayed),
            std::max(a.inputs, b.inputs), std::max(a.batches, b.batches)};
}

// Returns the bytes of one set of activations: of `layers` layers and one micro-batch.
std::int64_t activation_set_bytes(const RankSizes& sizes, int layers, Recompute recompute);

// Memory that delayed gradients of weights of one chunk and micro-batch need besides the activations. Tensors that
// recompute has dropped are computed again in backward_input, and kept here until backward_weight.
struct DelayedMemory {
    std::vector<LayerActivations> recomputed = {};   // per layer; null: the tensor was kept or is not needed
    std::vector<std::byte*> norms = {};              // per layer: (2, norm_elements) of the gradients' type
};
// Returns `a` with each address replaced for which `places` has one.
LayerActivations moved(LayerActivations a, LayerActivations places, const RankSizes& sizes);

class ActivationPool {
public:
    // Every set has room for chunks of `layers` layers. `norm_bytes`: bytes of a gradient's element if delayed
    // gradients of norms wait in the pool; else 0.
    ActivationPool(Arena& arena, const RankSizes& sizes, int layers, Recompute recompute, const InFlight& in_flight,
                   std::int64_t norm_bytes = 0);

    Pool<Activations> activations{"activations"};
    Pool<BoundaryTensor> inputs{"inputs of chunks"};
    Pool<BoundaryTensor> gradients{"gradients of residual streams"};
    Pool<DelayedMemory> delayed{"delayed gradients of weights"};

private:
    Buffers buffers_;
};

// Memory whose contents live within one action; one per stream.
struct Workspace {
    // `classifier_rows`: rows of logits that exist at once; 0 if another rank has the head: then the head's memory is
    // left out. Without `backward` there is only memory for forward and for comparing attentions.
    Workspace(Arena& arena, const RankSizes& sizes, int classifier_rows, bool backward = true);

    // Memory of the head
    DeviceBuffer<floatX> logits;    // (classifier_rows, Vp)
    DeviceBuffer<floatX> lnf;       // (Rr, C) input of the classifier
    DeviceBuffer<float> lnf_mean;   // (Rr)
    DeviceBuffer<float> lnf_rstd;   // (Rr)
    DeviceBuffer<float> losses;     // (R) negative log likelihood of each target
    // Memory that all sublayers share
    DeviceBuffer<float> norm_sums;   // partial sums of a norm's backward
    LayerScratch layer;
    // Tensors that never live at the same time, and share one piece of memory
    floatX* branch_out;   // (R, C) output of a sublayer before it joins the residual stream
    floatX* dnormed;      // (R, C) gradient of a norm's output
    floatX* datty;        // (R, NH HS) gradient of attention's output
    floatX* embedded;     // (R, C) output of the embedding, of which each tp rank has a part of the sum

private:
    Buffers buffers_;
};
