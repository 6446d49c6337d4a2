#include "llmc/parallel/mesh_cut_points.h"

#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/parallel/context/context_parallel.h"
#include "llmc/parallel/tensor_parallel.h"

namespace {

// True if backward may reuse the memory of activations: delayed gradients of weights would still read them.
bool reuses_activations(const StageOptions& options) { return options.in_flight.delayed == 0; }

class TensorAndContextParallel : public TensorParallel {
public:
    TensorAndContextParallel(World& world, const StageOptions& options, Arena& arena, cudaStream_t stream)
        : TensorParallel(*world.group({Axis::tp}), options.tp_chunks, arena),
          context_(world, options.ulysses, arena, stream, reuses_activations(options)) {}

    void set_sizes(const RankSizes& sizes) override {
        TensorParallel::set_sizes(sizes);
        context_.set_sizes(sizes);
    }
    Positions positions() const override { return context_.positions(); }
    void attend(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& arguments, floatX* qkv,
                floatX* out, cudaStream_t stream) override {
        context_.attend(attention, arguments, qkv, out, stream);
    }
    void attend_backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& arguments,
                         floatX* dqkv, floatX* dout, const ReusableMemory& reusable, WeightGradientQueue& queue,
                         cudaStream_t stream) override {
        context_.attend_backward(attention, arguments, dqkv, dout, reusable, queue, stream);
    }
    std::optional<RingStep> ring_step(const AttentionChoice<floatX>& attention,
                                      const AttentionForward<floatX>& arguments) override {
        return context_.ring_step(attention, arguments);
    }

private:
    ContextParallel context_;
};

}   // namespace

std::unique_ptr<CutPoints> make_cut_points(World& world, const StageOptions& options, Arena& arena,
                                           cudaStream_t stream) {
    const MeshShape& mesh = options.place.mesh;
    if (mesh.tp > 1 && mesh.cp > 1) return std::make_unique<TensorAndContextParallel>(world, options, arena, stream);
    if (mesh.tp > 1) return std::make_unique<TensorParallel>(*world.group({Axis::tp}), options.tp_chunks, arena);
    if (mesh.cp > 1)
        return std::make_unique<ContextParallel>(world, options.ulysses, arena, stream, reuses_activations(options));
    return nullptr;
}
