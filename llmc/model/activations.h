// Memory of forward and backward: activations that forward keeps for backward, one set per chunk and micro-batch in
// flight, and scratch, which all sets share. Sublayers declare both.
//
// Shapes are those of RankSizes: R rows; in the residual region tensor parallelism may leave a rank fewer (Rr). The
// recompute level says which activations are dropped and computed again in backward, into one buffer shared by all
// layers of all sets (Chen et al., "Training deep nets with sublinear memory cost", 2016).
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/mesh/shard.h"
#include "llmc/model/config.h"
#include "llmc/model/precision.h"

// Sizes of a micro-batch on one rank.
struct RankSizes {
    int B, T;                 // sequences, and tokens of each that this rank has
    int C;                    // channels of the residual stream
    int NH, KV, HS;           // query heads and KV heads of this rank, channels of a head
    int F;                    // channels of this rank inside the MLP
    int V, Vp;                // tokens of this rank's part of the vocabulary, without and with padding
    int first_token;          // first token of this rank's part of the vocabulary
    int residual_parts;       // ranks that share the rows of the residual region (cut_points.h)
    int ulysses;              // ranks that exchange heads for tokens (llmc/mesh/context_cut.h)
    ModelConfig model;        // the whole model
    int whole_T = 0;          // tokens of a whole sequence, of all cp ranks
    int ep = 1;               // ranks that share out the experts
    bool documents = false;   // attention is masked between the documents of a sequence

    int rows() const { return B * T; }
    int residual_rows() const {
        return rows() / residual_parts;
    }   // neighbours here need not be neighbours in the sequence
    // Shape of attention on this rank; with a ring, of the block of its own keys.
    AttentionShape attention() const {
        AttentionShape shape = self_attention_shape(B, T * ulysses, NH / ulysses, HS, true, NH / std::max(KV, ulysses));
        shape.masks_documents = documents;
        return shape;
    }
    int fc_width() const { return (model.gated() ? 2 : 1) * F; }
    int qkv_width() const { return (NH + 2 * KV) * HS; }
    // Width of q, k and v with the copies that Ulysses makes if it has more ranks than KV heads.
    int attended_width() const { return (NH + 2 * std::max(KV, ulysses)) * HS; }
};
// Returns the sizes on the rank `place`. `T`: tokens of a whole sequence, which cp ranks share evenly.
RankSizes rank_sizes(const ModelConfig& config, const ShardPlace& place, bool sequence_parallel, int B, int T,
                     int ulysses = 1);
// Returns the number of which a single sequence's length must be a multiple: `cp` ranks share its tokens, and
// `residual_parts` tp ranks the rows of each.
int sequence_unit(int cp, int residual_parts);
// Throws Error(usage), naming the nearest values that work, if tp ranks cannot share a model of these sizes evenly.
void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T);

// Each level drops what the ones before it drop, and more.
enum class Recompute : std::uint8_t {
    none,
    gelu,        // GELU's output: 4C of the 16C elements per row and layer
    gelu_norm,   // both norms' outputs too, from the kept inputs and statistics
    block,       // everything of a block but its input
};
// Marks a tensor that no level drops.
inline constexpr Recompute never_dropped{0xff};

// A tensor that a layer's forward keeps for its backward, as its sublayer declares it (sublayer.h).
struct KeptTensor {
    const char* name;                            // as in llm.c
    std::int64_t elements;                       // 0: the tensor does not exist
    Recompute dropped_from = Recompute::block;   // this level and those above compute it again
    bool statistic = false;                      // fp32, per row; else of the type of activations
    // Memory that sublayers below may work in once this sublayer's backward has run: nobody reads it again. Not lent
    // while gradients of weights are delayed.
    bool lent = false;

    std::int64_t bytes() const {
        return elements * static_cast<std::int64_t>(statistic ? sizeof(float) : sizeof(floatX));
    }
};

// Scratch memory of sublayers of one kind within one action; all layers share it.
struct ScratchTensor {
    const char* name;
    std::int64_t elements;
    bool fp32 = false;
    bool backward_only = true;
};

// Lists the kept tensors of a layer: those of its sublayers in order, and between them the residual stream.
std::vector<KeptTensor> layer_kept(const RankSizes& sizes);
// Returns the bytes of each tensor that the sublayers above attention lend to its backward, in the order of its pieces.
std::vector<std::size_t> lent_to_attention(const RankSizes& sizes);
// Addresses of a layer's kept tensors, in the order of layer_kept().
using LayerActivations = std::vector<std::byte*>;

// Allocates named device memory and owns it.
class Buffers {
public:
    template <class T>
    T* take(Arena& arena, const std::string& name, std::int64_t count) {
        memory_.push_back(arena.allocate<std::byte>(name, sizeof(T) * static_cast<std::size_t>(count)));
        return reinterpret_cast<T*>(memory_.back().data());
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
    std::vector<std::byte*> norms = {};              // per layer: (sublayers, norm_elements) of the gradients' type
};
// Returns `a` with each address replaced for which `places` has one.
LayerActivations moved(LayerActivations a, const LayerActivations& places);

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
    DeviceBuffer<floatX> rows_c;     // (R, C) a sublayer's output before it joins the residual stream; (R, C or NH HS)
                                     // gradients
    DeviceBuffer<float> norm_sums;   // partial sums of a norm's backward
    // Returns a sublayer's scratch by name (ScratchTensor); null if there is none.
    template <class T>
    T* scratch(const std::string& name) const {
        const auto found = scratch_.find(name);
        return found == scratch_.end() ? nullptr : reinterpret_cast<T*>(found->second.data());
    }

private:
    std::map<std::string, DeviceBuffer<std::byte>> scratch_;
};
