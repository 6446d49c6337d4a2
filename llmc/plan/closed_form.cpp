#include "llmc/plan/closed_form.h"

#include <algorithm>
#include <set>

#include "llmc/parallel/expert_parallel.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/parallel/tensor_parallel.h"
#include "llmc/parallel/zero_formulas.h"
#include "llmc/plan/layer_time.h"
#include "llmc/plan/pipeline_estimate.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/part_options.h"

namespace {

class ClosedForm {
public:
    ClosedForm(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine)
        : o_(options),
          config_(config),
          mesh_(mesh),
          machine_(machine),
          table_(config),
          sequence_parallel_(options.sequence_parallel && mesh.tp > 1),
          sizes_(rank_sizes(config, {mesh, {}, 0}, sequence_parallel_, options.micro_batch, options.seq_len,
                            options.ulysses())),
          rows_(sizes_.rows()),
          residual_bytes_(rows_ * sizes_.C * kElement) {}

    StepTime time(PipelineTime how) const {
        const LayerTime layer = of_layer();
        const double head = seconds_of(classifier()) + moved(3 * rows_ * sizes_.Vp * kElement) / 3;
        const TensorOutside outside = tensor_outside();
        StepTime result;
        PipelineCosts costs;
        const int pieces = mesh_.pp * o_.pp_chunks;
        costs.pieces.resize(static_cast<std::size_t>(pieces));
        double compute = 0;   // all pieces, per micro-batch
        for (int stage = 0; stage < mesh_.pp; stage++) {
            const auto chunks = chunks_of_stage(config_, pipeline_shape(o_), stage, o_.seq_len);
            for (std::size_t c = 0; c < chunks.size(); c++) {
                const double n = chunks[c].layers.size(), with_head = chunks[c].head ? 1 : 0;
                // without recompute, the head's loss is a part of backward
                costs.pieces[c * static_cast<std::size_t>(mesh_.pp) + static_cast<std::size_t>(stage)] = {
                    n * layer.forward_seconds() + (chunks[c].embedding ? outside.embedding_forward : 0),
                    n * layer.input_seconds() + (chunks[c].embedding ? outside.embedding_backward : 0) +
                        with_head * (2 * head + outside.head),
                    n * layer.weight_seconds() + with_head * head};
                compute += n * layer.compute() + 3 * with_head * head;
            }
        }
        costs.transfer = mesh_.pp > 1 ? border_seconds() : 0;
        const int m = o_.micro_steps();
        const Pipelined found = how == PipelineTime::simulated ? pipelined(costs, m) : estimated(costs, m);
        add_axes(result, layer, m);
        const ParamStorage own = storage();
        const double update = optimizer_seconds(own);
        const double zero_exposed = add_zero(result, layer, own, m) + add_partial_sums(result, own);
        result.computing = m * compute / mesh_.pp + update;
        const double inside = m * static_cast<double>(config_.layers) / mesh_.pp *
                              (layer.tensor_exposed() + layer.context_exposed + layer.expert_exposed());
        result.exposed = zero_exposed + inside;
        result.bubble_share = mesh_.pp > 1 ? found.idle_share : 0;
        result.seconds = found.makespan * (1 + slowed_by_links()) + update + zero_exposed + slowed(result);
        result.flops = m * (static_cast<double>(config_.layers) * layer.flops + 3 * classifier().flops());
        return result;
    }

    double least() const {
        const double matmul = 1 / machine_.best_matmul(), attention = 4 * pairs() / machine_.attention_per_second;
        double of_layer = 0, before = 0, most = 0;   // forward seconds of a layer, and of the earlier stages
        for (const ParamInfo& param : table_.all()) {
            if (param.layer != 0 || !param.is_matrix()) continue;
            of_layer += matrix_of(param).flops() * matmul;
        }
        const double head = classifier().flops() * matmul;
        for (int stage = 0; stage < mesh_.pp; stage++) {
            double own = 0, forward = 0;
            for (const Chunk& chunk : chunks_of_stage(config_, pipeline_shape(o_), stage, o_.seq_len)) {
                const double n = chunk.layers.size();
                own += n * (3 * of_layer + 3.5 * attention) + (chunk.head ? 3 * head : 0);
                if (o_.pp_chunks == 1) forward += n * (of_layer + attention);
            }
            most = std::max(most, before + o_.micro_steps() * own);
            before += forward;
        }
        return most;
    }

private:
    static constexpr double kElement = sizeof(floatX);
    static constexpr int kRouterKernels = 4;   // that choose experts and order their rows, each way

