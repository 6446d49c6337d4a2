#include "llmc/model/sublayers/experts.h"

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

int fc_width(const ModelConfig& config, std::int64_t width) {
    return static_cast<int>((config.gated() ? 2 : 1) * width);
}

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
                        .decays = true});
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

// Returns the most rows that this rank's experts may get.
static std::int64_t most_held_rows(const RankSizes& sizes) {
    const std::int64_t K = sizes.model.experts_per_token(), held = sizes.model.experts / sizes.ep;
    return std::int64_t{sizes.residual_rows()} * sizes.ep * std::min(K, held);
}

bool Experts::gated() const {
    switch (model().mlp) {   // the activations that llmc/kernels/experts has
        case MlpKind::gelu: return false;
        case MlpKind::swiglu: return true;
    }
    return false;
}

std::vector<KeptTensor> Experts::kept(const RankSizes& sizes) {
    const ModelConfig& model = sizes.model;
    const bool dealt = sizes.ep > 1;
    const std::int64_t Rr = sizes.residual_rows(), C = sizes.C, E = model.experts, F = model.expert_width(),
                       K = model.experts_per_token(), own = Rr * K, M = most_held_rows(sizes),
                       S = model.shared_experts * F;
    // rows that travel are sent again only under Recompute::block
    const Recompute dropped_in = dealt ? Recompute::block : Recompute::gelu_norm;
    // has room for later micro-batches of shorter, and so more, sequences
    const std::int64_t counts = model.aux_loss > 0 ? sizes.rows() * E : 0;
    return {{.name = "ln2", .elements = Rr * C, .dropped_from = Recompute::gelu_norm},
            {.name = "ln2_mean", .elements = model.norm == NormKind::layer ? Rr : 0, .statistic = true},
            {.name = "ln2_rstd", .elements = Rr, .statistic = true},
            {.name = "router_logits", .elements = Rr * E, .statistic = true},   // in backward their gradient
            {.name = "expert_index", .elements = own, .dropped_from = never_dropped, .statistic = true},
            {.name = "expert_counts", .elements = counts, .dropped_from = never_dropped, .statistic = true},
            {.name = "expert_weight", .elements = own, .statistic = true},
            {.name = "expert_offsets", .elements = E + 1, .statistic = true},
            {.name = "expert_source", .elements = own, .statistic = true},
            {.name = "expert_row", .elements = own, .statistic = true},
            {.name = "held_offsets", .elements = dealt ? E / sizes.ep + 1 : 0, .statistic = true},
            {.name = "held_weight", .elements = dealt ? M : 0, .dropped_from = never_dropped, .statistic = true},
            {.name = "expert_in", .elements = M * C, .dropped_from = dropped_in},
            {.name = "expert_fch", .elements = M * fc_width(model, F)},   // in backward its gradient
            {.name = "expert_gelu", .elements = M * F, .dropped_from = Recompute::gelu},
            {.name = "shared_fch", .elements = Rr * fc_width(model, S)},   // in backward its gradient
            {.name = "shared_gelu", .elements = Rr * S, .dropped_from = Recompute::gelu}};
}

std::vector<ScratchTensor> Experts::scratch(const RankSizes& sizes) {
    const std::int64_t own = std::int64_t{sizes.residual_rows()} * sizes.model.experts_per_token(),
                       M = most_held_rows(sizes), F = sizes.model.expert_width(),
                       S = sizes.residual_rows() * sizes.model.shared_experts * F;
    std::vector<ScratchTensor> all{{.name = "expert_rows", .elements = M * sizes.C, .backward_only = false},
                                   {.name = "expert_dgelu", .elements = std::max(M * F, S)},
                                   {.name = "expert_dweight", .elements = own, .fp32 = true},
                                   {.name = "router_losses", .elements = 2 * sizes.residual_rows(), .fp32 = true}};
    if (sizes.ep == 1) return all;
    all.push_back({.name = "own_rows", .elements = own * sizes.C, .backward_only = false});
    all.push_back({.name = "own_values", .elements = own, .fp32 = true, .backward_only = false});
    all.push_back({.name = "held_dweight", .elements = M, .fp32 = true});
    all.push_back(
        {.name = "expert_counts", .elements = sizes.ep * sizes.model.experts, .fp32 = true, .backward_only = false});
    return all;
}

