#include "llmc/model/layer/experts.h"

#include "llmc/base/ensure.h"
#include "llmc/kernels/experts/activated_product.cuh"
#include "llmc/kernels/experts/capacity.cuh"
#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/router.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/rows/classifier.cuh"
#include "llmc/kernels/swiglu.cuh"
#include "llmc/model/layer/operands.h"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters and memory

namespace {

// Queues work if gradients of weights are delayed; else runs it at once, because what it reads is overwritten next.
template <class Work>
void now_or_later(const SublayerBackward& args, Work&& work) {
    if (!args.delayed()) return work();
    args.queue.add({.run = std::forward<Work>(work)});
}

}   // namespace

std::vector<ParamRow> Experts::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.expert_width(), E = config.experts;
    std::vector<ParamRow> rows;
    auto add = [&](const char* name, std::int64_t matrices, std::vector<std::int64_t> of_one, std::int64_t cols,
                   bool writes_residual, TensorCut cut = TensorCut::none) {
        TensorSpec tensor{.cols = cols, .cut = cut, .partial = {Axis::tp}};
        for (std::int64_t i = 0; i < matrices; i++) {
            tensor.blocks.insert(tensor.blocks.end(), of_one.begin(), of_one.end());
        }
        for (const std::int64_t block : tensor.blocks) tensor.rows += block;
        if (tensor.blocks.size() == 1) tensor.blocks.clear();
        rows.push_back({.name = name,
                        .tensor = std::move(tensor),
                        .init = Init::normal,
                        .writes_residual = writes_residual,
                        .decays = true,
                        .orthogonal = true});
    };
    auto hidden = [&](std::int64_t width) { return config.gated() ? std::vector{width, width} : std::vector{width}; };
    add("mlp.router.weight", 1, {E}, C, false);
    if (const std::int64_t S = config.shared_experts * F; S > 0) {
        add("mlp.shared.c_fc.weight", 1, hidden(S), C, false);
        add("mlp.shared.c_proj.weight", 1, {C}, S, true);
    }
    // last, and so next to each other: if they are dealt out, they are summed over other ranks than the rest
    add("mlp.experts.c_fc.weight", E, hidden(F), C, false, TensorCut::experts);
    add("mlp.experts.c_proj.weight", E, {C}, F, true, TensorCut::experts);
    return rows;
}

