#include "llmc/model/attention/ring.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "llmc/base/log.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/kernels/attention/attention_merge.cuh"

namespace {

HeadSizes sizes_of(const AttentionShape& s, int tokens) { return {s.B, tokens, s.NH, s.HS}; }

// Views keys (0) or values (1) in a buffer that travels, (B, T, 2, kv heads, HS).
template <class T>
HeadsView<T> travelling(T* data, int part, const AttentionShape& s) {
    const std::int64_t row = std::int64_t{s.kv_heads()} * s.HS;
    return {data + part * row, s.Tk * 2 * row, 2 * row, s.HS};
}

// Sizes and views of keys and values together, twice as many heads: each token's values follow its keys.
HeadSizes pair_sizes(const AttentionShape& s, int tokens) { return {s.B, tokens, 2 * s.kv_heads(), s.HS}; }
template <class T>
HeadsView<T> pair(T* travels, const AttentionShape& s) {
    return travelling(travels, 0, s);
}
template <class T>
HeadsView<T> pair(const HeadsView<T>& k, const HeadsView<T>& v, const AttentionShape& s) {
    ENSURE(k.head == s.HS && v.data == k.data + std::int64_t{s.kv_heads()} * s.HS && k.token == v.token &&
               k.batch == v.batch,
           "values that do not follow their keys in memory");
    return k;
}

template <class T>
HeadsView<T> from_token(const HeadsView<T>& view, int token) {
    return {view.data + token * view.token, view.batch, view.token, view.head};
}

// Returns where a result is summed in fp32: in its own place, or in `sum` if it is bf16; then finish() rounds it.
template <class T>
HeadsView<float> accumulator(const HeadsView<T>& result, const HeadsView<float>& sum) {
    if constexpr (std::is_same_v<T, float>) {
        return result;
    } else {
        return sum;
    }
}
template <class T>
void finish(const HeadsView<T>& result, const HeadsView<float>& sum, const HeadSizes& s, cudaStream_t stream) {
    if (!std::is_same_v<T, float>) copy_heads(result, sum, s, false, stream);
}

// True if documents or a window leave nothing to compute at a step.
bool is_hidden(const AttentionShape& own, int step) {
    return own.documents.step_pairs != nullptr && own.documents.step_pairs[step] == 0;
}

std::size_t elements(const AttentionShape& s, int heads) {
    return static_cast<std::size_t>(s.B) * static_cast<std::size_t>(s.Tq) * static_cast<std::size_t>(heads) *
           static_cast<std::size_t>(s.HS);
}
std::size_t elements(const AttentionShape& s) { return elements(s, s.NH); }
// Returns the elements that travel: keys and values together, or their gradients.
std::size_t travelling_elements(const AttentionShape& s) { return 2 * elements(s, s.kv_heads()); }

}   // namespace

std::string ring_warning(const RingTimes& times, std::int64_t T, int unit) {
    if (times.hop_s <= times.block_s) return "";
    const double hidden = static_cast<double>(T) * times.hop_s / times.block_s;
    return formatted(
        "a hop of the ring takes %.3g ms, the block of attention that it is to hide behind %.3g ms: "
        "--seq-len %lld would hide it",
        1e3 * times.hop_s, 1e3 * times.block_s, static_cast<long long>(std::ceil(hidden / unit)) * unit);
}

Ring::Ring(Communicator& group, Arena& arena, cudaStream_t compute) : group_(group), arena_(arena), compute_(compute) {}

void Ring::reserve(const AttentionShape& own, const std::vector<std::size_t>& reusable) {
    const std::size_t n = elements(own), travels = travelling_elements(own),
                      rows = static_cast<std::size_t>(own.B) * static_cast<std::size_t>(own.NH) *
                             static_cast<std::size_t>(own.Tq);
    if (n <= block_.size()) return;
    reuses_ = reusable.size() >= 2 && std::min(reusable[0], reusable[1]) >= travels * sizeof(float);
    for (auto& buffer : keys_) buffer = arena_.allocate<floatX>("context/keys and values", travels);
    for (auto& buffer : key_gradients_) {
        if (!reuses_) buffer = arena_.allocate<float>("context/dkeys and dvalues", travels);
    }
    own_part_ = arena_.allocate<float>("context/own part of dkeys and dvalues", travels);
    block_ = arena_.allocate<float>("context/block", n);
    block_lse_ = arena_.allocate<float>("context/block_lse", rows);
    half_lse_ = arena_.allocate<float>("context/half_lse", rows / 2);
    if constexpr (!std::is_same_v<floatX, float>) {
        sum_ = arena_.allocate<float>("context/sums", n);
        pair_sum_ = arena_.allocate<float>("context/sums", travels);
    }
}