Experts::Experts(const SublayerPlace& place)
    : Sublayer(Norm(place.tools, place.parameters, "ln_2", place.layer)),
      tools_(place.tools),
      first_(place.first),
      layer_(place.layer),
      router_(matrices(place, "mlp.router.weight", 1)),
      in_(matrices(place, "mlp.experts.c_fc.weight", experts())),
      out_(matrices(place, "mlp.experts.c_proj.weight", experts())),
      rows_(place.tools.workspace.scratch<floatX>("expert_rows")),
      dactivated_(place.tools.workspace.scratch<floatX>("expert_dgelu")),
      dweight_(place.tools.workspace.scratch<float>("expert_dweight")),
      losses_(place.tools.workspace.scratch<float>("router_losses")),
      own_rows_(place.tools.workspace.scratch<floatX>("own_rows")),
      own_values_(place.tools.workspace.scratch<float>("own_values")),
      held_dweight_(place.tools.workspace.scratch<float>("held_dweight")),
      counts_(place.tools.workspace.scratch<std::int32_t>("expert_counts")) {
    if (model().shared_experts == 0) return;
    auto linear = [&](const char* name) {
        return Linear(tools_.matmul, place.parameters, place.parameters.index(name, place.layer), -1);
    };
    shared_in_.emplace(linear("mlp.shared.c_fc.weight"));
    shared_out_.emplace(linear("mlp.shared.c_proj.weight"));
}

Experts::Matrices Experts::matrices(const SublayerPlace& place, const char* name, int of_experts) const {
    const int index = place.parameters.index(name, place.layer);
    const TensorSpec& tensor = place.parameters.storage().table()[index].tensor;
    return {index, place.parameters.tensor(index), static_cast<int>(tensor.rows) / of_experts,
            static_cast<int>(tensor.cols)};
}

RouterKind Experts::router_kind() const { return {model().router == RouterScore::sigmoid, model().router_norm}; }

Norm::Output Experts::normed(const LayerActivations& a) const {
    return {at(a, kNormed), at<float>(a, kMean), at<float>(a, kRstd)};
}

int Experts::held_rows(const LayerActivations& a, int tokens) const {
    return dealt() ? tools_.expert_ranks.held_rows(a[first_ + kIndex]) : tokens * chosen();
}

GroupedShape Experts::grouped(const LayerActivations& a, const Matrices& matrices, int tokens) const {
    return {experts() / tools_.sizes.ep, held_rows(a, tokens), matrices.out, matrices.in,
            at<std::int32_t>(a, dealt() ? kHeldOffsets : kOffsets)};
}

