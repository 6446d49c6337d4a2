// Finds by formulas what a layer takes on one rank, for the closed forms of a plan (closed_form.cpp).
#pragma once

#include "llmc/model/layer/tp_region.h"
#include "llmc/model/memory/rank_sizes.h"
#include "llmc/model/parameters/param_table.h"
#include "llmc/model/precision.h"
#include "llmc/parallel/zero_formulas.h"
#include "llmc/plan/layer_time.h"
#include "llmc/plan/step_time.h"

// Times of a layer, and of the parts that times of a step are made of (ClosedForm builds upon it).
class LayerForm {
public:
    LayerForm(const Options& options, const ParamTable& table, const MeshShape& mesh, const Machine& machine);

    // Return the time of a layer that slides or does not, and the mean over all layers.
    LayerTime of_layer(bool slides) const;
    LayerTime of_mean_layer() const;

protected:
    static constexpr double kElement = sizeof(floatX);

    // Returns the pairs of a query and a key that are seen at each step of a ring, times the head size; one layer and
    // micro-batch. Under a window they are those of the last ring rank, which no other has more of.
    std::vector<double> step_pairs(bool slides) const;
    double pairs(bool slides) const;   // their sum
    double sliding_layers(const LayerRange& layers) const;
    double sliding_share() const { return sliding_layers({0, config_.layers}) / static_cast<double>(config_.layers); }

    bool shards_gradients() const { return is_sharded(StateKind::gradients, o_.zero); }
    bool shards_parameters() const { return is_sharded(StateKind::parameters, o_.zero); }

    double moved(double bytes) const { return machine_.seconds_of(0, bytes); }
    // Seconds of a product with a matrix, forward or for the gradient of its input.
    double seconds_of(const LayerMatrix& m) const {
        return machine_.seconds_of(m.flops(), kElement * (m.rows * (m.outputs + m.inputs) + m.elements));
    }
    // Seconds of the gradient of the weights, which micro-batches add to unless ZeRO takes it away.
    double weight_seconds_of(const LayerMatrix& m) const {
        const double passes = !shards_gradients() && o_.micro_steps() > 1 ? 2 : 1;
        return machine_.seconds_of(m.flops(), kElement * m.rows * (m.outputs + m.inputs) +
                                                  passes * static_cast<double>(size_of(o_.grad_dtype)) * m.elements);
    }
    // Gradients that wait for a fetch are reduced behind the exchanges of the recompute.
    bool reduces_behind_block() const { return reduces_behind_fetch(o_.zero, zb_) && o_.recompute == Recompute::block; }
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
    // Seconds of a collective of neighbouring ranks, `stride` apart.
    double collective(double bytes, int ranks, int stride, int passes) const {
        return ranks == 1 ? 0 : collective_seconds(machine_, {ranks, nodes_of(ranks, stride)}, bytes, passes);
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

    int chunks() const {
        if (mesh_.tp == 1) return 1;
        return tensor_chunks(static_cast<int>(rows_), sequence_parallel_ ? mesh_.tp : 1, o_.tp_chunks);
    }
    // Bytes of one gather, scatter or sum of all rows.
    double tensor_unit() const { return passes() * static_cast<double>(mesh_.tp - 1) / mesh_.tp * residual_bytes_; }
    int passes() const { return sequence_parallel_ ? 1 : 2; }
    double whole_exchange() const { return collective(tensor_unit(), mesh_.tp, 1, passes()); }

    const Options& o_;
    const ParamTable table_;
    const ModelConfig& config_;   // table_'s
    const MeshShape& mesh_;
    const Machine& machine_;
    const bool sequence_parallel_;
    const bool zb_;   // gradients of weights are delayed
    const RankSizes sizes_;
    const double rows_, residual_bytes_;
    const std::vector<double> sliding_pairs_;   // step_pairs of a layer that slides; empty if none does

private:
    static constexpr int kRouterKernels = 4;   // that choose experts and order their rows, each way

    bool is_made_again(const ParamInfo& param) const;
    double activated_elements() const;
    // `steps`: seconds of attention's forward at each step of the ring, 0 where no query sees a key.
    void add_context_kernels(LayerTime& layer, const std::vector<double>& steps) const;
    void add_tensor_parallel(LayerTime& layer, const BranchTime& attention, const BranchTime& mlp) const;
    void add_context_parallel(LayerTime& layer, const BranchTime& attention, const BranchTime& mlp,
                              const std::vector<double>& steps) const;
    ContextElements context_elements() const;
    void add_expert_parallel(LayerTime& layer, const ExpertTime& experts, const ExpertTime& shared) const;
    int expert_chunks() const;
    double expert_exposed(const ChunkedExchange& exchange) const;
};
