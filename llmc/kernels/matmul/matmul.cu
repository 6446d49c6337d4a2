#include "llmc/kernels/matmul/matmul.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/kernels/matmul/matmul_impl.h"
#include "llmc/kernels/matmul/matvec.cuh"
#include "llmc/kernels/operation_timer.h"
#include "llmc/kernels/rows/residual.cuh"

namespace {

template <class T>
constexpr cudaDataType_t cuda_type = CUDA_R_32F;
template <>
constexpr cudaDataType_t cuda_type<bf16> = CUDA_R_16BF;

// Rows of matmul_rows: activations from activations, and gradients of weights.
template <class T, cublasLtEpilogue_t EPILOGUE>
constexpr const MatmulRow* forward_row = find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N,
                                                         EPILOGUE);
template <class T, cublasLtEpilogue_t EPILOGUE>
constexpr const MatmulRow* input_gradient_row = find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_N, CUBLAS_OP_N,
                                                                EPILOGUE);
template <class T, class G, cublasLtEpilogue_t EPILOGUE>
constexpr const MatmulRow* weight_gradient_row = find_matmul_row(cuda_type<T>, cuda_type<G>, CUBLAS_OP_N, CUBLAS_OP_T,
                                                                 EPILOGUE);

}   // namespace

Matmul::Impl::Impl(Arena& arena, MatmulOptions given_options)
    : options(std::move(given_options)),
      workspace(arena.allocate<std::uint8_t>("workspace/matmul", options.workspace_bytes)),
      waiting_sums(arena.allocate<float>("workspace/matmul bias sums", options.workspace_bytes / 32 / sizeof(float))) {
    if (options.tries == 0) options.tries = stand_in() ? 1 : 16;
    if (arena.counts()) return;   // nothing is multiplied
    cublas_check(cublasLtCreate(&handle), "start");
    if (options.own_kernels != OwnKernels::where_they_serve) return;
    const std::string refusal = sm90_matmul_refusal();
    if (!refusal.empty()) options.own_kernels = OwnKernels::never;
    if (refusal.starts_with("self-check")) Log().warning("own matmuls are not used: %s", refusal.c_str());
}
Matmul::Impl::~Impl() {
    plans.clear();
    if (handle) cublasLtDestroy(handle);
}

