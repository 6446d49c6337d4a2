#include "llmc/model/sublayers/experts.h"

#include "llmc/base/ensure.h"
#include "llmc/kernels/experts/capacity.cuh"
#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/router.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/rows/classifier.cuh"
#include "llmc/kernels/rows/residual.cuh"
#include "llmc/kernels/swiglu.cuh"
#include "llmc/model/sublayers/expert_ranks.h"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters and memory

namespace {

// Queues work if gradients of weights are delayed; else runs it at once, because what it reads is overwritten next.
template <class Work>
void now_or_later(const SublayerBackward& args, Work&& work) {
    if (!args.delayed()) return work();
    args.queue.add(std::forward<Work>(work));
}

}   // namespace

std::vector<ParamRow> Experts::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.expert_width(), E = config.experts;
    std::vector<ParamRow> rows = Norm::parameters("ln_2", config);
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
      norm_(tools, parameters, "ln_2", layer),
      layer_(layer),
      router_(matrices(parameters, "mlp.router.weight", 1)),
      in_(matrices(parameters, "mlp.experts.c_fc.weight", experts())),
      out_(matrices(parameters, "mlp.experts.c_proj.weight", experts())),
      scratch_(tools.workspace.layer.experts) {
    const MlpKind kind = model().mlp;
    ENSURE(traits_of(kind).of_experts && (kind == MlpKind::gelu || kind == MlpKind::swiglu),
           "experts know GELU and SwiGLU, not MLP kind ", traits_of(kind).name);
    if (model().shared_experts == 0) return;
    auto linear = [&](const char* name) {
        return Linear(tools_.matmul, parameters, parameters.index(name, layer), -1);
    };
    shared_in_.emplace(linear("mlp.shared.c_fc.weight"));
    shared_out_.emplace(linear("mlp.shared.c_proj.weight"));
}

Experts::Matrices Experts::matrices(const ModelState<floatX>& parameters, const char* name, int of_experts) const {
    const int index = parameters.index(name, layer_);
    const TensorSpec& tensor = parameters.storage().table()[index].tensor;
    return {index, parameters.tensor(index), static_cast<int>(tensor.rows) / of_experts, static_cast<int>(tensor.cols)};
}

RouterKind Experts::router_kind() const {
    return {model().router == RouterScore::sigmoid, model().router_norm, static_cast<float>(model().router_scale)};
}

int Experts::held_rows(const ExpertsActivations& a, int tokens) const {
    return dealt() ? tools_.expert_ranks.held_rows(a.index) : tokens * chosen();
}

GroupedShape Experts::grouped(const ExpertsActivations& a, const Matrices& matrices, int tokens) const {
    return {experts() / tools_.sizes.ep, held_rows(a, tokens), matrices.out, matrices.in,
            dealt() ? a.held_offsets : a.offsets};
}

ExpertActivation<floatX> Experts::activation(const ExpertsActivations& a, int tokens) const {
    return {
        a.hidden,       dealt() ? a.held_weight : a.weight, dealt() ? nullptr : a.source, held_rows(a, tokens), out_.in,
        model().gated()};
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Experts::choose(const floatX* normed, int tokens, const ExpertsActivations& a, bool again) const {
    const int E = experts(), K = chosen();
    float* const logits = a.logits;
    std::int32_t* const index = a.index;
    grouped_forward(logits, normed, router_.weights, {1, tokens, router_.out, router_.in, nullptr}, tools_.stream);
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
                    .in_turn = tools_.force_balance},
                   tools_.stream);
    if (!again) tools_.expert_ranks.has_chosen(index, logits, layer_, tools_.sizes, tools_.stream);
    order(a, tokens);
    if (!dealt()) return;
    ExpertRanks& ranks = tools_.expert_ranks;
    if (!again) {
        ranks.begin_exchange(index, a.offsets, tokens * K, E, scratch_.counts, tools_.stream);
    }
    ranks.copy_held_offsets(a.held_offsets, index, tools_.stream);
}

