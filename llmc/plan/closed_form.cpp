#include "llmc/plan/closed_form.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/parallel/zero_formulas.h"
#include "llmc/plan/layer_form.h"
#include "llmc/plan/pipeline_estimate.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"

namespace {

class ClosedForm : LayerForm {
public:
    using LayerForm::LayerForm;

    StepTime time(PipelineTime how) const {
        const LayerTime layer = of_mean_layer(), sliding = sliding_share() > 0 ? of_layer(true) : layer,
                        full = sliding_share() < 1 ? of_layer(false) : layer;
        const double head = seconds_of(classifier()) + moved(3 * rows_ * sizes_.Vp * kElement) / 3,
                     head_weight = weight_seconds_of(classifier());
        const TensorOutside outside = tensor_outside();
        StepTime result;
        PipelineCosts costs;
        const int pieces = mesh_.pp * o_.pipeline.chunks;
        costs.pieces.resize(static_cast<std::size_t>(pieces));
        double compute = 0;   // all pieces, per micro-batch
        for (int stage = 0; stage < mesh_.pp; stage++) {
            const auto chunks = chunks_of_stage(config_, pipeline_shape(o_), stage, o_.seq_len);
            for (std::size_t c = 0; c < chunks.size(); c++) {
                const double with_head = chunks[c].head ? 1 : 0;
                auto layers = [&](double (LayerTime::*part)() const) {
                    const double slide = sliding_layers(chunks[c].layers);
                    return slide * (sliding.*part)() + (chunks[c].layers.size() - slide) * (full.*part)();
                };
                // without recompute, the head's loss is a part of backward
                costs.pieces[c * static_cast<std::size_t>(mesh_.pp) + static_cast<std::size_t>(stage)] = {
                    layers(&LayerTime::forward_seconds) + (chunks[c].embedding ? outside.embedding_forward : 0),
                    layers(&LayerTime::input_seconds) + (chunks[c].embedding ? outside.embedding_backward : 0) +
                        (chunks[c].head ? 2 * head + outside.head : layer.tensor_turn),
                    layers(&LayerTime::weight_seconds) + with_head * head_weight};
                compute += layers(&LayerTime::compute) + with_head * (2 * head + head_weight);
            }
        }
        costs.transfer = mesh_.pp > 1 ? border_seconds() : 0;
        const int m = o_.micro_steps();
        const Pipelined found = how == PipelineTime::simulated ? pipelined(costs, m) : estimated(costs, m);
        add_axes(result, layer, m);
        const ParamStorage own = storage();
        const double update = optimizer_seconds(own);
        const double zero_exposed =
            add_zero(result, layer, own, m) + add_partial_sums(result, own) + add_tied_sum(result, own);
        result.computing = m * compute / mesh_.pp + update;
        const double inside = m * static_cast<double>(config_.layers) / mesh_.pp *
                              (layer.tensor_exposed() + layer.context_exposed() + layer.expert_exposed());
        result.exposed = zero_exposed + inside;
        result.bubble_share = mesh_.pp > 1 ? found.idle_share : 0;
        result.seconds = found.makespan * (1 + slowed_by_links()) + update + zero_exposed + slowed(result);
        result.flops = m * (static_cast<double>(config_.layers) * layer.flops + 3 * classifier().flops());
        return result;
    }

    double collectives_share() const {
        const StepTime step = time(PipelineTime::estimated);
        const int m = o_.micro_steps(), reduced = zero_reductions(o_.zero, m);
        const double all = (step.computing - optimizer_seconds(storage())) / m,
                     backward = all * (o_.recompute == Recompute::block ? 0.75 : 2.0 / 3);
        // parameters that are gathered once travel beside forward
        const double gradients = reduced * static_cast<double>(size_of(o_.grad_dtype)),
                     parameters = zero_gathers(o_.zero, m) == 1 ? kElement : 0;
        double share = 0;
        for (const auto& [name, group] : step.groups) {
            if (name == "pp") continue;
            const bool of_experts = mesh_.ep > 1 && name == group_name(mesh_, holder_axes),
                       of_gradients = name != "tp" && (of_experts || name == group_name(mesh_, zero_axes));
            if (of_gradients && !shards_parameters()) {
                share += group.seconds * gradients / (gradients + parameters) / (reduced * backward);
            } else {   // forward and backward alike
                share += group.seconds / (m * all);
            }
        }
        return share;
    }