// Returns the shape of a step's block: own queries over keys of another rank, with this step's first keys.
AttentionShape Ring::block_shape(const AttentionShape& own, int step, const RingBlock& block) {
    AttentionShape shape = own;
    shape.Tq = block.queries, shape.Tk = block.keys, shape.causal = false;
    if (own.documents.first) shape.documents.first += std::int64_t{step} * own.B * own.Tq + block.first_query;
    if (own.documents.step_pairs) shape.documents.step_pairs += step;
    return shape;
}

// Sends to the next rank and receives from the one before.
template <class T>
void Ring::hop(T* to, const T* from, std::size_t count) {
    const int n = group_.size();
    group_.send(from, count, (group_.rank() + 1) % n, traffic_.get());
    group_.receive(to, count, (group_.rank() + n - 1) % n, traffic_.get());
}

// Sends on the keys and values of a step while it computes: the next step needs them.
void Ring::send_keys_on(int step, const AttentionShape& own) {
    hop(keys_[static_cast<std::size_t>(step + 1) % 2].data(), keys_[static_cast<std::size_t>(step) % 2].data(),
        travelling_elements(own));
}

// ---------------------------------------------------------------------------------------------------------------------

void Ring::forward(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& own) {
    const AttentionShape& shape = own.shape;
    const int T = shape.Tq;
    const HeadsView<float> out = accumulator(own.out, contiguous_heads(sum_.data(), T, shape.NH, shape.HS));
    copy_heads(pair(keys_[0].data(), shape), pair(own.k, own.v, shape), pair_sizes(shape, T), false, compute_);

    for (int step = 0; step < group_.size(); step++) {
        floatX* const keys = keys_[static_cast<std::size_t>(step) % 2].data();
        if (step > 0) travelled_.wait(compute_);
        if (step + 1 < group_.size()) {
            computed_.record(compute_);   // the step before has read what is overwritten now
            computed_.wait(traffic_.get());
            {
                Communicator::Group together(group_);
                send_keys_on(step, shape);
            }
            travelled_.record(traffic_.get());
        }
        if (step == 0) {
            attention.forward(AttentionForward<floatX, float>{out, own.lse, own.q, own.k, own.v, shape}, compute_);
            continue;
        }
        if (is_hidden(shape, step)) continue;
        const RingBlock block = ring_block(group_.rank(), step, T);
        const AttentionShape rectangle = block_shape(shape, step, block);
        const HeadsView<float> block_out = contiguous_heads(block_.data(), block.queries, shape.NH, shape.HS);
        attention.forward(
            AttentionForward<floatX, float>{block_out, block_lse_.data(), from_token(own.q, block.first_query),
                                            travelling(keys, 0, shape), travelling(keys, 1, shape), rectangle},
            compute_);
        merge_attention({from_token(out, block.first_query), own.lse + block.first_query, block_out, block_lse_.data(),
                         sizes_of(shape, block.queries), T},
                        compute_);
    }
    finish(own.out, out, sizes_of(shape, T), compute_);
}

RingStep Ring::step(const AttentionChoice<floatX>& attention, const AttentionForward<floatX>& own) {
    const int T = own.shape.Tq;
    copy_heads(pair(keys_[0].data(), own.shape), pair(own.k, own.v, own.shape), pair_sizes(own.shape, T), false,
               compute_);
    auto block = [=, this, &attention] {
        AttentionShape rectangle = own.shape;
        rectangle.Tq = T / 2, rectangle.causal = false, rectangle.documents = {};
        attention.forward(
            AttentionForward<floatX, float>{contiguous_heads(block_.data(), T / 2, rectangle.NH, rectangle.HS),
                                            block_lse_.data(), from_token(own.q, T / 2),
                                            travelling(keys_[0].data(), 0, own.shape),
                                            travelling(keys_[0].data(), 1, own.shape), rectangle},
            compute_);
    };
    auto hop = [shape = own.shape, this] {
        Communicator::Group together(group_);
        send_keys_on(0, shape);
    };
    return {hop, block, traffic_.get()};
}

// ---------------------------------------------------------------------------------------------------------------------