ExpertActivation<floatX> Experts::activation(const LayerActivations& a, int tokens) const {
    return {at(a, kHidden),
            at<float>(a, dealt() ? kHeldWeight : kWeight),
            dealt() ? nullptr : at<std::int32_t>(a, kSource),
            held_rows(a, tokens),
            out_.in,
            gated()};
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Experts::choose(const floatX* normed, int tokens, const LayerActivations& a, bool again) const {
    const int E = experts(), K = chosen();
    float* const logits = at<float>(a, kLogits);
    std::int32_t* const index = at<std::int32_t>(a, kIndex);
    grouped_forward(logits, normed, router_.weights, {1, tokens, router_.out, router_.in, nullptr}, tools_.stream);
    const bool given = again || tools_.expert_ranks.replays(index, layer_, tools_.sizes, tools_.stream);
    router_forward({.index = index,
                    .weight = at<float>(a, kWeight),
                    .logits = logits,
                    .bias = tools_.router_bias ? tools_.router_bias + std::int64_t{layer_} * E : nullptr,
                    .rows = tokens,
                    .E = E,
                    .K = K,
                    .kind = router_kind(),
                    .again = given},
                   tools_.stream);
    if (!again) tools_.expert_ranks.has_chosen(index, logits, layer_, tools_.sizes, tools_.stream);
    order_by_expert(at<std::int32_t>(a, kOffsets), at<std::int32_t>(a, kSource), at<std::int32_t>(a, kRowOf), index,
                    tokens, E, K, tools_.stream);
    if (!dealt()) return;
    ExpertRanks& ranks = tools_.expert_ranks;
    if (!again) {
        ranks.begin_exchange(index, at<std::int32_t>(a, kOffsets), tokens * K, E, counts_, tools_.stream);
    }
    ranks.copy_held_offsets(at<std::int32_t>(a, kHeldOffsets), index, tools_.stream);
}

// Counts the tokens of each expert in each whole sequence, for the balance loss.
void Experts::count(const LayerActivations& a) const {
    std::int32_t* const counts = at<std::int32_t>(a, kCounts);
    if (counts == nullptr) return;
    const auto n = static_cast<std::size_t>(tools_.sizes.B) * static_cast<std::size_t>(experts());
    CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof(std::int32_t) * n, tools_.stream));
    count_experts(counts, at<std::int32_t>(a, kIndex), rows(), experts(), chosen(),
                  tools_.expert_ranks.sequences(tools_.sizes), tools_.stream);
    tools_.expert_ranks.add_over_sequences(counts, n, tools_.stream);
}

// Gathers rows of tokens, (tokens, C), for the experts that take them, and sends them if experts are dealt out.
void Experts::to_experts(floatX* to, const floatX* from, const LayerActivations& a, int tokens) const {
    const int C = tools_.sizes.C;
    floatX* const own = dealt() ? own_rows_ : to;
    gather_rows(own, from, at<std::int32_t>(a, kSource), tokens * chosen(), tokens, chosen(), C, tools_.stream);
    if (dealt()) tools_.expert_ranks.dispatch(to, own, C, a[first_ + kIndex], tools_.stream);
}

// Returns the experts' outputs for the rows of this rank's tokens, in the order of experts.
const floatX* Experts::from_experts(const floatX* from, const LayerActivations& a) const {
    if (!dealt()) return from;
    tools_.expert_ranks.combine(own_rows_, from, tools_.sizes.C, a[first_ + kIndex], tools_.stream);
    return own_rows_;
}

void Experts::send_weights(const LayerActivations& a) const {
    if (!dealt()) return;
    take_values(own_values_, at<float>(a, kWeight), at<std::int32_t>(a, kSource), rows() * chosen(), tools_.stream);
    tools_.expert_ranks.dispatch(at<float>(a, kHeldWeight), own_values_, 1, a[first_ + kIndex], tools_.stream);
}

void Experts::receive_weight_gradients(const LayerActivations& a) const {
    if (!dealt()) return;
    tools_.expert_ranks.combine(own_values_, held_dweight_, 1, a[first_ + kIndex], tools_.stream);
    take_values(dweight_, own_values_, at<std::int32_t>(a, kRowOf), rows() * chosen(), tools_.stream);
}

void Experts::activate(const LayerActivations& a, int tokens) const {
    expert_activation(at(a, kActivated), activation(a, tokens), tools_.stream);
    if (shared_in_) activate_shared(a, tokens);
}

void Experts::activate_shared(const LayerActivations& a, int tokens) const {
    const int S = shared_out_->in_channels();
    floatX* const out = at(a, kSharedActivated);
    if (gated()) return swiglu_forward<floatX>(out, at(a, kSharedHidden), tokens, S, tools_.stream);
    gelu_forward<floatX>(out, at(a, kSharedHidden), std::int64_t{tokens} * S, tools_.stream);
}