    double least() const {
        const double matmul = 1 / machine_.best_matmul(), attention = 4 / machine_.attention_per_second,
                     full = pairs(false), sliding = pairs(true);
        double of_layer = 0, before = 0, most = 0;   // forward seconds of a layer, and of the earlier stages
        for (const ParamInfo& param : table_.all()) {
            if (param.layer != 0 || !param.is_matrix()) continue;
            of_layer += matrix_of(param).flops() * matmul;
        }
        const double head = classifier().flops() * matmul;
        for (int stage = 0; stage < mesh_.pp; stage++) {
            double own = 0, forward = 0;
            for (const Chunk& chunk : chunks_of_stage(config_, pipeline_shape(o_), stage, o_.seq_len)) {
                const double n = chunk.layers.size(), slide = sliding_layers(chunk.layers),
                             attended = attention * (slide * sliding + (n - slide) * full);
                own += n * 3 * of_layer + 3.5 * attended + (chunk.head ? 3 * head : 0);
                if (o_.pipeline.chunks == 1) forward += n * of_layer + attended;
            }
            most = std::max(most, before + o_.micro_steps() * own);
            before += forward;
        }
        return most;
    }

private:
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
            return simulate(pipeline_schedules(shape), o_.pipeline.chunks, costs);
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

    bool pipeline_leaves_node() const { return mesh_.size() > machine_.devices_per_node; }
    double border_seconds() const {
        const Link& link = machine_.link(pipeline_leaves_node() ? 2 : 1);   // the slowest link
        return link.seconds + residual_bytes_ / (sequence_parallel_ ? mesh_.tp : 1) / link.bytes_per_second;
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
            layers * layer.context_exposed(), layers * layer.context_seconds);
        add(kExpertGroup, mesh_.ep, 1, layers * layer.expert_bytes, layers * layer.expert_exposed(),
            layers * layer.expert_seconds);
        const double border = residual_bytes_ / (sequence_parallel_ ? mesh_.tp : 1);
        add("pp", mesh_.pp, mesh_.dp * mesh_.cp * mesh_.tp, 2 * m * o_.pipeline.chunks * border, 0);
    }

    ParamStorage storage() const {
        Options unscheduled = o_;   // a schedule takes long to make, and has no part in where parameters are kept
        unscheduled.pp = 1, unscheduled.pipeline.warmup = 0;
        const StageOptions stage = stage_options(unscheduled, config_, mesh_, {});
        std::vector<LayerRange> ranges;
        bool embedding = false, head = false;
        for (const Chunk& chunk : chunks_of_stage(config_, pipeline_shape(o_), 0, o_.seq_len)) {
            ranges.push_back(chunk.layers);
            embedding = embedding || chunk.embedding, head = head || chunk.head;
        }
        return ParamStorage(table_, stage.place, {ranges, embedding, head});
    }

    // Gradients and parameters that the ranks of some axes send each other, and gradients between ZeRO groups.
    struct ZeroTime {
        PlannedGroup group;
        double bytes = 0, travel = 0, gather = 0, between = 0;   // the others in seconds
    };
    ZeroTime zero_time(const ParamStorage& own, const AxisSet& axes, int times, int fetches, double fetched) const {
        const ZeroTraffic traffic =
            zero_traffic(own, o_.micro_steps(), kElement, static_cast<double>(size_of(o_.grad_dtype)), axes);
        const double reduced = traffic.reduce + traffic.reduce_to_owner, gathered = traffic.gather + traffic.broadcast;
        ZeroTime found;
        found.bytes = reduced + gathered + traffic.replicas;
        if (found.bytes == 0) return found;
        MeshShape stage = mesh_;   // groups are inside a stage
        stage.pp = 1;
        found.group = {group_size(mesh_, axes),
                       most_nodes(group_members(stage, {}, axes), mesh_.size(), machine_.devices_per_node)};
        const int units = static_cast<int>(own.units().size());
        auto seconds = [&](int count, double bytes, int passes) {
            return bytes == 0 ? 0 : count * collective_seconds(machine_, found.group, bytes / count, passes);
        };
        found.travel = seconds(times * units, reduced, zero_reduce_passes(o_.zero));
        found.gather = fetched * seconds(fetches * units, gathered, 1);
        const int replicas = mesh_.dp * mesh_.cp / mesh_.shards();
        found.between = collective(traffic.replicas, replicas, mesh_.tp * mesh_.shards(), 2);
        return found;
    }