// Orders rows by expert; those that are over an expert's capacity come last.
void Experts::order(const ExpertsActivations& a, int tokens) const {
    const int E = experts(), K = chosen();
    std::int32_t* const all = has_capacity() ? scratch_.all_offsets : a.offsets;
    order_by_expert(all, a.source, a.row, a.index, tokens, E, K, tools_.stream);
    if (!has_capacity()) return;
    const int capacity = expert_capacity(tools_.capacity_factor, tokens, E, K);
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

// Gathers rows of tokens, (tokens, C), for the experts that take them, and sends them if experts are dealt out.
void Experts::to_experts(floatX* to, const floatX* from, const ExpertsActivations& a, int tokens) const {
    const int C = tools_.sizes.C;
    floatX* const local = dealt() ? scratch_.own_rows : to;
    gather_rows(local, from, a.source, tokens * chosen(), tokens, chosen(), C, tools_.stream);
    if (dealt()) tools_.expert_ranks.dispatch(to, local, C, a.index, tools_.stream);
}

// Returns the experts' outputs for the rows of this rank's tokens, in the order of experts.
const floatX* Experts::from_experts(const floatX* from, const ExpertsActivations& a) const {
    if (!dealt()) return from;
    tools_.expert_ranks.combine(scratch_.own_rows, from, tools_.sizes.C, a.index, tools_.stream);
    return scratch_.own_rows;
}

void Experts::send_weights(const ExpertsActivations& a) const {
    if (!dealt()) return;
    take_values(scratch_.own_values, a.weight, a.source, rows() * chosen(), tools_.stream);
    tools_.expert_ranks.dispatch(a.held_weight, scratch_.own_values, 1, a.index, tools_.stream);
}

void Experts::receive_weight_gradients(const ExpertsActivations& a) const {
    if (!dealt()) return;
    tools_.expert_ranks.combine(scratch_.own_values, scratch_.held_dweight, 1, a.index, tools_.stream);
    take_values(scratch_.dweight, scratch_.own_values, a.row, rows() * chosen(), tools_.stream);
}

void Experts::activate(const ExpertsActivations& a, int tokens) const {
    expert_activation(a.activated, activation(a, tokens), tools_.stream);
    if (shared_in_) activate_shared(a, tokens);
}

void Experts::activate_shared(const ExpertsActivations& a, int tokens) const {
    const int S = shared_out_->in_channels();
    floatX* const out = a.shared_activated;
    if (model().gated()) return swiglu_forward<floatX>(out, a.shared_hidden, tokens, S, tools_.stream);
    gelu_forward<floatX>(out, a.shared_hidden, std::int64_t{tokens} * S, tools_.stream);
}

void Experts::run(const floatX* normed, int tokens, const ExpertsActivations& a, bool again) const {
    choose(normed, tokens, a, again);
    to_experts(a.in, normed, a, tokens);
    if (!again) send_weights(a);   // the weights are kept
    grouped_forward(a.hidden, a.in, in_.weights, grouped(a, in_, tokens), tools_.stream);
    if (shared_in_) shared_in_->forward(a.shared_hidden, normed, tokens, tools_.stream);
    activate(a, tokens);
}

void Experts::forward(const SublayerForward& args, const ExpertsActivations& a) const {
    run(a.norm.out, rows(), a, args.again);
    if (!args.again) count(a);
    if (args.out == nullptr) return;
    add_branch(args, combined(a, rows()), tools_);
}

// Runs the second matrices, and adds up their outputs for each token.
floatX* Experts::combined(const ExpertsActivations& a, int tokens) const {
    floatX* const sum = tools_.workspace.branch_out;
    grouped_forward(scratch_.out, a.activated, out_.weights, grouped(a, out_, tokens), tools_.stream);
    const floatX* const made = from_experts(scratch_.out, a);
    if (shared_out_) shared_out_->forward(sum, a.shared_activated, tokens, tools_.stream);
    combine_rows(sum, made, shared_out_ ? sum : nullptr, a.row, a.offsets + experts(), tokens, chosen(), tools_.sizes.C,
                 tools_.stream);
    return sum;
}

const floatX* Experts::cached(const CachedStep& step, const ExpertsActivations& a) const {
    ENSURE(!dealt(), "a sequence is generated on one device");
    run(step.in, step.rows, a, false);
    return combined(a, step.rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Experts::recompute(const floatX* in, const ExpertsActivations& a, Recompute level) const {
    if (level >= Recompute::gelu) activate(a, rows());
    if (level < Recompute::gelu_norm) return;
    norm_.forward({a.norm.out}, in);   // statistics are kept
    if (!dealt()) to_experts(a.in, a.norm.out, a, rows());
}

template <class A>
void Experts::backward_weight(Gradients& gradients, const Matrices& matrices, const GroupedShape& shape, const A* dout,
                              const floatX* in) const {
    const GradientTarget to = gradients.next(matrices.index);
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        grouped_weight_gradient(to.data.as<G>(), dout, in, shape, to.accumulate, tools_.stream);
    });
}

// Replaces logits by their gradient.
void Experts::route_backward(const ExpertsActivations& a) const {
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
                     .balance = static_cast<float>(model().aux_loss) * (E / K) / (S * S) * tools_.sequence_share,
                     .z = 2 * static_cast<float>(model().router_z_loss) / S * tools_.sequence_share,
                     .losses = scratch_.losses},
                    tools_.stream);
    add_to_totals(a);
}