void Experts::run(const floatX* normed, int tokens, const LayerActivations& a, bool again) const {
    choose(normed, tokens, a, again);
    to_experts(at(a, kIn), normed, a, tokens);
    if (!again) send_weights(a);   // the weights are kept
    grouped_forward(at(a, kHidden), at(a, kIn), in_.weights, grouped(a, in_, tokens), tools_.stream);
    if (shared_in_) shared_in_->forward(at(a, kSharedHidden), normed, tokens, tools_.stream);
    activate(a, tokens);
}

void Experts::inside(const floatX*, const LayerActivations& a) const {
    run(at(a, kNormed), rows(), a, false);
    count(a);
}
void Experts::inside_again(const floatX*, const LayerActivations& a) const { run(at(a, kNormed), rows(), a, true); }

// Runs the second matrices, and adds up their outputs for each token.
floatX* Experts::combined(const LayerActivations& a, int tokens) const {
    floatX* const sum = tools_.workspace.rows_c.data();
    grouped_forward(rows_, at(a, kActivated), out_.weights, grouped(a, out_, tokens), tools_.stream);
    const floatX* const made = from_experts(rows_, a);
    if (shared_out_) shared_out_->forward(sum, at(a, kSharedActivated), tokens, tools_.stream);
    combine_rows(sum, made, shared_out_ ? sum : nullptr, at<std::int32_t>(a, kRowOf), tokens, chosen(), tools_.sizes.C,
                 tools_.stream);
    return sum;
}

void Experts::join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const {
    const floatX* const sum = combined(a, rows());
    if (next) return next->norm.add_forward(out, next->to, in, sum);
    residual_forward<floatX>(out, in, sum, std::int64_t{rows()} * tools_.sizes.C, tools_.stream);
}

const floatX* Experts::cached(const CachedStep& step) const {
    ENSURE(!dealt(), "a sequence is generated on one device");
    run(step.in, step.rows, step.a, false);
    return combined(step.a, step.rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Experts::recompute(const floatX* in, const LayerActivations& a, Recompute level) const {
    if (level >= Recompute::gelu) activate(a, rows());
    if (level < Recompute::gelu_norm) return;
    norm().forward({at(a, kNormed)}, in);   // statistics are kept
    if (!dealt()) to_experts(at(a, kIn), at(a, kNormed), a, rows());
}

template <class A>
void Experts::backward_weight(AnyGradients& gradients, const Matrices& matrices, const GroupedShape& shape,
                              const A* dout, const floatX* in) const {
    const GradientTarget to = gradients.next(matrices.index);
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        grouped_weight_gradient(to.data.as<G>(), dout, in, shape, to.accumulate, tools_.stream);
    });
}

// Replaces logits by their gradient.
void Experts::route_backward(const LayerActivations& a) const {
    const auto E = static_cast<float>(experts()), K = static_cast<float>(chosen());
    const auto S = static_cast<float>(tools_.sizes.whole_T);
    router_backward({.dlogits = at<float>(a, kLogits),
                     .logits = at<float>(a, kLogits),
                     .dweight = dweight_,
                     .index = at<std::int32_t>(a, kIndex),
                     .counts = at<std::int32_t>(a, kCounts),
                     .rows = rows(),
                     .E = experts(),
                     .K = chosen(),
                     .kind = router_kind(),
                     .sequences = tools_.expert_ranks.sequences(tools_.sizes),
                     .balance = static_cast<float>(model().aux_loss) * (E / K) / (S * S) * tools_.sequence_share,
                     .z = 2 * static_cast<float>(model().router_z_loss) / S * tools_.sequence_share,
                     .losses = losses_},
                    tools_.stream);
    add_to_totals(a);
}

// Adds to the step's totals. Called in backward, so that a micro-batch counts once and a mere forward does not.
void Experts::add_to_totals(const LayerActivations& a) const {
    const ExpertTotals& totals = tools_.expert_totals;
    const int n = rows();
    if (totals.counts == nullptr) return;
    count_experts(totals.counts + std::int64_t{layer_} * experts(), at<std::int32_t>(a, kIndex), n, experts(), chosen(),
                  {n, n, n, 0}, tools_.stream);
    const double factors[] = {model().aux_loss, model().router_z_loss};
    for (int i = 0; i < 2; i++) {
        if (factors[i] != 0) sum_losses(totals.losses + i, losses_ + i * n, n, 1.0f, true, tools_.stream);
    }
}

