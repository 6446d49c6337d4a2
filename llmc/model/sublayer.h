// A branch of the residual stream: out = in + branch(norm(in)), or in + norm(branch(in)) (NormPosition). A layer is
// sublayers in order (layer.h).
//
// Each kind declares in one place what it has: parameters, the activations that its forward keeps for its backward,
// scratch. The parameter table, memory, checkpoints and generation read that. To add a kind: a file in
// llmc/model/sublayers, its name in SublayerKind and in the list of a layer (config.h), and a line in sublayer.cpp.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llmc/model/cut_points.h"
#include "llmc/model/norm.h"

struct SublayerBackward {
    floatX* dresidual;   // (Rr, C): before, the gradient of the output; after, that of the input
    const floatX* in;    // (Rr, C), as given to forward
    const LayerActivations& a;
    // Delayed gradients of weights read copies, because what they read changes before. These lie where activations were
    // that nobody reads again; that of the output's gradient (Rr, C) is given here. Null: not delayed.
    floatX* kept_dout;
    void* norm_aside;         // norm_elements(), or null (Norm::Backward)
    const LentMemory& lent;   // by sublayers whose backward has been
    AnyGradients& gradients;
    WeightGradientQueue& queue;

    bool delayed() const { return kept_dout != nullptr; }
};

// The step of a sequence that is generated: some positions at once, of one sequence, on one device.
struct CachedStep {
    const LayerActivations& a;   // memory for so many rows
    const floatX* in;            // what enters the branch, (rows, C): the norm's output, or the residual stream
    floatX* cache;               // of this sublayer and all positions: (positions, cache_elements())
    int position, rows;          // the first of them, and how many
};

class Sublayer {
public:
    virtual ~Sublayer() = default;

    // ---- forward: norm, inside, join; or inside, and the norm is part of join

    const Norm& norm() const { return norm_; }
    virtual Norm::Output normed(const LayerActivations& a) const = 0;
    // From what the norm has made, or `in`, to what is projected back. All that backward needs is in `a` then, but for
    // what join leaves there.
    virtual void inside(const floatX* in, const LayerActivations& a) const = 0;
    // The same a second time, under Recompute::block: what was chosen from activations stays chosen.
    virtual void inside_again(const floatX* in, const LayerActivations& a) const { inside(in, a); }
    // out = in + the projection; then the norm of the sublayer that follows in the layer, if any, so that it can be
    // one kernel with the sum. Null too where norms come after.
    struct Next {
        const Norm& norm;
        Norm::Output to;
    };
    virtual void join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const = 0;
    // What join leaves in `a` for backward, made without the sum.
    virtual void join_inside(const LayerActivations&) const {}

    // ---- backward

    // Makes again what this level has not kept. Not for Recompute::block, where forward is run again.
    virtual void recompute(const floatX* in, const LayerActivations& a, Recompute level) const = 0;
    virtual void backward(const SublayerBackward& args) const = 0;

    // ---- generation

    virtual std::int64_t cache_elements() const { return 0; }   // of a position
    // From what enters to what is to be added to the residual stream, (rows, C), which it returns.
    virtual const floatX* cached(const CachedStep& step) const = 0;

protected:
    explicit Sublayer(Norm norm) : norm_(norm) {}

private:
    Norm norm_;
};

// What a sublayer is made with. Activations of its layer begin with `first`, in the order of its declaration.
struct SublayerPlace {
    const StageTools& tools;
    const ModelState<floatX>& parameters;
    int layer;
    std::size_t first;
};

struct SublayerType {
    std::vector<ParamRow> (*parameters)(const ModelConfig&);
    std::vector<KeptTensor> (*kept)(const RankSizes&);
    std::vector<ScratchTensor> (*scratch)(const RankSizes&);
    std::unique_ptr<Sublayer> (*make)(const SublayerPlace&);
};
const SublayerType& type_of(SublayerKind kind);
template <class Kind>
std::unique_ptr<Sublayer> make_sublayer(const SublayerPlace& place) {
    return std::make_unique<Kind>(place);
}