void Ring::backward(const AttentionChoice<floatX>& attention, const AttentionBackward<floatX>& own,
                    const ReusableMemory& reusable, WeightGradientQueue& queue) {
    const AttentionShape& shape = own.shape;
    const int T = shape.Tq, N = group_.size();
    const std::size_t half_bytes = sizeof(float) * static_cast<std::size_t>(T) / 2;
    const std::size_t travels = travelling_elements(shape);
    const HeadsView<floatX> result = pair(own.dk, own.dv, shape);
    const HeadsView<float> dq = accumulator(own.dq, contiguous_heads(sum_.data(), T, shape.NH, shape.HS)),
                           dpair = accumulator(result, pair(pair_sum_.data(), shape));
    HeadsView<float> dv = dpair;
    dv.data += std::int64_t{shape.kv_heads()} * shape.HS;
    auto gradients_at = [&](int step) {
        const std::size_t index = static_cast<std::size_t>(step) % 2;
        if (!reuses_) return key_gradients_[index].data();
        ENSURE(reusable.size() >= 2 && reusable[index].size() >= sizeof(float) * travels, "a ring is given ",
               reusable.size(), " parts of memory, and needs two of ", sizeof(float) * travels, " bytes");
        return reinterpret_cast<float*>(reusable[index].data());
    };
    copy_heads(pair(keys_[0].data(), shape), pair(own.k, own.v, shape), pair_sizes(shape, T), false, compute_);
    CUDA_CHECK(cudaMemcpy2DAsync(half_lse_.data(), half_bytes, own.lse + T / 2, 2 * half_bytes, half_bytes,
                                 static_cast<std::size_t>(shape.B) * static_cast<std::size_t>(shape.NH),
                                 cudaMemcpyDeviceToDevice, compute_));

    // Starts the transfers beside the work of a step: gradients that the step before has added to, and keys for the
    // step after.
    auto travel = [&](int step) {
        const bool keys = step + 1 < N, gradients = step >= 2;
        if (!keys && !gradients) return;
        computed_.record(compute_);
        computed_.wait(traffic_.get());
        {
            Communicator::Group together(group_);
            if (gradients) hop(gradients_at(step), gradients_at(step - 1), travels);
            if (keys) send_keys_on(step, shape);
        }
        travelled_.record(traffic_.get());
    };
    for (int step = 0; step < N; step++) {
        floatX* const keys = keys_[static_cast<std::size_t>(step) % 2].data();
        if (step > 0) travelled_.wait(compute_);   // keys of this step
        travel(step);
        if (step == 0) {
            attention.backward(AttentionBackward<floatX, float>{dq, dpair, dv, own.delta, own.dout, own.out, own.lse,
                                                                own.q, own.k, own.v, shape},
                               compute_);
            continue;
        }
        if (is_hidden(shape, step)) {   // only other ranks add to these gradients
            if (step == 1) CUDA_CHECK(cudaMemsetAsync(gradients_at(step), 0, travels * sizeof(float), compute_));
            if (step > 1) travelled_.wait(compute_);
            continue;
        }
        const RingBlock block = ring_block(group_.rank(), step, T);
        const AttentionShape rectangle = block_shape(shape, step, block);
        // the first rank that the keys come to begins their gradients
        float* const part = step == 1 ? gradients_at(step) : own_part_.data();
        if (step == 1 && block.keys < T) {
            CUDA_CHECK(cudaMemsetAsync(part, 0, travels * sizeof(float), compute_));
        }
        const HeadsView<float> block_dq = contiguous_heads(block_.data(), block.queries, shape.NH, shape.HS);
        const float* const lse = block.first_query == 0 ? own.lse : half_lse_.data();
        attention.backward(
            AttentionBackward<floatX, float>{block_dq, travelling(part, 0, shape), travelling(part, 1, shape),
                                             own.delta, from_token(own.dout, block.first_query),
                                             from_token(own.out, block.first_query), lse,
                                             from_token(own.q, block.first_query), travelling(keys, 0, shape),
                                             travelling(keys, 1, shape), rectangle},
            compute_);
        copy_heads(from_token(dq, block.first_query), block_dq, sizes_of(shape, block.queries), true, compute_);
        if (step == 1) continue;
        travelled_.wait(compute_);   // gradients, to add to
        copy_heads(pair(gradients_at(step), shape), pair(part, shape), pair_sizes(shape, block.keys), true, compute_);
    }
    travel(N);   // gradients go home
    queue.collective_started();
    finish(own.dq, dq, sizes_of(shape, T), compute_);
    travelled_.wait(compute_);
    copy_heads(dpair, pair(gradients_at(N), shape), pair_sizes(shape, T), true, compute_);
    finish(result, dpair, pair_sizes(shape, T), compute_);
}