// Computes din, the gradient of the shared experts' input; their hidden activations become their gradient.
void Experts::shared_backward(floatX* din, const SublayerBackward& args) const {
    const LayerActivations& a = args.a;
    const int S = shared_out_->in_channels();
    const floatX* const dout = args.delayed() ? args.kept_dout : args.dresidual;
    floatX* const hidden = at(a, kSharedHidden);
    shared_out_->backward_input(dactivated_, args.dresidual, rows(), tools_.stream);
    if (gated()) {
        swiglu_backward<floatX>(hidden, dactivated_, hidden, rows(), S, tools_.stream);
    } else {
        gelu_backward<floatX>(hidden, dactivated_, hidden, std::int64_t{rows()} * S, tools_.stream);
    }
    now_or_later(args, [=, this, &gradients = args.gradients, activated = at(a, kSharedActivated),
                        read = at(a, kNormed), count = rows()] {
        shared_out_->backward_weight(gradients, dout, activated, count, tools_.stream);
        shared_in_->backward_weight(gradients, hidden, read, count, tools_.stream);
    });
    shared_in_->backward_input(din, hidden, rows(), tools_.stream);
}

void Experts::backward(const SublayerBackward& args) const {
    const LayerActivations& a = args.a;
    const cudaStream_t stream = tools_.stream;
    const int tokens = rows();
    if (args.delayed()) {
        const std::size_t bytes =
            sizeof(floatX) * static_cast<std::size_t>(tokens) * static_cast<std::size_t>(tools_.sizes.C);
        CUDA_CHECK(cudaMemcpyAsync(args.kept_dout, args.dresidual, bytes, cudaMemcpyDeviceToDevice, stream));
    }
    to_experts(rows_, args.dresidual, a, tokens);
    now_or_later(args, [=, this, &gradients = args.gradients, late = args.delayed() ? args.kept_dout : nullptr] {
        if (late != nullptr) to_experts(rows_, late, a, tokens);
        backward_weight(gradients, out_, grouped(a, out_, tokens), rows_, at(a, kActivated));
    });
    grouped_input_gradient(dactivated_, rows_, out_.weights, grouped(a, out_, tokens), false, stream);
    floatX* const dhidden = at(a, kHidden);
    expert_activation_backward(dhidden, dealt() ? held_dweight_ : dweight_, dactivated_, activation(a, tokens), stream);
    receive_weight_gradients(a);
    route_backward(a);
    const GroupedShape all_rows{1, tokens, router_.out, router_.in, nullptr};
    now_or_later(args, [=, this, &gradients = args.gradients] {
        backward_weight(gradients, in_, grouped(a, in_, tokens), dhidden, at(a, kIn));
        backward_weight(gradients, router_, all_rows, at<float>(a, kLogits), at(a, kNormed));
    });
    grouped_input_gradient(rows_, dhidden, in_.weights, grouped(a, in_, tokens), false, stream);
    const floatX* const made = from_experts(rows_, a);
    floatX* const dnormed = tools_.workspace.rows_c.data();
    if (shared_in_) shared_backward(dnormed, args);
    combine_rows(dnormed, made, shared_in_ ? dnormed : nullptr, at<std::int32_t>(a, kRowOf), tokens, chosen(),
                 tools_.sizes.C, stream);
    grouped_input_gradient(dnormed, at<float>(a, kLogits), router_.weights, all_rows, true, stream);
    norm().backward({.din = args.dresidual,
                     .dout = dnormed,
                     .in = args.in,
                     .kept = normed(a),
                     .add_to_din = true,
                     .aside = args.norm_aside},
                    args.gradients, args.queue);
}