    struct Pipelined {
        double makespan, idle_share;
    };
    Pipelined estimated(const PipelineCosts& costs, int m) const {
        const double makespan = estimated_makespan(pipeline_shape(o_), costs);
        double busy = 0;
        for (const ActionCosts& piece : costs.pieces) busy += m * piece.all();
        return {makespan, 1 - busy / (makespan * mesh_.pp)};
    }
    // Simulates the pipeline; for many micro-batches, extrapolates linearly from two smaller numbers of them.
    Pipelined pipelined(const PipelineCosts& costs, int m) const {
        auto with = [&](int micro_batches) {
            PipelineShape shape = pipeline_shape(o_);
            shape.micro_batches = micro_batches;
            return simulate(pipeline_schedules(shape), o_.pp_chunks, costs);
        };
        const int few = 2 * mesh_.pp, more = 3 * mesh_.pp;
        if (m <= more) {
            const Simulation found = with(m);
            return {found.makespan, found.idle_share()};
        }
        const Simulation first = with(few), second = with(more);
        const double times = static_cast<double>(m - few) / (more - few);
        const double makespan = first.makespan + times * (second.makespan - first.makespan),
                     busy = first.busy + times * (second.busy - first.busy);
        return {makespan, 1 - busy / (makespan * mesh_.pp)};
    }

    // Pairs of queries and keys left by a causal mask, times the head size; one layer and micro-batch.
    double pairs() const { return 0.5 * sizes_.B * sizes_.NH * sizes_.T * static_cast<double>(o_.seq_len) * sizes_.HS; }

    double moved(double bytes) const { return machine_.seconds_of(0, bytes); }
    // Seconds of one of the three matmuls with a matrix (forward, input, weight); each has the same FLOPs.
    double seconds_of(const LayerMatrix& m) const {
        return machine_.seconds_of(m.flops(), kElement * (m.rows * (m.outputs + m.inputs) + m.elements));
    }
    LayerMatrix classifier() const {
        return {rows_, static_cast<double>(sizes_.Vp), static_cast<double>(sizes_.C), 1.0 * sizes_.Vp * sizes_.C};
    }
    // A token goes through its chosen experts only. Tensor parallelism does not cut a mixture's matrices.
    LayerMatrix matrix_of(const ParamInfo& param) const {
        const TensorSpec shard = tp_shard_of(param.tensor, mesh_.tp);
        const auto rows = static_cast<double>(shard.rows), cols = static_cast<double>(shard.cols);
        if (config_.experts == 0 || param.name.find("mlp.") == std::string::npos)
            return {rows_, rows, cols, rows * cols};
        if (shard.cut != TensorCut::experts) return {residual_rows(), rows, cols, rows * cols};
        return {residual_rows() * chosen(), rows / static_cast<double>(config_.experts), cols, rows * cols / mesh_.ep};
    }
    double residual_rows() const { return sizes_.residual_rows(); }
    double chosen() const { return static_cast<double>(config_.experts_per_token()); }
    int nodes_of(int ranks, int stride) const {
        return std::max(1, std::min(ranks, ranks * stride / machine_.devices_per_node));
    }
    double collective(double bytes, int ranks, int stride, int passes) const {
        return collectives(1, bytes, ranks, stride, passes);
    }
    // Seconds of `count` collectives that move `bytes` together.
    double collectives(int count, double bytes, int ranks, int stride, int passes) const {
        if (ranks == 1) return 0;
        const int nodes = nodes_of(ranks, stride);
        return count * collective_seconds(machine_, {ranks, nodes}, bytes / count, passes);
    }
    double border_seconds() const {
        const Link& link = machine_.link(mesh_.size() > machine_.devices_per_node ? 2 : 1);   // the slowest link
        return link.seconds + residual_bytes_ / (sequence_parallel_ ? mesh_.tp : 1) / link.bytes_per_second;
    }