Experts::Experts(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      layer_(layer),
      router_(matrices(parameters, "mlp.router.weight", 1)),
      in_(matrices(parameters, "mlp.experts.c_fc.weight", experts())),
      out_(matrices(parameters, "mlp.experts.c_proj.weight", experts())),
      scratch_(tools.workspace.layer.experts) {
    const MlpKind kind = model().mlp;
    ENSURE(traits_of(kind).of_experts && (kind == MlpKind::gelu || kind == MlpKind::swiglu),
           "experts know GELU and SwiGLU, not MLP kind ", traits_of(kind).name);
    if (model().shared_experts == 0) return;
    shared_in_.emplace(tools, parameters, "mlp.shared.c_fc", layer);
    shared_out_.emplace(tools, parameters, "mlp.shared.c_proj", layer);
}

Experts::Matrices Experts::matrices(const ModelState<floatX>& parameters, const char* name, int of_experts) const {
    const int index = parameters.index(name, layer_);
    const TensorSpec& tensor = parameters.storage().table()[index].tensor;
    return {index, parameters.tensor(index), static_cast<int>(tensor.rows) / of_experts, static_cast<int>(tensor.cols)};
}

RouterKind Experts::router_kind() const {
    return {model().router == RouterScore::sigmoid, model().router_norm, static_cast<float>(model().router_scale)};
}

Experts::Chunk Experts::chunk(const ExpertsActivations& a, int tokens, int number) const {
    if (!dealt()) return {number, 0, experts(), 0, tokens * chosen(), a.offsets};
    const ExpertRanks::HeldChunk held = tools_.expert_ranks.held(a.index, number);
    return {number,         held.first_expert, held.experts,
            held.first_row, held.rows,         a.held_offsets + held.first_expert + number};
}

template <class Work>
void Experts::for_chunks(const ExpertsActivations& a, int tokens, Work&& work) const {
    for (int number = 0; number < tools_.expert_ranks.chunks(); number++) {
        tools_.expert_ranks.wait(number, tools_.stream);
        work(chunk(a, tokens, number));
    }
}

GroupedShape Experts::grouped(const Chunk& chunk, const Matrices& matrices) const {
    return {chunk.experts, chunk.rows, matrices.out, matrices.in, chunk.offsets};
}

const floatX* Experts::weights(const Chunk& chunk, const Matrices& matrices) const {
    return matrices.weights + std::int64_t{chunk.first_expert} * matrices.out * matrices.in;
}

// Return operands of a chunk's products. `rows` are the chunk's, or those that `gathered` tells of.
const floatX* Experts::weight_operands(const Chunk& chunk, const Matrices& matrices) const {
    return weight_operand(tools_, weights(chunk, matrices), matrices.out, matrices.in, chunk.experts);
}
const floatX* Experts::row_operands(const Chunk& chunk, const floatX* rows, int cols,
                                    const GatheredRows& gathered) const {
    const bool gathers = gathered.source != nullptr;
    return row_operand(tools_, gathers ? rows : chunk.of(rows, cols), gathers ? gathered.tokens : chunk.rows, cols);
}

// On one device they are rows of tokens, which matmuls gather in the load. If experts are dealt out, rows have come
// from all ranks in the order of experts, and go back.
struct Experts::HeldRows {
    const floatX *in, *dout;      // inputs, and gradients of outputs: the experts' rows, or those of which `gathered`
    GatheredRows gathered;        // says which belong to experts
    const float* weight;          // element i is row i's, or element source[i]
    const std::int32_t* source;   // or null
    float* dweight;               // as `weight`
    const floatX *out, *din;      // outputs, and gradients of inputs, of this rank's tokens, in the order of experts
};
Experts::HeldRows Experts::held_rows(const ExpertsActivations& a, const floatX* in, const floatX* dout,
                                     int tokens) const {
    const ExpertsScratch& s = scratch_;
    if (!dealt()) return {in, dout, {a.source, tokens, chosen()}, a.weight, a.source, s.dweight, s.out, s.din};
    return {a.in, s.dout, {}, a.held_weight, nullptr, s.held_dweight, s.own_rows, s.own_rows};
}

ExpertActivation<floatX> Experts::activation(const ExpertsActivations& a, const HeldRows& held,
                                             const Chunk& chunk) const {
    return {chunk.of(a.hidden, in_.out), chunk.of(held.weight, 1), held.source, chunk.rows, out_.in, model().gated()};
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Experts::choose(const floatX* in, int tokens, const ExpertsActivations& a, float capacity_factor,
                     bool again) const {
    const int E = experts(), K = chosen();
    float* const logits = a.logits;
    std::int32_t* const index = a.index;
    grouped_forward(logits, in, router_.weights, {1, tokens, router_.out, router_.in, nullptr}, tools_.stream);
    const bool given = again || tools_.expert_ranks.replays(index, layer_, tools_.sizes, tools_.stream);
    router_forward({.index = index,
                    .weight = a.weight,
                    .logits = logits,
                    .bias = tools_.router_bias ? tools_.router_bias + std::int64_t{layer_} * E : nullptr,
                    .rows = tokens,
                    .E = E,
                    .K = K,
                    .kind = router_kind(),
                    .again = given,
                    .in_turn = tools_.choices.force_balance},
                   tools_.stream);
    if (!again) tools_.expert_ranks.has_chosen(index, logits, layer_, tools_.sizes, tools_.stream);
    order(a, tokens, capacity_factor);
}

// Orders rows by expert; those that are over an expert's capacity come last.
void Experts::order(const ExpertsActivations& a, int tokens, float capacity_factor) const {
    const int E = experts(), K = chosen();
    std::int32_t* const all = capacity_factor > 0 ? scratch_.all_offsets : a.offsets;
    order_by_expert(all, a.source, a.row, a.index, tokens, E, K, tools_.stream);
    if (capacity_factor <= 0) return;
    const int capacity = expert_capacity(capacity_factor, tokens, E, K);
    drop_over_capacity(a.offsets, a.source, a.row, all, a.index, capacity, tokens, E, K, tools_.stream);
}

// Counts the tokens of each expert in each whole sequence, for the balance loss.
void Experts::count(const ExpertsActivations& a) const {
    std::int32_t* const counts = a.counts;
    if (counts == nullptr) return;
    const auto n = static_cast<std::size_t>(tools_.sizes.B) * static_cast<std::size_t>(experts());
    CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof(std::int32_t) * n, tools_.stream));
    count_experts(counts, a.index, rows(), experts(), chosen(), tools_.expert_ranks.sequences(tools_.sizes),
                  tools_.stream);
    tools_.expert_ranks.add_over_sequences(counts, n, tools_.stream);
}