    // Traffic on the same links delays the exchanges of layers: gradients once the work before the next exchange is
    // over (slack), parameters once a layer's work before its first is (before). Infinite: there are no such exchanges.
    struct Beside {
        double slack, before;
    };
    Beside beside(const LayerTime& layer, int nodes) const {
        Beside least{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
        auto add = [&](int ranks, int stride, double slack, double before) {
            if (ranks == 1 || (nodes_of(ranks, stride) > 1) != (nodes > 1)) return;
            least = {std::min(least.slack, slack), std::min(least.before, before)};
        };
        add(mesh_.tp, 1, layer.tensor_slack, 0);
        add(mesh_.cp, mesh_.tp, layer.context_slack, layer.context_before);
        add(mesh_.ep, 1, layer.expert_slack, layer.expert_before);
        return least;
    }

    // Adds ZeRO's traffic; returns the seconds that the layers of all micro-batches do not hide. The head's work hides
    // none of it, because it comes before.
    double add_zero(StepTime& result, const LayerTime& layer, const ParamStorage& own, int m) const {
        const double gradient = static_cast<double>(size_of(o_.grad_dtype)),
                     layers = static_cast<double>(config_.layers) / mesh_.pp;
        // at the turn between forward and backward, a pipeline stage still has the layer
        const double fetched = shards_parameters() && mesh_.pp > 1 ? std::max(0.0, 1 - 1 / layers) : 1;
        const int times = zero_reductions(o_.zero, m), fetches = zero_gathers(o_.zero, m),
                  units = static_cast<int>(own.units().size());
        const ZeroTime all = zero_time(own, zero_axes, times, fetches, fetched),
                       experts = zero_time(own, holder_axes, times, fetches, fetched);
        if (all.bytes + experts.bytes == 0) return 0;
        const double travel = all.travel + experts.travel, gather = all.gather + experts.gather,
                     between = all.between + experts.between;
        const int nodes = std::max(all.group.nodes, experts.group.nodes);
        double kept = 0, largest = 0, first = 0;   // elements of all units, the largest layer, the lowest unit
        for (const UnitLayout& unit : own.units()) {
            const auto elements = static_cast<double>(own.unit_elements(unit, StateKind::optimizer));
            kept += elements;
            if (first == 0) first = elements;
            if (&unit != &own.units().front()) largest = std::max(largest, elements);
        }
        // each micro-batch but the first adds its gradients to the earlier ones, on the stream of the traffic
        const double added = shards_gradients() ? moved(3 * gradient * kept) : 0, reduce = travel + (times - 1) * added;
        // zb's gradients travel beside those of weights, and on beside the next forward and backward
        const double forward = layers * layer.forward_seconds(), input = layers * layer.input_seconds(),
                     reducing = layers * layer.weight_seconds() + (zb_ ? 0 : input), next = forward + (zb_ ? input : 0);
        const double one = reduce / times, last = one * first / kept;
        // The next micro-batch's forward can run while gradients travel that have buffers of their own: the
        // embedding's, which most pipeline stages do not have, and those of zero_layer_sets layers.
        const double free = zero_layer_sets * largest + (mesh_.pp == 1 ? first : 0);
        const double tail = std::min(one, one * free / kept) - reducing / layers;
        const double fetch = shards_parameters() ? gather / fetches : 0, fetched_too = zb_ ? 0 : fetch;
        const double late = std::max(0.0, one + fetched_too - reducing),
                     fetch_late = std::max(0.0, fetch - forward) + (zb_ ? std::max(0.0, fetch - input) : 0);
        const double hidden = std::max(0.0, std::min(next - (zb_ ? 2 : 1) * fetch, tail));
        double exposed = between + std::max(last, late) + (times - 1) * std::max(0.0, late - hidden);
        exposed += shards_parameters() ? m * fetch_late : std::max(0.0, gather - forward);
        const auto [slack, before] = beside(layer, nodes);
        const bool is_delaying = shards_gradients() && std::isfinite(slack);
        if (is_delaying) {
            // parameters wait for gradients in flight, so the next exchange goes before them
            const double each_way = shards_parameters() ? gather / 2 : 0, works = times * layers,
                         backward_way = reduces_behind_block() ? 0   // they go first, beside the recompute
                                                               : std::max(0.0, each_way - works * layer.tensor_between);
            exposed = std::max(exposed, std::max(0.0, each_way - works * before) +
                                            std::max(0.0, travel + backward_way - works * slack) + between);
        }
        // At the ends of an interleaved stage's chunk, traffic and work take turns, which costs the shorter of the two:
        // the first fetch comes before the work; the last gradients come before what goes to another stage on their
        // link.
        if (o_.pipeline.chunks > 1) {
            const bool waits_for_gradients =
                           shards_parameters()
                               ? !is_delaying || mesh_.tp > 1
                               : shards_gradients() && (is_delaying || (nodes > 1) == pipeline_leaves_node()),
                       waits_for_fetch = shards_parameters() && !is_delaying;   // else counted above
            const double last_gradients = waits_for_gradients ? travel / (times * units) : 0,
                         first_fetch = waits_for_fetch ? fetch / units : 0;
            exposed += m * o_.pipeline.chunks *
                       (std::min(first_fetch, layer.forward_seconds()) +
                        std::min(first_fetch + last_gradients, reducing / layers));
        }
        for (const auto& [axes, own_time] : {std::pair{zero_axes, all}, {holder_axes, experts}}) {
            if (own_time.bytes == 0) continue;
            GroupTime& group = result.groups[group_name(mesh_, axes)];
            const double share = (own_time.travel + own_time.gather) / (travel + gather);
            group.size = own_time.group;
            group.bytes += own_time.bytes;
            group.seconds += own_time.travel + own_time.gather + own_time.between + share * (reduce - travel);
            group.exposed += share * exposed;
        }
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

    // Adds the sum of a tied embedding's gradient over the first and the last stage, at the end of a step, which
    // nothing hides (GradientSync::exchange_tied_gradients). Returns its seconds.
    double add_tied_sum(StepTime& result, const ParamStorage& first_stage) const {
        if (mesh_.pp == 1 || !config_.tied) return 0;
        double bytes = 0;
        for (const TensorLayout& tensor : first_stage.tensors()) {
            if (!table_[tensor.param].tensor.tied) continue;
            bytes += static_cast<double>(first_stage.padded_elements(tensor, StateKind::optimizer)) *
                     static_cast<double>(size_of(o_.grad_dtype));
        }
        const double one = collective_seconds(machine_, {2, pipeline_leaves_node() ? 2 : 1}, bytes, 2);
        GroupTime& group = result.groups["pp"];
        group.bytes += bytes, group.seconds += one, group.exposed += one;
        return one;
    }

    // Seconds of the update: it reads gradients twice, and reads and writes states and parameters.
    double optimizer_seconds(const ParamStorage& own) const {
        double owned = 0;
        for (const UnitLayout& unit : own.units()) {
            owned += static_cast<double>(own.unit_elements(unit, StateKind::optimizer));
        }
        double bytes = 2 * static_cast<double>(size_of(o_.grad_dtype)) + 2 * kElement;   // an element
        for (const OptimizerStateSpec& state : optimizer_states(o_, mesh_)) {
            if (!state.averages && !state.optional) bytes += 2 * static_cast<double>(size_of(state.type));
        }
        return moved(owned * bytes);
    }
};

}   // namespace

StepTime closed_form_time(const Options& options, const ParamTable& table, const MeshShape& mesh,
                          const Machine& machine, PipelineTime pipeline) {
    return ClosedForm(options, table, mesh, machine).time(pipeline);
}

double collectives_share(const Options& options, const ParamTable& table, const MeshShape& mesh,
                         const Machine& machine) {
    return ClosedForm(options, table, mesh, machine).collectives_share();
}

double least_seconds(const Options& options, const ParamTable& table, const MeshShape& mesh, const Machine& machine) {
    return ClosedForm(options, table, mesh, machine).least();
}
