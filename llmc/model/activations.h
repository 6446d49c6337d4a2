// Memory of forward and backward: what forward keeps for backward, one set per chunk and micro-batch in flight, and
// scratch, which all of them share. What there is of both, sublayers declare.
//
// Shapes are those of RankSizes: R rows, of which tensor parallelism may leave a rank fewer in the residual region
// (Rr). The recompute level says what is not kept but computed again in backward, into one buffer shared by all layers
// of all sets (Chen et al., "Training deep nets with sublinear memory cost", 2016).
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
    int NH, KV, HS;           // heads of this rank, of queries and of keys and values, and channels of a head
    int F;                    // channels of this rank inside the MLP
    int V, Vp;                // this rank's part of the vocabulary, and with padding
    int first_token;          // where that begins
    int residual_parts;       // ranks that share the rows of the residual region (cut_points.h)
    int ulysses;              // ranks that exchange heads for tokens (llmc/mesh/context_cut.h)
    ModelConfig model;        // of which this is one rank's part
    int whole_T = 0;          // tokens of a sequence that cp ranks have together
    int ep = 1;               // ranks that experts are dealt out to
    bool documents = false;   // of a sequence do not see each other

    int rows() const { return B * T; }
    int residual_rows() const {
        return rows() / residual_parts;
    }   // not all of them next to each other in the sequence
    // As attention on this rank has them; of a ring, the block of its own keys.
    AttentionShape attention() const {
        AttentionShape shape = self_attention_shape(B, T * ulysses, NH / ulysses, HS, true, NH / std::max(KV, ulysses));
        shape.masks_documents = documents;
        return shape;
    }
    int fc_width() const { return (model.gated() ? 2 : 1) * F; }
    int qkv_width() const { return (NH + 2 * KV) * HS; }
    // With the copies that Ulysses makes where there are more ranks than heads of keys and values.
    int attended_width() const { return (NH + 2 * std::max(KV, ulysses)) * HS; }
};
// `T`: tokens of a whole sequence, of which context parallelism gives each rank as many.
RankSizes rank_sizes(const ModelConfig& config, const ShardPlace& place, bool sequence_parallel, int B, int T,
                     int ulysses = 1);
// A single sequence whose tokens cp ranks share, and tp ranks the rows of each of these, has a multiple of so many.
int sequence_unit(int cp, int residual_parts);
// Error(usage) naming the nearest values that work, where tp ranks cannot share a model of these sizes evenly.
void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T);

// Each level drops what the ones before it drop, and more.
enum class Recompute : std::uint8_t {
    none,
    gelu,        // GELU's output: 4C of the 16C elements per row and layer
    gelu_norm,   // both layernorms' outputs too, from the kept inputs, means and deviations
    block,       // everything of a block but its input
};
// Of what no level drops.
inline constexpr Recompute never_dropped{0xff};

// A tensor that a layer's forward keeps for its backward, as its sublayer declares it (sublayer.h).
struct KeptTensor {
    const char* name;                            // llm.c's
    std::int64_t elements;                       // 0: it is not there
    Recompute dropped_from = Recompute::block;   // this level and those above compute it again
    bool statistic = false;                      // fp32, of rows: else of the type of activations
    // Once the sublayer's backward has run, and its gradients of weights are not delayed, it is memory that sublayers
    // below may work in: nobody reads it again.
    bool lent = false;

    std::int64_t bytes() const {
        return elements * static_cast<std::int64_t>(statistic ? sizeof(float) : sizeof(floatX));
    }
};

// What sublayers of one kind work with inside an action. All layers share it.
struct ScratchTensor {
    const char* name;
    std::int64_t elements;
    bool fp32 = false;
    bool backward_only = true;
};

// Of all sublayers of a layer in order, and between them the residual stream.
std::vector<KeptTensor> layer_kept(const RankSizes& sizes);
// Bytes of those that the sublayers above attention lend to its backward, in the order in which it is given them.
std::vector<std::size_t> lent_to_attention(const RankSizes& sizes);
// Where they are, in the same order.
using LayerActivations = std::vector<std::byte*>;

// Takes device memory by name and keeps it.
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

// What the forward of one chunk keeps of one micro-batch. Layers are counted from the chunk's first.
struct Activations {
    std::vector<LayerActivations> layers;
    std::vector<floatX*> residual;   // (Rr, C) input of layer i; one more: the output of the last
    OwnedEvent sent;                 // recorded behind what sends the output to another rank
};