// If experts are dealt out, gathers rows of tokens, (tokens, C), to be sent.
void Experts::gather(const floatX* from, const ExpertsActivations& a, int tokens) const {
    if (!dealt()) return;
    gather_rows(scratch_.own_rows, from, a.source, tokens * chosen(), tokens, chosen(), tools_.sizes.C, tools_.stream);
    tools_.expert_ranks.follow(tools_.stream);
}

// Starts sending the rows that gather() has made, to `to`: before any work that may run beside it.
void Experts::dispatch(floatX* to, const ExpertsActivations& a) const {
    tools_.expert_ranks.dispatch({ExpertRanks::rows(to, scratch_.own_rows, tools_.sizes.C)}, a.index);
}

// Gathers rows in forward: their weights travel too, unless they are kept from before, and the counts first.
void Experts::gather_and_count(const floatX* in, int tokens, const ExpertsActivations& a, bool again) const {
    if (dealt() && !again) take_values(scratch_.own_values, a.weight, a.source, tokens * chosen(), tools_.stream);
    gather(in, a, tokens);
    if (again) return;
    tools_.expert_ranks.begin_exchange(a.index, a.offsets, tokens * chosen(), experts(), scratch_.counts);
}
void Experts::dispatch_with_weights(const ExpertsActivations& a, bool again) const {
    if (again) {
        dispatch(a.in, a);
    } else {
        tools_.expert_ranks.wait_for_counts(tools_.stream);
        tools_.expert_ranks.dispatch({ExpertRanks::rows(a.in, scratch_.own_rows, tools_.sizes.C),
                                      ExpertRanks::rows(a.held_weight, scratch_.own_values, 1)},
                                     a.index);
    }
    tools_.expert_ranks.copy_held_offsets(a.held_offsets, a.index, tools_.stream);
}

// Starts sending back what a chunk has made.
void Experts::return_rows(std::initializer_list<ExpertRanks::SentRows> rows, const ExpertsActivations& a,
                          const Chunk& chunk) const {
    tools_.expert_ranks.follow(tools_.stream);
    tools_.expert_ranks.combine(rows, a.index, chunk.number);
}

// Adds up what the experts have made for each token, and `more` (tokens, C) or null.
void Experts::combine(floatX* sum, const floatX* made, const floatX* more, const ExpertsActivations& a,
                      int tokens) const {
    tools_.expert_ranks.wait(tools_.expert_ranks.chunks() - 1, tools_.stream);
    combine_rows(sum, made, more, a.row, a.offsets + experts(), tokens, chosen(), tools_.sizes.C, tools_.stream);
}

