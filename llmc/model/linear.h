// A linear layer of this rank, out = in weight^T + bias, and the queue in which gradients of weights wait.
//
// Backward has two parts. `backward_input` is what the layer below waits for. Nobody waits for `backward_weight` but
// the optimizer, so it goes through a WeightGradientQueue: it may run behind a collective, or at another time of the
// pipeline's schedule (Qi et al., "Zero bubble pipeline parallelism", 2023).
//
// Sizes are those of this rank's tp shard: a layer cut by rows (Megatron's column parallel) makes some of the outputs,
// one cut by columns (row parallel) a part of every sum. The bias of the latter is added by tp rank 0 alone, so that
// the sum over ranks has it once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/parameters/gradients.h"
#include "llmc/model/precision.h"

// Times at which queued work runs: in the order of add(), at the latest at drain().
enum class WeightGradients : std::uint8_t {
    at_once,
    behind_collective,   // after a collective of backward has been started, to hide it
    at_schedule,         // in the schedule's backward_weight: what it reads must be kept until then
};

// A gradient of weights that waits. `prefetch`, or none, starts to bring what `run` reads from other ranks.
struct WeightGradient {
    std::function<void()> prefetch = {}, run;
};

class WeightGradientQueue {
public:
    static constexpr std::size_t all = SIZE_MAX;

    explicit WeightGradientQueue(WeightGradients when = WeightGradients::at_once) : when_(when) {}

    // Adds an item. What it reads is fetched at once, to travel beside the work that comes next; or if it runs at the
    // schedule's time, beside the item before it.
    void add(WeightGradient item) {
        if (when_ != WeightGradients::at_schedule) begin_fetch(item);
        if (when_ == WeightGradients::at_once) return item.run();
        waiting_.push_back({std::move(item), {}});
    }
    // Runs `work` right after the item that was added last.
    void then(std::function<void()> work) {
        if (waiting_.empty()) return work();
        waiting_.back().after.push_back(std::move(work));
    }
    // Runs at most `most` of the waiting items, the oldest, behind a collective. What the others read must be kept.
    void collective_started(std::size_t most = all) {
        if (when_ == WeightGradients::behind_collective) run(most);
    }
    void drain() { run(all); }

private:
    struct Waiting {
        WeightGradient item;
        std::vector<std::function<void()>> after;
    };
    static void begin_fetch(WeightGradient& item) {
        if (item.prefetch) std::exchange(item.prefetch, nullptr)();
    }
    void run(std::size_t most) {
        for (; most > 0 && !waiting_.empty(); most--) {
            Waiting next = std::move(waiting_.front());
            waiting_.pop_front();
            begin_fetch(next.item);
            if (!waiting_.empty()) begin_fetch(waiting_.front().item);
            next.item.run();
            for (const std::function<void()>& work : next.after) work();
        }
    }

    WeightGradients when_;
    std::deque<Waiting> waiting_;
};

class Linear {
public:
    // `weight` and `bias` are indices of the parameter table; -1: no bias.
    Linear(Matmul& matmul, const ModelState<floatX>& parameters, int weight, int bias)
        : matmul_(matmul), weight_index_(weight), bias_index_(bias) {
        const ParamStorage& storage = parameters.storage();
        const TensorSpec& tensor = storage.table()[weight].tensor;
        const TensorSpec shard = tp_shard_of(tensor, storage.place().mesh.tp);
        out_ = static_cast<int>(shard.rows);
        in_ = static_cast<int>(shard.cols);
        weight_ = parameters.tensor(weight);
        const bool adds_bias = tensor.cut != TensorCut::columns || storage.place().at.tp == 0;
        if (bias >= 0 && adds_bias) bias_ = parameters.tensor(bias);
    }

    int out_channels() const { return out_; }
    int in_channels() const { return in_; }

    // Computes out (rows, out) from in (rows, in).
    void forward(floatX* out, const floatX* in, int rows, cudaStream_t stream) const {
        matmul_.forward<floatX>(out, in, weight_, bias_, shape(rows), stream);
    }
    // Computes forward() plus `residual` (rows, out). Not for one of several shards cut by columns: their parts are
    // summed first.
    void forward_add(floatX* out, const floatX* residual, const floatX* in, int rows, cudaStream_t stream) const {
        matmul_.forward_add<floatX>(out, residual, in, weight_, bias_, shape(rows), stream);
    }
    void forward_gelu(floatX* gelu, floatX* pre_gelu, const floatX* in, int rows, cudaStream_t stream) const {
        matmul_.forward_gelu<floatX>(gelu, pre_gelu, in, weight_, bias_, shape(rows), stream);
    }
    // Computes forward() of few rows (generation).
    void forward_few(floatX* out, const floatX* in, int rows, cudaStream_t stream) const {
        matmul_.forward_few<floatX>(out, in, weight_, bias_, shape(rows), stream);
    }
    // Computes din (rows, in) from dout (rows, out).
    void backward_input(floatX* din, const floatX* dout, int rows, cudaStream_t stream) const {
        matmul_.input_gradient<floatX>(din, dout, weight_, shape(rows), false, stream);
    }
    // Computes backward_input() times the derivative of the GELU below, whose input was `pre_gelu` (rows, in).
    void backward_input_gelu(floatX* din, const floatX* dout, const floatX* pre_gelu, int rows,
                             cudaStream_t stream) const {
        matmul_.input_gradient_gelu<floatX>(din, dout, weight_, pre_gelu, shape(rows), stream);
    }
    void backward_weight(Gradients& gradients, const floatX* dout, const floatX* in, int rows,
                         cudaStream_t stream) const {
        const GradientTarget dweight = gradients.next(weight_index_);
        if (bias_index_ < 0) {
            return with_gradient_type<floatX>(gradients.type(), [&]<class G> {
                matmul_.weight_gradient<floatX>(dweight.data.as<G>(), dout, in, shape(rows), dweight.accumulate,
                                                stream);
            });
        }
        const GradientTarget dbias = gradients.next(bias_index_);
        ENSURE(dbias.accumulate == dweight.accumulate, "a bias whose gradient is made more often than its weight's");
        with_gradient_type<floatX>(gradients.type(), [&]<class G> {
            matmul_.weight_and_bias_gradient<floatX>(dweight.data.as<G>(), dbias.data.as<G>(), dout, in, shape(rows),
                                                     dweight.accumulate, stream);
        });
    }

private:
    MatmulShape shape(int rows) const { return {rows, out_, in_}; }

    Matmul& matmul_;
    int weight_index_, bias_index_;
    int out_, in_;
    const floatX *weight_, *bias_ = nullptr;
};
