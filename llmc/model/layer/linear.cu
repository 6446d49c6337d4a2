#include "llmc/model/layer/linear.h"

#include "llmc/model/layer/operands.h"

Linear::Linear(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer)
    : Linear(tools, parameters, parameters.index(name + ".weight", layer),
             parameters.storage().table().find(name + ".bias", layer)) {
    may_round_ = true;
}

Linear::Linear(const StageTools& tools, const ModelState<floatX>& parameters, int weight, int bias)
    : tools_(tools), weight_index_(weight), bias_index_(bias), weight_(parameters.tensor(weight)) {
    const ParamStorage& storage = parameters.storage();
    const TensorSpec& tensor = storage.table()[weight].tensor;
    const TensorSpec shard = tp_shard_of(tensor, storage.place().mesh.tp);
    out_ = static_cast<int>(shard.rows);
    in_ = static_cast<int>(shard.cols);
    const bool adds_bias = tensor.cut != TensorCut::row_parallel || storage.place().at.tp == 0;
    if (bias >= 0 && adds_bias) bias_ = parameters.tensor(bias);
}

void Linear::add_parameters(std::vector<ParamRow>& rows, bool has_bias, const char* name, TensorSpec weight,
                            TensorSpec bias, bool writes_residual) {
    rows.push_back({.name = text(name, ".weight"),
                    .tensor = std::move(weight),
                    .init = Init::normal,
                    .writes_residual = writes_residual,
                    .decays = true,
                    .orthogonal = true,
                    .hf_transposed = true});
    if (has_bias) rows.push_back({.name = text(name, ".bias"), .tensor = std::move(bias)});
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows of this rank

const floatX* Linear::weight() const { return may_round_ ? weight_operand(tools_, weight_, out_, in_) : weight_; }
const floatX* Linear::operand(const floatX* values, int rows, int cols) const {
    return may_round_ ? row_operand(tools_, values, rows, cols) : values;
}

void Linear::forward(floatX* out, const floatX* in, int rows) const {
    tools_.matmul.forward<floatX>(out, operand(in, rows, in_), weight(), bias_, shape(rows), tools_.stream);
}

void Linear::forward_gelu(floatX* gelu, floatX* pre_gelu, const floatX* in, int rows) const {
    tools_.matmul.forward_gelu<floatX>(gelu, pre_gelu, operand(in, rows, in_), weight(), bias_, shape(rows),
                                       tools_.stream);
}

void Linear::forward_few(floatX* out, const floatX* in, int rows) const {
    tools_.matmul.forward_few<floatX>(out, operand(in, rows, in_), weight(), bias_, shape(rows), tools_.stream);
}

void Linear::backward_input(floatX* din, const floatX* dout, int rows) const {
    tools_.matmul.input_gradient<floatX>(din, operand(dout, rows, out_), weight(), shape(rows), false, tools_.stream);
}

void Linear::backward_input_gelu(floatX* din, const floatX* dout, const floatX* pre_gelu, int rows) const {
    tools_.matmul.input_gradient_gelu<floatX>(din, operand(dout, rows, out_), weight(), pre_gelu, shape(rows),
                                              tools_.stream);
}

void Linear::backward_weight(Gradients& gradients, const floatX* dout, const floatX* in, int rows) const {
    const GradientTarget dweight = gradients.next(weight_index_);
    if (bias_index_ < 0) {
        return with_gradient_type<floatX>(gradients.type(), [&]<class G> {
            tools_.matmul.weight_gradient<floatX>(dweight.data.as<G>(), dout, in, shape(rows), dweight.accumulate,
                                                  tools_.stream);
        });
    }
    const GradientTarget dbias = gradients.next(bias_index_);
    ENSURE(dbias.accumulate == dweight.accumulate, "a bias whose gradient is made more often than its weight's");
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        tools_.matmul.weight_and_bias_gradient<floatX>(dweight.data.as<G>(), dbias.data.as<G>(), dout, in, shape(rows),
                                                       dweight.accumulate, tools_.stream);
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Column parallel

const floatX* Linear::end_backward(const SublayerBackward& args, const floatX* dout, floatX* kept) const {
    TpRegion& tp = tools_.tp;
    const int rows = tools_.sizes.rows();
    const floatX* const in = args.in;
    const floatX* const read = args.keep(kept, dout, std::int64_t{rows} * out_, tools_.stream);
    args.queue.add({.prefetch = [&tp, in] { tp.prefetch(in); },
                    .run = [=, this, &tp,
                            &gradients = args.gradients] { backward_weight(gradients, read, tp.gather(in), rows); }});
    floatX* const part_of_sum = tools_.workspace.dnormed;
    backward_input(part_of_sum, dout, rows);
    return tp.sum_gradient(part_of_sum, args.queue);
}

// ---------------------------------------------------------------------------------------------------------------------
// Row parallel

void Linear::forward_join(floatX* out, const floatX* in, const Join& join) const {
    TpRegion& tp = tools_.tp;
    if (out == nullptr) return;
    if (join.residual && tp.makes_whole_sums()) {
        const int rows = tools_.sizes.rows();
        tools_.matmul.forward_add<floatX>(out, join.residual, operand(in, rows, in_), weight(), bias_, shape(rows),
                                          tools_.stream);
        if (join.norm) join.norm->forward(join.to, out);
        return;
    }
    ENSURE(join.residual || join.norm == nullptr, "a norm of an output that is not added to the residual stream");
    // Without a residual, sums are made in place if this rank has all rows.
    floatX* const sums = join.residual ? nullptr : out;
    floatX* const parts = sums && tools_.sizes.residual_parts == 1 ? sums : tools_.workspace.branch_out;   // (R, C)
    for (int i = 0; i < tp.summed_chunks(); i++) {
        const Rows rows = tp.rows_of(i);
        forward(at_row(parts, rows, out_), at_row(in, rows, in_), rows.count);
        tp.begin_sum(parts, sums, i);
    }
    const floatX* const branch = tp.wait_for_sums(parts, sums);
    if (join.residual) add_branch(out, branch, join, tools_);
}

const floatX* Linear::begin_backward(const SublayerBackward& args, const floatX* in) const {
    TpRegion& tp = tools_.tp;
    const int rows = tools_.sizes.rows();
    const floatX* const dout = tp.gather_gradient(args.dout, args.queue);
    const floatX* gathered = dout;
    if (args.delayed()) {   // the memory of a residual stream has no room for all rows: they are gathered again
        const floatX* const kept =
            args.keep(args.kept_dout, args.dout, tools_.sizes.residual_elements(), tools_.stream);
        args.queue.add({.run = [&tp, kept, &queue = args.queue] { tp.gather_gradient(kept, queue); }});
        gathered = tp.gathered_gradient(kept);
    }
    args.queue.add({.run = [=, this, &gradients = args.gradients] { backward_weight(gradients, gathered, in, rows); }});
    return dout;
}
