#include "llmc/plan/layer_form.h"

#include <algorithm>
#include <numeric>

#include "llmc/mesh/document_cut.h"

namespace {

// Returns what a query of the last ring rank sees of a sequence at each step; one head.
std::vector<double> window_pairs(int ring, std::int64_t T, std::int64_t window) {
    const ContextCut cut{ring, 1, ring - 1};
    const std::vector<std::int32_t> whole(static_cast<std::size_t>(T / ring), 0);   // one document
    std::vector<std::int32_t> first(whole.size() * static_cast<std::size_t>(ring));
    first_keys(first, window_starts(whole, cut, T, window), cut, T);
    const std::vector<std::int64_t> pairs = step_pairs(first, cut, 1);
    return {pairs.begin(), pairs.end()};
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}   // namespace

LayerForm::LayerForm(const Options& options, const ParamTable& table, const MeshShape& mesh, const Machine& machine)
    : o_(options),
      table_(table),
      config_(table_.config()),
      mesh_(mesh),
      machine_(machine),
      sequence_parallel_(options.sequence_parallel && mesh.tp > 1),
      zb_(delays_weights(options.pipeline.kind)),
      sizes_(rank_sizes(config_, {mesh, {}, 0}, sequence_parallel_, options.micro_batch, options.seq_len,
                        options.ulysses())),
      rows_(sizes_.rows()),
      residual_bytes_(rows_ * sizes_.C * kElement),
      sliding_pairs_(o_.seq_len > config_.window && sliding_share() > 0 && mesh.cp > o_.ulysses()
                         ? window_pairs(mesh.cp / o_.ulysses(), o_.seq_len, config_.window)
                         : std::vector<double>{}) {}

double LayerForm::sliding_layers(const LayerRange& layers) const {
    double count = 0;
    for (std::int64_t layer = layers.begin; layer < layers.end; layer++) count += config_.slides(layer);
    return count;
}

std::vector<double> LayerForm::step_pairs(bool slides) const {
    const int ring = mesh_.cp / o_.ulysses();
    const double of_pair = 1.0 * sizes_.B * sizes_.NH / o_.ulysses() * sizes_.HS;
    std::vector<double> pairs = sliding_pairs_;
    if (!slides || pairs.empty()) {   // all steps have as many
        std::int64_t layer = 0;
        while (layer + 1 < config_.layers && config_.slides(layer) != slides) layer++;
        const double keys = keys_by_layer(config_, layer, o_.seq_len);
        pairs.assign(static_cast<std::size_t>(ring), keys * static_cast<double>(o_.seq_len) / ring / ring);
    }
    for (double& step : pairs) step *= of_pair;
    return pairs;
}

double LayerForm::pairs(bool slides) const { return sum_of(step_pairs(slides)); }

// Returns true if recompute repeats this matrix's matmul. A recomputed block skips its last projection, whose sum
// is the layer's output, unless a norm comes after it.
bool LayerForm::is_made_again(const ParamInfo& param) const {
    return config_.norm_position == NormPosition::after || param.name.find("mlp.") == std::string::npos ||
           !param.name.ends_with("c_proj.weight");
}

LayerTime LayerForm::of_mean_layer() const {
    const double share = sliding_share();
    return share == 0   ? of_layer(false)
           : share == 1 ? of_layer(true)
                        : mean_layer(of_layer(false), of_layer(true), share);
}

LayerTime LayerForm::of_layer(bool slides) const {
    LayerTime layer;
    BranchTime attention_branch, mlp;
    ExpertTime dealt, shared;
    double last = 0;
    for (const ParamInfo& param : table_.all()) {
        if (param.layer != 0 || !param.is_matrix()) continue;
        const LayerMatrix matrix = matrix_of(param);
        const double one = seconds_of(matrix);
        layer.forward += one, layer.input += one, layer.weight += weight_seconds_of(matrix);
        if (!is_made_again(param)) last += one;
        BranchTime& branch = param.name.find("attn.") != std::string::npos ? attention_branch : mlp;
        (param.name.ends_with("c_proj.weight") ? branch.out : branch.in) += one;
        const bool is_dealt = param.name.find("mlp.experts.") != std::string::npos;
        if (is_dealt || param.name.find("mlp.shared.") != std::string::npos) {
            ExpertTime& experts = is_dealt ? dealt : shared;
            (param.name.ends_with("c_proj.weight") ? experts.out : experts.in) += one;
        }
        layer.flops += 3 * matrix.flops();
    }
    const double pauses = (chunks() - 1) * machine_.kernel_seconds;   // between the chunks of an operation
    layer.forward += 4 * pauses, last += pauses;
    std::vector<double> steps = step_pairs(slides);
    layer.flops += 14 * sum_of(steps);
    const double rate = attention_rate(o_, config_, machine_);
    for (double& step : steps) step *= 4 / rate;
    const double attention = attention_branch.core = sum_of(steps);
    layer.forward += attention + machine_.kernel_seconds;
    layer.input += 2.5 * attention + machine_.kernel_seconds;
    // norms, residual sums, and the MLP's nonlinearity if it has its own kernel
    const bool experts = config_.experts > 0, gated = config_.gated(),
               apart = experts || !traits_of(config_.mlp).in_matmul || kElement == 4;
    const double residual = residual_bytes_ / sizes_.residual_parts, inner = kElement * activated_elements();
    const int read = gated ? 2 : 1;   // arrays read, of F channels each; experts' matmul still has them in forward
    const double at_hand = kElement * residual_rows() * chosen() * static_cast<double>(config_.expert_width());
    layer.forward += 2 * moved(4 * residual) + (apart ? moved((read + 1) * inner - read * at_hand) + pauses : 0);
    layer.input += 2 * (moved(5 * residual) + machine_.kernel_seconds) + (apart ? moved((2 * read + 1) * inner) : 0);
    const bool norms_heads = config_.qk_norm == QkNorm::head;   // forward keeps its input, too, which backward reads
    if (config_.positions == PositionKind::rotary || norms_heads) {
        const double heads = rows_ * (sizes_.NH + sizes_.KV) * sizes_.HS * kElement;
        const double passes = norms_heads ? 3 : 2;
        layer.forward += moved(passes * heads) + pauses, layer.input += moved(passes * heads);
    }
    add_context_kernels(layer, steps);
    if (experts) {   // the experts' outputs are added up; rows that travel are gathered before
        const double rows = moved((chosen() + 1) * residual), all = mesh_.ep > 1 ? 2 * rows : rows;
        layer.forward += all + kRouterKernels * machine_.kernel_seconds, last += rows;
        layer.input += all + kRouterKernels * machine_.kernel_seconds;
        // each further chunk has two products, in backward four and the activation's gradient
        layer.forward += 2 * (expert_chunks() - 1) * machine_.kernel_seconds;
        layer.input += 5 * (expert_chunks() - 1) * machine_.kernel_seconds;
        dealt.activation = moved(at_hand), dealt.activation_backward = moved((2 * read + 1) * at_hand);
    }
    if (o_.recompute == Recompute::block) layer.recompute = layer.forward - last;
    if (o_.recompute == Recompute::gelu || o_.recompute == Recompute::gelu_norm) layer.recompute = moved(2 * inner);
    add_tensor_parallel(layer, attention_branch, mlp);
    add_context_parallel(layer, attention_branch, mlp, steps);
    add_expert_parallel(layer, dealt, shared);
    layer.expert_before = attention_branch.in + attention + attention_branch.out;
    if (o_.recompute == Recompute::block) layer.expert_slack = layer.expert_before;
    return layer;
}

// Elements that the MLP's nonlinearity, or that of the experts, makes of a micro-batch.
double LayerForm::activated_elements() const {
    if (config_.experts == 0) return rows_ * sizes_.F;
    return residual_rows() * (chosen() + static_cast<double>(config_.shared_experts)) *
           static_cast<double>(config_.expert_width());
}

// docs/parallelism.md, in units of fs. Forward: each chunk of rows is gathered before its matmul or scattered after it.
// The first exchange is exposed, and of the others the part that a chunk's matmul does not hide. Backward
// (llmc/model/layer/linear.cu): a branch gathers its output's gradient during the weights' gradient of the branch
// above, and its input during the gradient of that, and scatters during the weights' gradient of its projection. If a
// recompute level leaves nothing for the next layer, its first gather is exposed, as where no layer comes before
// (tensor_turn). Without sequence parallelism a branch has one sum, during both of its weights' gradients. zb's
// gradients of weights wait: they hide no exchange of backward, and gather again what they read.
void LayerForm::add_tensor_parallel(LayerTime& layer, const BranchTime& attention, const BranchTime& mlp) const {
    if (mesh_.tp == 1) return;
    const bool block = o_.recompute == Recompute::block;
    const bool drained = block || o_.recompute == Recompute::gelu_norm;
    const bool all_again = block && config_.norm_position == NormPosition::after;
    const bool cut_mlp = config_.experts == 0;   // a mixture works on the rows that the rank has, without exchanges
    const int branches = cut_mlp ? 2 : 1, forward = branches * (sequence_parallel_ ? 2 : 1),
              backward = branches * (!sequence_parallel_ ? 1
                                     : zb_               ? 4
                                                         : 3),
              again = block ? forward - (cut_mlp && !all_again ? 1 : 0) : 0;
    const double whole = whole_exchange(), chunk = collective(tensor_unit() / chunks(), mesh_.tp, 1, passes());
    auto in_chunks = [&](double matmul) { return chunk + (chunks() - 1) * shown(chunk, matmul / chunks()); };
    auto entering = [&](const BranchTime& branch) { return sequence_parallel_ ? in_chunks(branch.in) : 0; };
    auto backward_of = [&](const BranchTime& branch, double above) {
        if (zb_) return (sequence_parallel_ ? 2 : 1) * whole;   // no gradient of weights hides it
        if (!sequence_parallel_) return shown(whole, branch.in + branch.out);
        const double late = std::max(0.0, whole - branch.in);
        return shown(whole, above) + multiprocessor_share(o_.comm_sms) * whole + shown(whole + late, branch.out);
    };
    layer.tensor_bytes = (forward + backward + again) * tensor_unit();
    layer.tensor_seconds = (forward + again) * chunks() * chunk + backward * whole;
    layer.tensor_forward = entering(attention) + in_chunks(attention.out);
    layer.tensor_backward = backward_of(attention, cut_mlp ? mlp.in : 0);
    if (block) layer.tensor_backward += layer.tensor_forward;
    if (cut_mlp) {
        layer.tensor_forward += entering(mlp) + in_chunks(mlp.out);
        layer.tensor_backward += backward_of(mlp, drained ? 0 : attention.in) + (block ? entering(mlp) : 0);
    }
    // gathers again what gradients of weights read: a branch's output before its product, its input beside that
    if (zb_ && sequence_parallel_) {
        layer.tensor_weight = whole + shown(whole, attention.out);
        if (cut_mlp) layer.tensor_weight += whole + shown(whole, mlp.out);
    }
    if (all_again) layer.tensor_backward += in_chunks(mlp.out);
    if (!drained && !zb_ && sequence_parallel_ && cut_mlp) layer.tensor_turn = std::min(whole, attention.in);
    // the gradients leave after the next layer's first gather, or before it if there is none
    if (!drained && !zb_) {
        const bool gathers = sequence_parallel_ && cut_mlp;
        const double work = gathers ? 2 * mlp.out + mlp.in : 2 * (mlp.out + mlp.in);
        layer.tensor_slack = std::max(0.0, work - (gathers ? 2 : 1) * whole);
        // a mixture's layer has two exchanges in backward, before attention's and after it
        if (!cut_mlp) layer.tensor_between = 2.5 * attention.core + attention.out;
    }
}

ContextElements LayerForm::context_elements() const {
    return {rows_ * sizes_.NH * sizes_.HS, rows_ * std::max(sizes_.KV, o_.ulysses()) * sizes_.HS};
}

// Adds what context parallelism does beside one rank's attention. Ulysses packs what it sends and orders what it
// receives. A ring copies keys and values, and at each further step of half of the queries and all keys of another rank
// merges outputs, or adds up gradients, in fp32.
void LayerForm::add_context_kernels(LayerTime& layer, const std::vector<double>& steps) const {
    if (mesh_.cp == 1) return;
    const int u = o_.ulysses(), n = mesh_.cp / u;
    const auto [q, kv] = context_elements();
    if (u > 1) {
        const double exchanges = 2 * (moved(2 * (q + 2 * kv) * kElement) + moved(2 * q * kElement));
        layer.forward += exchanges, layer.input += exchanges;
    }
    if (n == 1) return;
    const bool rounds = kElement < 4;   // fp32 sums
    const double copied = moved(4 * kv * kElement), merged = moved(6 * q), added = moved(24 * kv);
    const auto seen =
        static_cast<double>(std::count_if(steps.begin() + 1, steps.end(), [](double s) { return s > 0; }));
    layer.forward += copied + seen * (machine_.kernel_seconds + merged) + (rounds ? moved((4 + kElement) * q) : 0);
    const double half_lse = machine_.kernel_seconds;   // a copy of the second half's
    layer.input += copied + half_lse + seen * (machine_.kernel_seconds + merged + added) +
                   (rounds ? moved((4 + kElement) * q) + moved((4 + kElement) * 2 * kv) : 0);
}

// A hop of the ring travels beside a step's attention; the last one, of gradients, beside the gradients of weights that
// have waited for it.
void LayerForm::add_context_parallel(LayerTime& layer, const BranchTime& attention, const BranchTime& mlp,
                                     const std::vector<double>& steps) const {
    if (mesh_.cp == 1) return;
    const bool block = o_.recompute == Recompute::block;
    const int u = o_.ulysses(), n = mesh_.cp / u, nodes = nodes_of(mesh_.cp, mesh_.tp);
    const auto [q, kv] = context_elements();
    const Link& link = machine_.link(nodes);
    double sent = 0, seconds = 0;   // each way by Ulysses
    if (u > 1) {
        const int own_nodes = nodes_of(u, mesh_.tp);
        for (const double elements : {q + 2 * kv, q}) {
            const double bytes = elements * (u - 1) / u * kElement;
            sent += bytes;
            seconds += machine_.link(own_nodes).seconds + machine_.all_to_all_seconds(bytes, u, own_nodes);
        }
    }
    layer.context_forward = layer.context_backward = seconds;
    const double keys = 2 * kv * kElement, gradients = 2 * kv * 4, again = block ? 1 : 0;
    auto hop = [&](double bytes) { return link.seconds + bytes / link.bytes_per_second; };
    auto late = [&](double bytes, double work) { return std::max(0.0, hop(bytes) - work); };
    if (n > 1) {
        const double merged = moved(6 * q), added = moved(24 * kv);
        auto work = [&](int step, double times, double beside) {
            const double core = steps[static_cast<std::size_t>(step)];
            return core > 0 ? times * core + machine_.kernel_seconds + (step > 0 ? beside : 0) : 0;
        };
        for (int step = 0; step < n; step++) {
            const bool on = step + 1 < n, home = step >= 2;   // keys go on, gradients that came a step before
            if (on) layer.context_forward += late(keys, work(step, 1, merged));
            if (!on && !home) continue;
            layer.context_backward +=
                late((on ? keys : 0) + (home ? gradients : 0), work(step, 2.5, merged + (on && home ? added : 0)));
        }
        layer.context_backward += late(gradients, zb_ ? 0 : mlp.out + attention.out);
    }
    layer.context_backward += again * layer.context_forward;
    layer.context_bytes = (2 + again) * (sent + (n - 1) * keys) + (n - 1) * gradients;
    layer.context_seconds = (2 + again) * (seconds + (n - 1) * hop(keys)) + (n - 1) * hop(gradients);
    // a block begins again with the product of queries and keys; else, and where ZeRO 3 calls for gradients behind the
    // block, the MLP comes before, and attention's output, whose gradients of weights a ring keeps for its last hop
    const double kept = n > 1 ? mlp.out + attention.out : 0;
    layer.context_slack = zb_                                ? layer.weight
                          : block && !reduces_behind_block() ? attention.in
                                                             : 2 * (mlp.in + mlp.out + attention.out) - kept;
}

// Rows go to their experts and come back, and so do their gradients, chunk by chunk of experts. Each expert gets as
// many. A block that is computed again, and a gradient of weights that waits, send rows once more.
void LayerForm::add_expert_parallel(LayerTime& layer, const ExpertTime& experts, const ExpertTime& shared) const {
    if (mesh_.ep == 1) return;
    const bool block = o_.recompute == Recompute::block;
    const int backward = 2 + (block ? 1 : 0) + (zb_ ? 1 : 0);
    const double bytes = residual_rows() * chosen() * sizes_.C * kElement * (mesh_.ep - 1) / mesh_.ep;
    const int nodes = nodes_of(mesh_.ep, 1), chunks = expert_chunks();
    const double one = machine_.link(nodes).seconds + machine_.all_to_all_seconds(bytes / chunks, mesh_.ep, nodes);
    layer.expert_bytes = (2 + backward) * bytes;
    layer.expert_seconds = (2 + backward) * chunks * one;
    const ExpertTime each = {experts.in / chunks, experts.out / chunks, experts.activation / chunks,
                             experts.activation_backward / chunks};
    const double forward = each.in + each.activation;   // before the outputs' product
    layer.expert_forward = expert_exposed({chunks, one, shared.in + shared.out, forward + each.out, 0, true});
    layer.expert_backward =
        expert_exposed({chunks, one, (zb_ ? 1 : 2) * (shared.in + shared.out),
                        each.in + each.activation_backward + (zb_ ? 1 : 2) * each.out, zb_ ? 0 : each.in, true});
    if (block) layer.expert_backward += expert_exposed({chunks, one, shared.in, forward, 0, false});
    if (zb_) layer.expert_weight = expert_exposed({chunks, one, 0, each.in + each.out, 0, false});
}
int LayerForm::expert_chunks() const {
    if (mesh_.ep == 1) return 1;
    return static_cast<int>(std::min<std::int64_t>(o_.ep_chunks, config_.experts / mesh_.ep));
}
double LayerForm::expert_exposed(const ChunkedExchange& exchange) const {
    return exchange.exposed() + multiprocessor_share(o_.comm_sms) * exchange.hidden();
}