    // Returns how much longer an exchange and the work beside it take together than the work alone. The exchange takes
    // some of the multiprocessors, which slows the work; an exchange that outlasts the work adds the rest of its own
    // time.
    double shown(double exchange, double work) const {
        return std::max(exchange - work, multiprocessor_share(o_.comm_sms) * exchange);
    }
    double multiprocessor_share(int taken) const {
        return machine_.multiprocessors > 0 ? std::min(1.0, static_cast<double>(taken) / machine_.multiprocessors) : 0;
    }
    // Returns the slowdown by pipeline receives. A receive holds its multiprocessors from its launch, long before the
    // data comes: one receive of inputs, and one of gradients.
    double slowed_by_links() const {
        return mesh_.pp == 1 ? 0 : multiprocessor_share((mesh_.pp == 2 ? 1 : 2) * link_sms(o_.comm_sms));
    }
    // Returns how much longer work takes because communication runs beside it that no layer's time has counted.
    double slowed(const StepTime& step) const {
        double beside = 0;
        for (const auto& [name, group] : step.groups) {
            if (name != "tp" && name != "pp" && name != kExpertGroup)
                beside += std::max(0.0, group.seconds - group.exposed);
        }
        return std::min(beside, step.computing) * multiprocessor_share(o_.comm_sms);
    }

    // Returns true if recompute repeats this matrix's matmul. A recomputed block skips its last projection, whose sum
    // is the layer's output, unless a norm comes after it.
    bool is_made_again(const ParamInfo& param) const {
        return config_.norm_position == NormPosition::after || param.name.find("mlp.") == std::string::npos ||
               !param.name.ends_with("c_proj.weight");
    }