// A residual stream, or the gradient of one, that may cross to another rank: (Rr, C). Whoever uses the memory first
// waits on his stream for `used`, and records it there before another stream has it.
struct BoundaryTensor {
    floatX* data;
    OwnedEvent used;
};

// A number of things that are used and given back.
template <class T>
class Pool {
public:
    explicit Pool(const char* name) : name_(name) {}
    void add(T item) { free_.push_back(&all_.emplace_back(std::move(item))); }
    // What was given back longest ago: the work that it was in has most likely ended.
    T* take() {
        ENSURE(!free_.empty(), "more than ", all_.size(), " ", name_, " in flight");
        T* item = free_.front();
        free_.pop_front();
        return item;
    }
    void give_back(T* item) { free_.push_back(item); }
    // One of them, for work that leaves nothing in it, while nothing is in flight.
    T& any() { return all_.front(); }

private:
    const char* name_;
    std::deque<T> all_;   // never moves
    std::deque<T*> free_;
};

// How many chunks of micro-batches may be between two actions of a schedule at once. One device needs one.
struct InFlight {
    int activations = 1;   // from forward to backward, or to the delayed gradients of weights
    int gradients = 1;     // of a residual stream: while backward is between its first chunk and its last
    int delayed = 0;       // from backward_input to backward_weight; 0: gradients of weights are made at once
    int inputs = 0;        // from their arrival from another rank to forward
    int batches = 0;       // micro-batches whose tokens are on the device; 0: one for each set of activations
};
inline InFlight most_of(const InFlight& a, const InFlight& b) {
    return {std::max(a.activations, b.activations), std::max(a.gradients, b.gradients), std::max(a.delayed, b.delayed),
            std::max(a.inputs, b.inputs), std::max(a.batches, b.batches)};
}

// Bytes of a set of activations: what the forward of `layers` layers keeps of a micro-batch.
std::int64_t activation_set_bytes(const RankSizes& sizes, int layers, Recompute recompute);

// What gradients of weights of a chunk and micro-batch need besides its activations while they are delayed: all that
// recompute has dropped is made again in backward_input, and kept from there to backward_weight.
struct DelayedMemory {
    std::vector<LayerActivations> recomputed = {};   // of each layer; null: what was kept, or is not needed
    std::vector<std::byte*> norms = {};              // of each layer: (sublayers, norm_elements) of the gradients' type
};
// `a`, but of what is in `places` that.
LayerActivations moved(LayerActivations a, const LayerActivations& places);

class ActivationPool {
public:
    // Every set has room for chunks of so many layers. `norm_bytes`: of a gradient's element, where delayed gradients
    // of layernorms need a place; else 0.
    ActivationPool(Arena& arena, const RankSizes& sizes, int layers, Recompute recompute, const InFlight& in_flight,
                   std::int64_t norm_bytes = 0);

    Pool<Activations> activations{"activations"};
    Pool<BoundaryTensor> inputs{"inputs of chunks"};
    Pool<BoundaryTensor> gradients{"gradients of residual streams"};
    Pool<DelayedMemory> delayed{"delayed gradients of weights"};

private:
    Buffers buffers_;
};

// Memory that lives only within one action; one per stream.
struct Workspace {
    // `classifier_rows`: 0 where the head is on another rank, with what it needs. Without `backward` there is only what
    // forward needs, and what comparing attentions does.
    Workspace(Arena& arena, const RankSizes& sizes, int classifier_rows, bool backward = true);

    // of the head
    DeviceBuffer<floatX> logits;    // (classifier_rows, Vp)
    DeviceBuffer<floatX> lnf;       // (Rr, C) input of the classifier
    DeviceBuffer<float> lnf_mean;   // (Rr)
    DeviceBuffer<float> lnf_rstd;   // (Rr)
    DeviceBuffer<float> losses;     // (R) negative log likelihood of each target
    // of all sublayers
    DeviceBuffer<floatX> rows_c;     // (R, C) a sublayer's output before it joins the residual stream; (R, C or NH HS)
                                     // gradients
    DeviceBuffer<float> norm_sums;   // partial sums of a norm's backward
    // of the kinds of sublayers, by name (ScratchTensor); null where there is none
    template <class T>
    T* scratch(const std::string& name) const {
        const auto found = scratch_.find(name);
        return found == scratch_.end() ? nullptr : reinterpret_cast<T*>(found->second.data());
    }

private:
    std::map<std::string, DeviceBuffer<std::byte>> scratch_;
};
