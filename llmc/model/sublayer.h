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
    // Memory for a copy of the output's gradient, (Rr, C), which delayed gradients of weights read: the original
    // changes before. Null: not delayed. (Other copies take the place of activations that nobody reads again.)
    floatX* kept_dout;
    void* norm_aside;         // norm_elements(), or null (Norm::Backward)
    const LentMemory& lent;   // memory of sublayers whose backward has run
    AnyGradients& gradients;
    WeightGradientQueue& queue;

    bool delayed() const { return kept_dout != nullptr; }
};

// A step of generation: some positions of one sequence at once, on one device.
struct CachedStep {
    const LayerActivations& a;   // memory for `rows` rows
    const floatX* in;            // input of the branch, (rows, C): the norm's output, or the residual stream
    floatX* cache;               // all positions of this sublayer: (positions, cache_elements())
    int position, rows;          // first position, number of positions
};

class Sublayer {
public:
    virtual ~Sublayer() = default;

    // ---- forward: norm, inside, join; or inside, and the norm is part of join

    const Norm& norm() const { return norm_; }
    virtual Norm::Output normed(const LayerActivations& a) const = 0;
    // Computes from the norm's output, or `in`, to the input of the projection. Leaves in `a` all that backward needs,
    // but for what join leaves there.
    virtual void inside(const floatX* in, const LayerActivations& a) const = 0;
    // Runs inside() again under Recompute::block; choices made from activations are not made again.
    virtual void inside_again(const floatX* in, const LayerActivations& a) const { inside(in, a); }
    // Computes out = in + the projection, then `next`, the norm of the following sublayer of the layer, if any: the two
    // can be one kernel. `next` is null too if norms come after sublayers.
    struct Next {
        const Norm& norm;
        Norm::Output to;
    };
    virtual void join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const = 0;
    // Computes again what join leaves in `a` for backward, without the sum.
    virtual void join_inside(const LayerActivations&) const {}

    // ---- backward

    // Computes again the activations that `level` drops. Not for Recompute::block: the layer then runs forward again.
    virtual void recompute(const floatX* in, const LayerActivations& a, Recompute level) const = 0;
    virtual void backward(const SublayerBackward& args) const = 0;

    // ---- generation

    virtual std::int64_t cache_elements() const { return 0; }   // per position
    // Computes the branch from step.in, and returns what is to be added to the residual stream, (rows, C).
    virtual const floatX* cached(const CachedStep& step) const = 0;

protected:
    explicit Sublayer(Norm norm) : norm_(norm) {}

private:
    Norm norm_;
};

// Arguments of a sublayer's constructor. `first`: index of its first kept tensor among those of its layer; the others
// follow as declared.
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