    LayerTime of_layer() const {
        LayerTime layer;
        BranchTime attention_branch, mlp;
        ExpertTime dealt, shared;
        double last = 0;
        for (const ParamInfo& param : table_.all()) {
            if (param.layer != 0 || !param.is_matrix()) continue;
            const LayerMatrix matrix = matrix_of(param);
            const double one = seconds_of(matrix);
            layer.forward += one, layer.input += one, layer.weight += one;
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
        const double attention = 4 * pairs() / attention_rate(o_, config_, machine_);
        layer.flops += 14 * pairs();
        layer.forward += attention + machine_.kernel_seconds;
        layer.input += 2.5 * attention + machine_.kernel_seconds;
        // norms, residual sums, and the MLP's nonlinearity if it has its own kernel
        const bool experts = config_.experts > 0, gated = config_.gated(),
                   apart = experts || !traits_of(config_.mlp).in_matmul || kElement == 4;
        const double residual = residual_bytes_ / sizes_.residual_parts, inner = kElement * activated_elements();
        const int read = gated ? 2 : 1;   // arrays read, of F channels each; experts' matmul still has them in forward
        const double at_hand = kElement * residual_rows() * chosen() * static_cast<double>(config_.expert_width());
        layer.forward += 2 * moved(4 * residual) + (apart ? moved((read + 1) * inner - read * at_hand) + pauses : 0);
        layer.input +=
            2 * (moved(5 * residual) + machine_.kernel_seconds) + (apart ? moved((2 * read + 1) * inner) : 0);
        if (config_.positions == PositionKind::rotary) {
            const double turned = moved(2 * rows_ * sizes_.attended_width() * kElement);
            layer.forward += turned + pauses, layer.input += turned;
        }
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
        add_context_parallel(layer, attention);
        add_expert_parallel(layer, dealt, shared);
        return layer;
    }

    // Elements that the MLP's nonlinearity, or that of the experts, makes of a micro-batch.
    double activated_elements() const {
        if (config_.experts == 0) return rows_ * sizes_.F;
        return residual_rows() * (chosen() + static_cast<double>(config_.shared_experts)) *
               static_cast<double>(config_.expert_width());
    }

    int chunks() const {
        if (mesh_.tp == 1) return 1;
        return tensor_chunks(static_cast<int>(rows_), sequence_parallel_ ? mesh_.tp : 1, o_.tp_chunks);
    }
    // Bytes of one gather, scatter or sum of all rows.
    double tensor_unit() const { return passes() * static_cast<double>(mesh_.tp - 1) / mesh_.tp * residual_bytes_; }
    int passes() const { return sequence_parallel_ ? 1 : 2; }
    double whole_exchange() const { return collective(tensor_unit(), mesh_.tp, 1, passes()); }

    // Exposed exchanges of the embedding and the head.
    struct TensorOutside {
        double embedding_forward = 0, embedding_backward = 0, head = 0;
    };
    TensorOutside tensor_outside() const {
        if (mesh_.tp == 1) return {};
        const double whole = whole_exchange(), f = static_cast<double>(mesh_.tp - 1) / mesh_.tp;
        const double loss =
            collective(2 * f * 4 * rows_, mesh_.tp, 1, 2) + collective(2 * f * 8 * rows_, mesh_.tp, 1, 2);
        if (!sequence_parallel_) return {whole, 0, whole + loss};
        return {whole, whole, 2 * whole + loss};
    }

    // docs/parallelism.md, in units of fs. Forward: each chunk of rows is gathered before its matmul or scattered after
    // it. The first exchange is exposed, and of the others the part that a chunk's matmul does not hide. Backward
    // (Branch::backward): a branch gathers its output's gradient during the weights' gradient of the branch above, and
    // its input during the gradient of that, and scatters during the weights' gradient of its projection. If a
    // recompute level leaves nothing for the next layer, its first gather is exposed. Without sequence parallelism a
    // branch has one sum, during both of its weights' gradients.
    void add_tensor_parallel(LayerTime& layer, const BranchTime& attention, const BranchTime& mlp) const {
        if (mesh_.tp == 1) return;
        const bool block = o_.recompute == Recompute::block;
        const bool drained = block || o_.recompute == Recompute::gelu_norm;
        const bool all_again = block && config_.norm_position == NormPosition::after;
        const bool cut_mlp = config_.experts == 0;   // a mixture works on the rows that the rank has, without exchanges
        const int branches = cut_mlp ? 2 : 1, forward = branches * (sequence_parallel_ ? 2 : 1),
                  backward = branches * (sequence_parallel_ ? 3 : 1),
                  again = block ? forward - (cut_mlp && !all_again ? 1 : 0) : 0;
        const double whole = whole_exchange(), chunk = collective(tensor_unit() / chunks(), mesh_.tp, 1, passes());
        auto in_chunks = [&](double matmul) { return chunk + (chunks() - 1) * shown(chunk, matmul / chunks()); };
        auto entering = [&](const BranchTime& branch) { return sequence_parallel_ ? in_chunks(branch.in) : 0; };
        auto backward_of = [&](const BranchTime& branch, double above) {
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
        if (all_again) layer.tensor_backward += in_chunks(mlp.out);
        // the gradients leave after the next layer's first gather, or before it if there is none
        if (!drained) {
            const bool gathers = sequence_parallel_ && cut_mlp;
            const double work = gathers ? 2 * mlp.out + mlp.in : 2 * (mlp.out + mlp.in);
            layer.tensor_slack = std::max(0.0, work - (gathers ? 2 : 1) * whole);
        }
    }

    void add_context_parallel(LayerTime& layer, double attention) const {
        if (mesh_.cp == 1) return;
        const int u = o_.ulysses(), n = mesh_.cp / u;
        const double s = static_cast<double>(rows_) * sizes_.NH * sizes_.HS, kv = s * sizes_.KV / sizes_.NH;
        const int nodes = nodes_of(mesh_.cp, mesh_.tp);
        const double speed = machine_.link(nodes).bytes_per_second;
        const double exchanged = 2 * 2 * (s + kv) * (u - 1) / u * kElement,
                     exchange = machine_.all_to_all_seconds(exchanged, u, nodes_of(u, mesh_.tp));
        const double ring_forward = 2 * (n - 1) * kv * kElement, ring_backward = ring_forward + 2 * (n - 1) * kv * 4;
        layer.context_bytes = exchanged + ring_forward + ring_backward;
        layer.context_seconds = exchange + (ring_forward + ring_backward) / speed;
        layer.context_exposed = exchange + std::max(0.0, ring_forward / speed - attention * (n - 1) / n) +
                                std::max(0.0, ring_backward / speed - 2.5 * attention * (n - 1) / n);
    }

    // Rows go to their experts and come back, and so do their gradients, chunk by chunk of experts. Each expert gets as
    // many. A block that is computed again, and a gradient of weights that waits, send rows once more.
    void add_expert_parallel(LayerTime& layer, const ExpertTime& experts, const ExpertTime& shared) const {
        if (mesh_.ep == 1) return;
        const bool block = o_.recompute == Recompute::block, zb = o_.pp_schedule == PipelineKind::zero_bubble;
        const int backward = 2 + (block ? 1 : 0) + (zb ? 1 : 0);
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
            expert_exposed({chunks, one, (zb ? 1 : 2) * (shared.in + shared.out),
                            each.in + each.activation_backward + (zb ? 1 : 2) * each.out, zb ? 0 : each.in, true});
        if (block) layer.expert_backward += expert_exposed({chunks, one, shared.in, forward, 0, false});
        if (zb) layer.expert_weight = expert_exposed({chunks, one, 0, each.in + each.out, 0, false});
    }
    int expert_chunks() const {
        if (mesh_.ep == 1) return 1;
        return static_cast<int>(std::min<std::int64_t>(o_.ep_chunks, config_.experts / mesh_.ep));
    }
    double expert_exposed(const ChunkedExchange& exchange) const {
        return exchange.exposed() + multiprocessor_share(o_.comm_sms) * exchange.hidden();
    }

    void add_axes(StepTime& result, const LayerTime& layer, int m) const {
        const double layers = m * static_cast<double>(config_.layers) / mesh_.pp;
        auto add = [&](const std::string& name, int ranks, int stride, double bytes, double exposed,
                       double seconds = 0) {
            if (ranks == 1) return;
            const int nodes = nodes_of(ranks, stride);
            const double travel = bytes / machine_.link(nodes).bytes_per_second;
            GroupTime& group = result.groups[name];
            group.size = {ranks, nodes};
            group.bytes += bytes, group.seconds += seconds > 0 ? seconds : travel, group.exposed += exposed;
        };
        add("tp", mesh_.tp, 1, layers * layer.tensor_bytes, layers * layer.tensor_exposed(),
            layers * layer.tensor_seconds);
        add(o_.ulysses() < mesh_.cp ? "cp ring" : "cp ulysses", mesh_.cp, mesh_.tp, layers * layer.context_bytes,
            layers * layer.context_exposed, layers * layer.context_seconds);
        add(kExpertGroup, mesh_.ep, 1, layers * layer.expert_bytes, layers * layer.expert_exposed(),
            layers * layer.expert_seconds);
        const double border = residual_bytes_ / (sequence_parallel_ ? mesh_.tp : 1);
        add("pp", mesh_.pp, mesh_.dp * mesh_.cp * mesh_.tp, 2 * m * o_.pp_chunks * border, 0);
    }

    ParamStorage storage() const {
        Options unscheduled = o_;   // a schedule takes long to make, and has no part in where parameters are kept
        unscheduled.pp = 1, unscheduled.pp_warmup = 0;
        const StageOptions stage = stage_options(unscheduled, config_, mesh_, {});
        std::vector<LayerRange> ranges;
        bool embedding = false, head = false;
        for (const Chunk& chunk : chunks_of_stage(config_, pipeline_shape(o_), 0, o_.seq_len)) {
            ranges.push_back(chunk.layers);
            embedding = embedding || chunk.embedding, head = head || chunk.head;
        }
        return ParamStorage(table_, stage.place, {ranges, embedding, head});
    }

    // Adds ZeRO's traffic; returns the seconds that the layers of all micro-batches do not hide. The head's work hides
    // none of it, because it comes before.
    double add_zero(StepTime& result, const LayerTime& layer, const ParamStorage& own, int m) const {
        const int ranks = mesh_.dp * mesh_.cp;
        if (ranks == 1) return 0;
        const double gradient = static_cast<double>(size_of(o_.grad_dtype));
        const ZeroTraffic traffic = zero_traffic(own, m, kElement, gradient);
        const double reduced = traffic.reduce + traffic.reduce_to_owner, gathered = traffic.gather + traffic.broadcast;
        const int stride = mesh_.tp, shards = mesh_.shards(), nodes = nodes_of(shards, stride);
        const double layers = static_cast<double>(config_.layers) / mesh_.pp;
        // at the turn between forward and backward, a pipeline stage still has the layer
        const double fetched = o_.zero == 3 && mesh_.pp > 1 ? std::max(0.0, 1 - 1 / layers) : 1;
        const int times = o_.zero >= 2 ? m : 1, fetches = o_.zero == 3 ? 2 * m : 1,
                  units = static_cast<int>(own.units().size());
        double kept = 0, largest = 0, first = 0;   // elements of all units, the largest layer, the lowest unit
        for (const UnitLayout& unit : own.units()) {
            const auto elements = static_cast<double>(own.unit_elements(unit, StateKind::optimizer));
            kept += elements;
            if (first == 0) first = elements;
            if (&unit != &own.units().front()) largest = std::max(largest, elements);
        }
        // each micro-batch but the first adds its gradients to the earlier ones, on the stream of the traffic
        const double added = o_.zero >= 2 ? moved(3 * gradient * kept) : 0;
        const double travel = collectives(times * units, reduced, shards, stride, o_.zero == 0 ? 2 : 1),
                     reduce = travel + (times - 1) * added,
                     gather = o_.zero == 0 ? 0 : fetched * collectives(fetches * units, gathered, shards, stride, 1),
                     between = collective(traffic.replicas, ranks / shards, stride * shards, 2);
        const double forward = layers * layer.forward_seconds(),
                     backward = layers * (layer.input_seconds() + layer.weight_seconds());
        const double one = reduce / times, last = one * first / kept;
        // The next micro-batch's forward can run while gradients travel that have buffers of their own: the
        // embedding's, which most pipeline stages do not have, and those of zero_layer_sets layers.
        const double free = zero_layer_sets * largest + (mesh_.pp == 1 ? first : 0);
        const double tail = std::min(one, one * free / kept) - backward / layers;
        const double fetch = o_.zero == 3 ? gather / fetches : 0;
        const double late = std::max(0.0, one + fetch - backward), forward_late = std::max(0.0, fetch - forward);
        const double hidden = std::max(0.0, std::min(forward - fetch, tail));
        double exposed = between + std::max(last, late) + (times - 1) * std::max(0.0, late - hidden);
        exposed += o_.zero == 3 ? m * forward_late : std::max(0.0, gather - forward);
        // Traffic on the same links delays tensor parallelism's exchanges: a layer's gradients once the work before the
        // next exchange is over, parameters at once.
        if (mesh_.tp > 1 && o_.zero >= 2 && nodes == 1) {
            const double beside = std::max(0.0, travel - times * layers * layer.tensor_slack);
            exposed = std::max(exposed, beside + (o_.zero == 3 ? gather : 0) + between);
        }
        GroupTime& group = result.groups[group_name(mesh_, zero_axes)];
        group.size = {ranks, nodes};
        group.bytes += reduced + gathered + traffic.replicas;
        group.seconds += reduce + gather + between, group.exposed += exposed;
        return exposed;
    }

    // Adds the sum over tp ranks, at the end of a step, of gradients that each has in part: norms', and a mixture's
    // (llmc/parallel/partial_gradients.h). Returns its seconds with those of packing, which nothing hides.
    double add_partial_sums(StepTime& result, const ParamStorage& own) const {
        if (!sequence_parallel_) return 0;
        double bytes = 0;
        for (const TensorLayout& tensor : own.tensors()) {
            const TensorSpec& spec = table_[tensor.param].tensor;
            if (!spec.partial.contains(Axis::tp) || is_expert_parallel(spec, mesh_)) continue;
            bytes += static_cast<double>(own.padded_elements(tensor, StateKind::optimizer)) *
                     static_cast<double>(size_of(o_.grad_dtype));
        }
        const double sent = 2.0 * (mesh_.tp - 1) / mesh_.tp * bytes, one = collective(sent, mesh_.tp, 1, 2);
        GroupTime& group = result.groups["tp"];
        group.bytes += sent, group.seconds += one, group.exposed += one;
        return one + 2 * moved(2 * bytes);
    }

    // Seconds of the update: it reads gradients twice, and reads and writes states and parameters.
    double optimizer_seconds(const ParamStorage& own) const {
        double owned = 0;
        for (const UnitLayout& unit : own.units()) {
            owned += static_cast<double>(own.unit_elements(unit, StateKind::optimizer));
        }
        const double gradient = static_cast<double>(size_of(o_.grad_dtype)),
                     masters = kElement == 2 && o_.master_weights ? 8 : 0;
        return moved(owned * (2 * gradient + 16 + masters + 2 * kElement));
    }

    const Options& o_;
    const ModelConfig& config_;
    const MeshShape& mesh_;
    const Machine& machine_;
    const ParamTable table_;
    const bool sequence_parallel_;
    const RankSizes sizes_;
    const double rows_, residual_bytes_;
};

}   // namespace

StepTime closed_form_time(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                          const Machine& machine, PipelineTime pipeline) {
    return ClosedForm(options, config, mesh, machine).time(pipeline);
}

double least_seconds(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine) {
    return ClosedForm(options, config, mesh, machine).least();
}