// Multiplies; adds `c`, which has D's layout: D itself, another matrix or null for none.
Matmul::Impl::Attempt Matmul::Impl::try_run(const MatmulRow* row, void* d, const MatmulOperand& dm, const void* a,
                                            const MatmulOperand& am, const void* b, const MatmulOperand& bm,
                                            const void* bias, const void* aux, const void* c, cudaStream_t stream,
                                            int count) {
    ENSURE(row != nullptr, "this matmul is not in matmul_rows");
    const bool accumulate = c != nullptr, another = row->addend == MatmulAddend::another;
    ENSURE(!accumulate || another || (row->addend == MatmulAddend::output && c == d), row->use, " adds no such matrix");
    ENSURE(dm.rows > 0 && dm.cols > 0 && am.rows > 0 && am.cols > 0, row->use, " of an empty matrix");
    ENSURE(count == 1 || row->epilogue == CUBLASLT_EPILOGUE_DEFAULT, row->use, " of a batch");
    const MatmulProblem problem{row - matmul_rows,
                                accumulate,
                                am,
                                bm,
                                dm,
                                accumulate ? alignment_bytes(c) : dm.alignment,
                                std::min(alignment_bytes(bias), alignment_bytes(aux)),
                                left_free,
                                count};
    MatmulPlan& p = plan(problem, bias, aux);
    if (p.use != MatmulPlan::Use::algorithm) return {p, false, false};
    if (bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (aux) p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    if (p.own) {
        p.own->bias = static_cast<const bf16*>(bias);
        p.own->beside = static_cast<bf16*>(const_cast<void*>(aux));
    }
    const bool is_weight_gradient = row->transpose_b == CUBLAS_OP_T;   // no other row transposes B
    const bool tries = !p.candidates.empty() && (is_weight_gradient || !tries_weight_gradients_only);
    const bool timed_plan = tries && take_fastest(p, d, a, b, c, stream);
    cublas_check(multiply(p, d, a, b, c, stream), p.name);
    if (p.own_width == 0 && OperationTimer::watches(stream)) {   // own kernels are noted by launch()
        OperationTimer::note(stream, text("matmul, ", row->use, accumulate && another ? " + residual" : ""),
                             bytes_of(problem));
    }
    return {p, true, timed_plan};
}

namespace {

// Runs GELU as a kernel of its own over `rows` rows that may have gaps between them: apply(first element, elements).
template <class Apply>
void for_rows(int rows, int columns, std::int64_t stride, Apply apply) {
    if (stride == 0 || stride == columns) return apply(std::int64_t{0}, std::int64_t{rows} * columns);
    for (int row = 0; row < rows; row++) apply(row * stride, std::int64_t{columns});
}

}   // namespace

Matmul::Matmul(Arena& arena, MatmulOptions options) : impl_(std::make_unique<Impl>(arena, options)) {}
Matmul::~Matmul() = default;

template <class T>
void Matmul::forward(T* out, const T* in, const T* weight, const T* bias, const MatmulShape& s, cudaStream_t stream) {
    const MatmulRow* const row =
        bias ? forward_row<T, CUBLASLT_EPILOGUE_BIAS> : forward_row<T, CUBLASLT_EPILOGUE_DEFAULT>;
    impl_->run(row, out, matrix(out, s.N, s.M, s.out_stride, s.batch.count, s.batch.out), weight,
               matrix(weight, s.K, s.N, s.weight_stride, s.batch.count, s.batch.weight), in,
               matrix(in, s.K, s.M, s.in_stride, s.batch.count, s.batch.in), bias, nullptr, nullptr, stream,
               s.batch.count);
}

template <class T>
void Matmul::forward_few(T* out, const T* in, const T* weight, const T* bias, const MatmulShape& s,
                         cudaStream_t stream) {
    if (s.M == 1) return matrix_vector<T>({out, in, weight, bias, s.N, s.K}, stream);
    forward(out, in, weight, bias, s, stream);
}

template <class T>
void Matmul::forward_add(T* out, const T* residual, const T* in, const T* weight, const T* bias, const MatmulShape& s,
                         cudaStream_t stream) {
    const MatmulRow* const row =
        bias ? forward_row<T, CUBLASLT_EPILOGUE_BIAS> : forward_row<T, CUBLASLT_EPILOGUE_DEFAULT>;
    ENSURE(s.out_stride == 0 || s.out_stride == s.N, "a residual whose rows have gaps");
    ENSURE(residual != out, "a residual that the sum would overwrite");
    if (impl_
            ->try_run(row, out, matrix(out, s.N, s.M, 0), weight, matrix(weight, s.K, s.N, s.weight_stride), in,
                      matrix(in, s.K, s.M, s.in_stride), bias, nullptr, residual, stream)
            .ran) {
        return;
    }
    forward(out, in, weight, bias, s, stream);
    residual_forward(out, residual, out, std::int64_t{s.M} * s.N, stream);
}

template <class T>
void Matmul::forward_gelu(T* out, T* pre_gelu, const T* in, const T* weight, const T* bias, const MatmulShape& s,
                          cudaStream_t stream) {
    const MatmulRow* const row =
        bias ? forward_row<T, CUBLASLT_EPILOGUE_GELU_AUX_BIAS> : forward_row<T, CUBLASLT_EPILOGUE_GELU_AUX>;
    if (Impl::fuses_gelu<T> &&
        impl_
            ->try_run(row, out, matrix(out, s.N, s.M, s.out_stride), weight, matrix(weight, s.K, s.N, s.weight_stride),
                      in, matrix(in, s.K, s.M, s.in_stride), bias, pre_gelu, nullptr, stream)
            .ran) {
        return;
    }
    forward(pre_gelu, in, weight, bias, s, stream);
    for_rows(s.M, s.N, s.out_stride, [&](std::int64_t first, std::int64_t count) {
        gelu_forward(out + first, pre_gelu + first, count, stream);
    });
}

template <class T>
void Matmul::input_gradient(T* dinp, const T* dout, const T* weight, const MatmulShape& s, bool accumulate,
                            cudaStream_t stream) {
    constexpr auto row = input_gradient_row<T, CUBLASLT_EPILOGUE_DEFAULT>;
    impl_->run(row, dinp, matrix(dinp, s.K, s.M, s.in_stride, s.batch.count, s.batch.in), weight,
               matrix(weight, s.K, s.N, s.weight_stride, s.batch.count, s.batch.weight), dout,
               matrix(dout, s.N, s.M, s.out_stride, s.batch.count, s.batch.out), nullptr, nullptr,
               accumulate ? dinp : nullptr, stream, s.batch.count);
}

template <class T>
void Matmul::input_gradient_gelu(T* dinp, const T* dout, const T* weight, const T* pre_gelu, const MatmulShape& s,
                                 cudaStream_t stream) {
    constexpr auto row = input_gradient_row<T, CUBLASLT_EPILOGUE_DGELU>;
    if (Impl::fuses_gelu<T> &&
        impl_
            ->try_run(row, dinp, matrix(dinp, s.K, s.M, s.in_stride), weight, matrix(weight, s.K, s.N, s.weight_stride),
                      dout, matrix(dout, s.N, s.M, s.out_stride), nullptr, pre_gelu, nullptr, stream)
            .ran) {
        return;
    }
    input_gradient(dinp, dout, weight, s, false, stream);
    for_rows(s.M, s.K, s.in_stride, [&](std::int64_t first, std::int64_t count) {
        gelu_backward(dinp + first, dinp + first, pre_gelu + first, count, stream);
    });
}

template <class T, class G>
void Matmul::weight_gradient(G* dweight, const T* dout, const T* in, const MatmulShape& s, bool accumulate,
                             cudaStream_t stream) {
    constexpr auto row = weight_gradient_row<T, G, CUBLASLT_EPILOGUE_DEFAULT>;
    impl_->run(row, dweight, matrix(dweight, s.K, s.N, s.weight_stride, s.batch.count, s.batch.weight), in,
               matrix(in, s.K, s.M, s.in_stride, s.batch.count, s.batch.in), dout,
               matrix(dout, s.N, s.M, s.out_stride, s.batch.count, s.batch.out), nullptr, nullptr,
               accumulate ? dweight : nullptr, stream, s.batch.count);
}

template <class T, class G>
void Matmul::weight_and_bias_gradient(G* dweight, G* dbias, const T* dout, const T* in, const MatmulShape& s,
                                      bool accumulate, cudaStream_t stream) {
    constexpr auto row = weight_gradient_row<T, G, CUBLASLT_EPILOGUE_BGRADB>;
    const auto floats = static_cast<std::size_t>(ceil_div(s.N, 64) * 64);   // sums begin at multiples of 256 bytes
    const std::size_t room = impl_->waiting_sums.size();
    BiasSums& waiting = impl_->waiting;
    // One launch adds all waiting sums in parallel: two of the same bias would race.
    const auto all = std::span(waiting.to).first(static_cast<std::size_t>(waiting.count));
    const bool waits_already = std::ranges::find(all, static_cast<void*>(dbias)) != all.end();
    if (waits_already || (accumulate && (waiting.count == BiasSums::most || impl_->waiting_used + floats > room))) {
        add_bias_gradients(stream);
    }
    // A waiting bf16 sum would be rounded twice.
    const bool may_wait = std::is_same_v<G, float> && floats <= room;
    G* sums = dbias;
    if constexpr (std::is_same_v<G, float>) {
        if (accumulate) sums = impl_->waiting_sums.data() + impl_->waiting_used;
    }
    // Times the two gradients apart; from the next call on they stay apart if that is faster than the plan just timed.
    auto try_apart = [&](MatmulPlan& together) {
        Arena arena;
        DeviceBuffer<G> weight_sums, bias_sums;
        try {
            weight_sums = arena.allocate<G>("workspace/matmul tries", together.result_bytes / sizeof(G));
            bias_sums = arena.allocate<G>("workspace/matmul tries", static_cast<std::size_t>(s.N));
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device) throw;
            return;
        }
        weight_sums.zero(stream);
        bias_sums.zero(stream);
        auto apart = [&] {
            weight_gradient(weight_sums.data(), dout, in, s, accumulate, stream);
            bias_gradient(bias_sums.data(), dout, s, accumulate, stream);
        };
        if (clearly_faster(impl_->options.timer(apart, stream), together.seconds))
            together.use = MatmulPlan::Use::apart;
        CUDA_CHECK(cudaStreamSynchronize(stream));   // before the sums are freed
    };
    auto in_two = [&] {
        bias_gradient(dbias, dout, s, accumulate, stream);
        weight_gradient(dweight, dout, in, s, accumulate, stream);
    };
    if (accumulate && !may_wait) return in_two();
    const Impl::Attempt attempt = impl_->try_run(
        row, dweight, matrix(dweight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride), dout,
        matrix(dout, s.N, s.M, s.out_stride), sums, nullptr, accumulate ? dweight : nullptr, stream);
    if (!attempt.ran) return in_two();
    if (attempt.timed_plan) try_apart(attempt.plan);
    if (!accumulate) return;
    if constexpr (std::is_same_v<G, float>) {
        const auto last = static_cast<std::size_t>(waiting.count++);
        waiting.to[last] = dbias, waiting.from[last] = sums, waiting.channels[last] = s.N;
        impl_->waiting_used += floats;
    }
}