// Adds to the step's totals. Called in backward, so that a micro-batch counts once and a mere forward does not.
void Experts::add_to_totals(const ExpertsActivations& a) const {
    const ExpertTotals& totals = tools_.expert_totals;
    const int n = rows();
    if (totals.counts == nullptr) return;
    if (dealt()) totals.held_rows[layer_] += held_rows(a, n);
    count_experts(totals.counts + std::int64_t{layer_} * experts(), a.index, n, experts(), chosen(), {n, n, n, 0},
                  tools_.stream);
    const double factors[] = {model().aux_loss, model().router_z_loss};
    for (int i = 0; i < 2; i++) {
        if (factors[i] != 0) sum_losses(totals.losses + i, scratch_.losses + i * n, n, 1.0f, true, tools_.stream);
    }
}

// Computes din, the gradient of the shared experts' input; their hidden activations become their gradient.
void Experts::shared_backward(floatX* din, const floatX* kept_dresidual, const SublayerBackward& args,
                              const ExpertsActivations& a) const {
    const int S = shared_out_->in_channels(), count = rows();
    floatX *const dhidden = a.shared_hidden, *const dactivated = scratch_.shared_dactivated;
    shared_out_->backward_input(dactivated, args.dresidual, count, tools_.stream);
    if (model().gated()) {
        swiglu_backward<floatX>(dhidden, dactivated, dhidden, count, S, tools_.stream);
    } else {
        gelu_backward<floatX>(dhidden, dactivated, dhidden, std::int64_t{count} * S, tools_.stream);
    }
    now_or_later(args, [=, this, &gradients = args.gradients] {
        shared_out_->backward_weight(gradients, kept_dresidual, a.shared_activated, count, tools_.stream);
        shared_in_->backward_weight(gradients, dhidden, a.norm.out, count, tools_.stream);
    });
    shared_in_->backward_input(din, dhidden, count, tools_.stream);
}

// Queues the gradient of the second matrices' weights, which reads dout (M, C), gathered from `kept_dresidual` (Rr, C).
void Experts::queue_out_gradient(const floatX* kept_dresidual, const SublayerBackward& args,
                                 const ExpertsActivations& a) const {
    now_or_later(args, [=, this, &gradients = args.gradients, tokens = rows(), delayed = args.delayed()] {
        if (delayed) to_experts(scratch_.dout, kept_dresidual, a, tokens);
        backward_weight(gradients, out_, grouped(a, out_, tokens), scratch_.dout, a.activated);
    });
}

void Experts::backward(const SublayerBackward& args, const ExpertsActivations& a) const {
    const cudaStream_t stream = tools_.stream;
    const int tokens = rows();
    floatX *const dhidden = a.hidden, *const dnormed = tools_.workspace.dnormed;
    const floatX* const kept_dresidual =
        keep_gradient(args, args.delayed_dout, args.dresidual, tools_.sizes.residual_elements(), stream);
    to_experts(scratch_.dout, args.dresidual, a, tokens);
    queue_out_gradient(kept_dresidual, args, a);
    grouped_input_gradient(scratch_.dactivated, scratch_.dout, out_.weights, grouped(a, out_, tokens), false, stream);
    expert_activation_backward(dhidden, dealt() ? scratch_.held_dweight : scratch_.dweight, scratch_.dactivated,
                               activation(a, tokens), stream);
    receive_weight_gradients(a);
    if (has_capacity()) {
        std::int32_t* const dropped = tools_.expert_totals.dropped;
        forget_dropped(scratch_.dweight, dropped ? dropped + layer_ : nullptr, a.offsets, a.source, tokens, experts(),
                       chosen(), stream);
    }
    route_backward(a);
    const GroupedShape router{1, tokens, router_.out, router_.in, nullptr};
    now_or_later(args, [=, this, &gradients = args.gradients] {
        backward_weight(gradients, in_, grouped(a, in_, tokens), dhidden, a.in);
        backward_weight(gradients, router_, router, a.logits, a.norm.out);
    });
    grouped_input_gradient(scratch_.din, dhidden, in_.weights, grouped(a, in_, tokens), false, stream);
    const floatX* const made = from_experts(scratch_.din, a);
    if (shared_in_) shared_backward(dnormed, kept_dresidual, args, a);
    combine_rows(dnormed, made, shared_in_ ? dnormed : nullptr, a.row, a.offsets + experts(), tokens, chosen(),
                 tools_.sizes.C, stream);
    grouped_input_gradient(dnormed, a.logits, router_.weights, router, true, stream);
    norm_.backward({.din = args.dresidual,
                    .dout = dnormed,
                    .in = args.in,
                    .kept = a.norm,
                    .add_to_din = true,
                    .aside = args.delayed_norms},
                   args.gradients, args.queue);
}