void Experts::activate_shared(const ExpertsActivations& a, int tokens) const {
    const int S = shared_out_->in_channels();
    floatX* const out = a.shared_activated;
    if (model().gated()) return swiglu_forward<floatX>(out, a.shared_hidden, tokens, S, tools_.stream);
    gelu_forward<floatX>(out, a.shared_hidden, std::int64_t{tokens} * S, tools_.stream);
}

// Runs the shared experts; `out` (tokens, C) or null.
void Experts::run_shared(floatX* out, const floatX* in, int tokens, const ExpertsActivations& a) const {
    if (!shared_in_) return;
    shared_in_->forward(a.shared_hidden, in, tokens);
    activate_shared(a, tokens);
    if (out != nullptr) shared_out_->forward(out, a.shared_activated, tokens);
}

// Computes sum (tokens, C), or if that is null only the activations. Rows travel while the shared experts run, and then
// while the experts of another chunk do.
void Experts::run(floatX* sum, const floatX* in, int tokens, const ExpertsActivations& a, float capacity_factor,
                  bool again) const {
    choose(in, tokens, a, capacity_factor, again);
    gather_and_count(in, tokens, a, again);
    run_shared(sum, in, tokens, a);
    dispatch_with_weights(a, again);
    const HeldRows held = held_rows(a, in, nullptr, tokens);
    for_chunks(a, tokens, [&](const Chunk& chunk) {
        floatX* const activated = chunk.of(a.activated, out_.in);
        grouped_forward_activated(chunk.of(a.hidden, in_.out), activated,
                                  row_operands(chunk, held.in, in_.in, held.gathered), weight_operands(chunk, in_),
                                  grouped(chunk, in_), activation(a, held, chunk), tools_.stream, held.gathered);
        if (sum == nullptr) return;
        floatX* const out = chunk.of(scratch_.out, out_.out);
        grouped_forward(out, row_operands(chunk, a.activated, out_.in, {}), weight_operands(chunk, out_),
                        grouped(chunk, out_), tools_.stream);
        return_rows({ExpertRanks::rows(scratch_.own_rows, scratch_.out, out_.out)}, a, chunk);
    });
    if (sum != nullptr) combine(sum, held.out, shared_out_ ? sum : nullptr, a, tokens);
}

void Experts::forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                      const ExpertsActivations& a) const {
    floatX* const sum = out ? tools_.workspace.branch_out : nullptr;
    run(sum, in, rows(), a, pass.capacity_factor, pass.again);
    if (!pass.again) count(a);
    if (out) add_branch(out, sum, join, tools_);
}