void Matmul::reserve_multiprocessors(int multiprocessors) { impl_->left_free = multiprocessors; }

void Matmul::add_bias_gradients(cudaStream_t stream) {
    add_bias_sums(impl_->waiting, stream);
    impl_->waiting.count = 0;
    impl_->waiting_used = 0;
}

template <class T, class G>
void Matmul::bias_gradient(G* dbias, const T* dout, const MatmulShape& s, bool accumulate, cudaStream_t stream) {
    auto* scratch = reinterpret_cast<float*>(impl_->workspace.data());
    ::bias_gradient(dbias, scratch, impl_->options.workspace_bytes, dout,
                    BiasGradientShape{s.M, s.N, s.out_stride ? s.out_stride : s.N}, accumulate, stream);
}

#define INSTANTIATE(T)                                                                                               \
    template void Matmul::forward(T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);               \
    template void Matmul::forward_few(T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);           \
    template void Matmul::forward_add(T*, const T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t); \
    template void Matmul::forward_gelu(T*, T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);      \
    template void Matmul::input_gradient(T*, const T*, const T*, const MatmulShape&, bool, cudaStream_t);            \
    template void Matmul::input_gradient_gelu(T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);   \
    template void Matmul::weight_gradient(float*, const T*, const T*, const MatmulShape&, bool, cudaStream_t);       \
    template void Matmul::weight_and_bias_gradient(float*, float*, const T*, const T*, const MatmulShape&, bool,     \
                                                   cudaStream_t);                                                    \
    template void Matmul::bias_gradient(float*, const T*, const MatmulShape&, bool, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
template void Matmul::weight_gradient(bf16*, const bf16*, const bf16*, const MatmulShape&, bool, cudaStream_t);
template void Matmul::weight_and_bias_gradient(bf16*, bf16*, const bf16*, const bf16*, const MatmulShape&, bool,
                                               cudaStream_t);
template void Matmul::bias_gradient(bf16*, const bf16*, const MatmulShape&, bool, cudaStream_t);
