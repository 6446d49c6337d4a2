// A mixture of experts: the sum over a token's K experts of w_e expert_e(in) [+ shared(in)], in place of the MLP. A
// router chooses and weighs (llmc/kernels/experts/router.cuh); every expert is an MLP without biases, and so are the
// shared experts, which take every token and are one MLP of their widths together.
//
// Each expert has as many rows as tokens were sent to it, which only the device knows (grouped_matmul.cuh). No token is
// dropped, unless training gives experts a capacity (capacity.cuh); dropped rows come after all others, which nobody
// multiplies or sends. Choices are kept at every recompute level and never made again. The mixture works in the
// residual region: tensor parallelism does not cut it, and under sequence parallelism each rank's gradients of its
// weights are parts of a sum, as norms' are.
//
// If experts are dealt out to ranks (--ep, expert_ranks.h), the work between dispatch and combine is on rows of tokens
// of all these ranks. There is room for as many as may come: ranks x tokens x the lesser of K and of the experts that a
// rank holds. The weights of rows travel with them. Rows of one chunk of experts travel while another chunk's are
// worked on: the first chunk's way to the experts, the last one's way back, and the counts are what nothing of these
// hides. Shared experts run during the first, gradients of weights during the second.
#pragma once

#include <optional>

#include "llmc/model/layer/expert_ranks.h"
#include "llmc/model/layer/linear.h"

// llmc/kernels/experts
struct GatheredRows;
struct GroupedShape;
struct RouterKind;
template <class Real>
struct ExpertActivation;

class Experts {
public:
    Experts(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Computes the output from in (Rr, C) and adds it to the residual stream: out (Rr, C), as `join` says. Null `out`:
    // computes only what backward reads.
    void forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                 const ExpertsActivations& a) const;
    // Computes again the activations that `level`, below Recompute::block, drops.
    void recompute(const ExpertsActivations& a, Recompute level) const;
    // Returns the gradient of args.in, (Rr, C), valid until the next call of a sublayer.
    const floatX* backward(const SublayerBackward& args, const ExpertsActivations& a) const;

    // Generation: returns the output, (rows, C), valid until the next call of a sublayer.
    const floatX* cached(const CachedStep& step, const ExpertsActivations& a) const;

private:
    struct Matrices {   // one matrix of each expert, (E, out, in)
        int index;
        const floatX* weights;
        int out, in;
    };
    const ModelConfig& model() const { return tools_.sizes.model; }
    int experts() const { return static_cast<int>(model().experts); }
    int chosen() const { return static_cast<int>(model().experts_per_token()); }
    int rows() const { return tools_.sizes.residual_rows(); }
    // Experts of this rank that work at once, neighbours, and their rows: from this rank's tokens, or if experts are
    // dealt out from those of all ranks.
    struct Chunk {
        int number, first_expert, experts, first_row, rows;
        const std::int32_t* offsets;   // (experts + 1), counted from first_row

        template <class T>
        T* of(T* all, int width) const {   // its rows of (M, width)
            return all + std::int64_t{first_row} * width;
        }
    };
    RouterKind router_kind() const;
    Matrices matrices(const ModelState<floatX>& parameters, const char* name, int of_experts) const;
    bool dealt() const { return tools_.sizes.ep > 1; }   // true if experts are dealt out
    Chunk chunk(const ExpertsActivations& a, int tokens, int number) const;
    // Calls work(chunk) for each chunk, in order, once the exchange that was started last has brought its rows.
    template <class Work>
    void for_chunks(const ExpertsActivations& a, int tokens, Work&& work) const;
    GroupedShape grouped(const Chunk& chunk, const Matrices& matrices) const;
    const floatX* weights(const Chunk& chunk, const Matrices& matrices) const;
    const floatX* weight_operands(const Chunk& chunk, const Matrices& matrices) const;
    const floatX* row_operands(const Chunk& chunk, const floatX* rows, int cols, const GatheredRows& gathered) const;
    struct HeldRows;   // says where the rows of this rank's experts are
    HeldRows held_rows(const ExpertsActivations& a, const floatX* in, const floatX* dout, int tokens) const;
    ExpertActivation<floatX> activation(const ExpertsActivations& a, const HeldRows& held, const Chunk& chunk) const;

    void choose(const floatX* in, int tokens, const ExpertsActivations& a, float capacity_factor, bool again) const;
    void order(const ExpertsActivations& a, int tokens, float capacity_factor) const;
    void count(const ExpertsActivations& a) const;
    void run(floatX* sum, const floatX* in, int tokens, const ExpertsActivations& a, float capacity_factor,
             bool again) const;
    void run_shared(floatX* out, const floatX* in, int tokens, const ExpertsActivations& a) const;
    void activate_shared(const ExpertsActivations& a, int tokens) const;
    void gather(const floatX* from, const ExpertsActivations& a, int tokens) const;
    void gather_and_count(const floatX* in, int tokens, const ExpertsActivations& a, bool again) const;
    void dispatch(floatX* to, const ExpertsActivations& a) const;
    void dispatch_with_weights(const ExpertsActivations& a, bool again) const;
    void return_rows(std::initializer_list<ExpertRanks::SentRows> rows, const ExpertsActivations& a,
                     const Chunk& chunk) const;
    void combine(floatX* sum, const floatX* made, const floatX* more, const ExpertsActivations& a, int tokens) const;
    void route_backward(const ExpertsActivations& a, float sequence_share) const;
    void add_to_totals(const ExpertsActivations& a) const;
    void experts_backward(const SublayerBackward& args, const ExpertsActivations& a) const;
    void shared_backward(floatX* din, const floatX* kept_dout, const SublayerBackward& args,
                         const ExpertsActivations& a) const;
    void queue_weight_gradients(const floatX* kept_dout, const SublayerBackward& args,
                                const ExpertsActivations& a) const;
    void queue_router_gradient(const SublayerBackward& args, const ExpertsActivations& a) const;
    void backward_out_weight(const GradientTarget& to, DType type, const Chunk& chunk, const HeldRows& held,
                             const ExpertsActivations& a) const;
    void backward_in_weight(const GradientTarget& to, DType type, const Chunk& chunk, const HeldRows& held,
                            const ExpertsActivations& a) const;

    const StageTools& tools_;
    int layer_;
    Matrices router_, in_, out_;
    std::optional<Linear> shared_in_, shared_out_;
    ExpertsScratch scratch_;
};