const floatX* Experts::cached(const CachedStep& step, const ExpertsActivations& a) const {
    ENSURE(!dealt(), "a sequence is generated on one device");
    floatX* const sum = tools_.workspace.branch_out;
    run(sum, step.in, step.rows, a, 0, false);
    return sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Experts::recompute(const ExpertsActivations& a, Recompute level) const {
    if (level < Recompute::gelu) return;
    const HeldRows held = held_rows(a, nullptr, nullptr, rows());
    for (int number = 0; number < tools_.expert_ranks.chunks(); number++) {
        const Chunk part = chunk(a, rows(), number);
        expert_activation(part.of(a.activated, out_.in), activation(a, held, part), tools_.stream);
    }
    if (shared_in_) activate_shared(a, rows());
}

// Adds the gradient of a group of matrices' weights, from `first` on, to where `to` says.
template <class A>
static void add_weight_gradient(const GradientTarget& to, std::int64_t first, DType type, const A* dout,
                                const floatX* in, const GroupedShape& shape, cudaStream_t stream,
                                const GatheredRows& dout_rows = {}, const GatheredRows& in_rows = {}) {
    with_gradient_type<floatX>(type, [&]<class G> {
        grouped_weight_gradient(to.data.as<G>() + first, dout, in, shape, to.accumulate, stream, dout_rows, in_rows);
    });
}

// Replaces logits by their gradient.
void Experts::route_backward(const ExpertsActivations& a, float sequence_share) const {
    const auto E = static_cast<float>(experts()), K = static_cast<float>(chosen());
    const auto S = static_cast<float>(tools_.sizes.whole_T);
    router_backward({.dlogits = a.logits,
                     .logits = a.logits,
                     .dweight = scratch_.dweight,
                     .index = a.index,
                     .counts = a.counts,
                     .rows = rows(),
                     .E = experts(),
                     .K = chosen(),
                     .kind = router_kind(),
                     .sequences = tools_.expert_ranks.sequences(tools_.sizes),
                     .balance = static_cast<float>(model().aux_loss) * (E / K) / (S * S) * sequence_share,
                     .z = 2 * static_cast<float>(model().router_z_loss) / S * sequence_share,
                     .losses = scratch_.losses},
                    tools_.stream);
    add_to_totals(a);
}

// Adds to the step's totals. Called in backward, so that a micro-batch counts once and a mere forward does not.
void Experts::add_to_totals(const ExpertsActivations& a) const {
    const ExpertTotals& totals = tools_.expert_totals;
    const int n = rows();
    if (totals.counts == nullptr) return;
    if (dealt()) totals.held_rows[layer_] += tools_.expert_ranks.held_rows(a.index);
    count_experts(totals.counts + std::int64_t{layer_} * experts(), a.index, n, experts(), chosen(), {n, n, n, 0},
                  tools_.stream);
    const double factors[] = {model().aux_loss, model().router_z_loss};
    for (int i = 0; i < 2; i++) {
        if (factors[i] != 0) sum_losses(totals.losses + i, scratch_.losses + i * n, n, 1.0f, true, tools_.stream);
    }
}

// Computes din, the gradient of the shared experts' input; their hidden activations become their gradient.
void Experts::shared_backward(floatX* din, const floatX* kept_dout, const SublayerBackward& args,
                              const ExpertsActivations& a) const {
    const int S = shared_out_->in_channels(), count = rows();
    floatX *const dhidden = a.shared_hidden, *const dactivated = scratch_.shared_dactivated;
    shared_out_->backward_input(dactivated, args.dout, count);
    if (model().gated()) {
        swiglu_backward<floatX>(dhidden, dactivated, dhidden, count, S, tools_.stream);
    } else {
        gelu_backward<floatX>(dhidden, dactivated, dhidden, std::int64_t{count} * S, tools_.stream);
    }
    now_or_later(args, [=, this, in = args.in, &gradients = args.gradients] {
        shared_out_->backward_weight(gradients, kept_dout, a.shared_activated, count);
        shared_in_->backward_weight(gradients, dhidden, in, count);
    });
    shared_in_->backward_input(din, dhidden, count);
}

// Compute the gradients of a chunk's weights: of the second matrices from held.dout, of the first from a.hidden, which
// has its gradient.
void Experts::backward_out_weight(const GradientTarget& to, DType type, const Chunk& chunk, const HeldRows& held,
                                  const ExpertsActivations& a) const {
    add_weight_gradient(to, weights(chunk, out_) - out_.weights, type, chunk.of(held.dout, out_.out),
                        chunk.of(a.activated, out_.in), grouped(chunk, out_), tools_.stream, held.gathered);
}
void Experts::backward_in_weight(const GradientTarget& to, DType type, const Chunk& chunk, const HeldRows& held,
                                 const ExpertsActivations& a) const {
    add_weight_gradient(to, weights(chunk, in_) - in_.weights, type, chunk.of(a.hidden, in_.out),
                        chunk.of(held.in, in_.in), grouped(chunk, in_), tools_.stream, {}, held.gathered);
}

// Queues the gradients of the experts' weights. If experts are dealt out, the outputs' gradient is sent again, because
// the inputs' took its place.
void Experts::queue_weight_gradients(const floatX* kept_dout, const SublayerBackward& args,
                                     const ExpertsActivations& a) const {
    args.queue.add({.run = [=, this, in = args.in, &gradients = args.gradients] {
        gather(kept_dout, a, rows());
        dispatch(scratch_.dout, a);
        const HeldRows held = held_rows(a, in, kept_dout, rows());
        const GradientTarget of_out = gradients.next(out_.index), of_in = gradients.next(in_.index);
        for_chunks(a, rows(), [&](const Chunk& chunk) {
            backward_out_weight(of_out, gradients.type(), chunk, held, a);
            backward_in_weight(of_in, gradients.type(), chunk, held, a);
        });
    }});
}

void Experts::queue_router_gradient(const SublayerBackward& args, const ExpertsActivations& a) const {
    now_or_later(args, [=, this, in = args.in, &gradients = args.gradients] {
        add_weight_gradient<float>(gradients.next(router_.index), 0, gradients.type(), a.logits, in,
                                   {1, rows(), router_.out, router_.in, nullptr}, tools_.stream);
    });
}

// Computes din (M, C), the gradient of the experts' inputs, and that of the rows' weights, while rows of other chunks
// travel; and the gradients of the experts' weights, unless these are delayed.
void Experts::experts_backward(const SublayerBackward& args, const ExpertsActivations& a) const {
    const cudaStream_t stream = tools_.stream;
    floatX* const dhidden = a.hidden;
    const HeldRows held = held_rows(a, args.in, args.dout, rows());
    GradientTarget of_out, of_in;
    const DType type = args.gradients.type();
    if (!args.delayed()) of_out = args.gradients.next(out_.index), of_in = args.gradients.next(in_.index);
    for_chunks(a, rows(), [&](const Chunk& chunk) {
        if (!args.delayed()) backward_out_weight(of_out, type, chunk, held, a);
        floatX* const dactivated = chunk.of(scratch_.dactivated, out_.in);
        grouped_input_gradient(dactivated, row_operands(chunk, held.dout, out_.out, held.gathered),
                               weight_operands(chunk, out_), grouped(chunk, out_), false, stream, held.gathered);
        expert_activation_backward(chunk.of(dhidden, in_.out), chunk.of(held.dweight, 1), dactivated,
                                   activation(a, held, chunk), stream);
        grouped_input_gradient(chunk.of(scratch_.din, in_.in), row_operands(chunk, dhidden, in_.out, {}),
                               weight_operands(chunk, in_), grouped(chunk, in_), false, stream);
        return_rows({ExpertRanks::rows(scratch_.own_rows, scratch_.din, in_.in),
                     ExpertRanks::rows(scratch_.own_values, scratch_.held_dweight, 1)},
                    a, chunk);
        if (!args.delayed()) backward_in_weight(of_in, type, chunk, held, a);
    });
}

const floatX* Experts::backward(const SublayerBackward& args, const ExpertsActivations& a) const {
    const cudaStream_t stream = tools_.stream;
    const int tokens = rows(), K = chosen();
    floatX* const din = tools_.workspace.dnormed;
    const floatX* const kept_dout = args.keep(args.kept_dout, args.dout, tools_.sizes.residual_elements(), stream);
    gather(args.dout, a, tokens);
    dispatch(scratch_.dout, a);
    if (args.delayed()) queue_weight_gradients(kept_dout, args, a);
    if (shared_in_) shared_backward(din, kept_dout, args, a);
    experts_backward(args, a);
    combine(din, held_rows(a, nullptr, nullptr, tokens).din, shared_in_ ? din : nullptr, a, tokens);
    if (dealt()) take_values(scratch_.dweight, scratch_.own_values, a.row, tokens * K, stream);
    if (args.pass.capacity_factor > 0) {
        std::int32_t* const dropped = tools_.expert_totals.dropped;
        forget_dropped(scratch_.dweight, dropped ? dropped + layer_ : nullptr, a.offsets, a.source, tokens, experts(),
                       K, stream);
    }
    route_backward(a, args.pass.sequence_share);
    queue_router_gradient(args, a);
    grouped_input_gradient(din, a.logits, router_.weights, {1, tokens, router_.out, router_.in, nullptr}, true, stream);
    return din;
}
