#include "llmc/kernels/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/kernels/matmul/bias_gradient.h"
#include "llmc/kernels/matmul/matmul_plan.h"
#include "llmc/kernels/matmul/matvec.cuh"
#include "llmc/kernels/operation_timer.h"
#include "llmc/kernels/rows/residual.cuh"

namespace {

template <class T>
constexpr cudaDataType_t cuda_type = CUDA_R_32F;
template <>
constexpr cudaDataType_t cuda_type<bf16> = CUDA_R_16BF;

int multiprocessors() {
    int device = 0, count = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Returns where waiting bias gradients begin: behind the workspace.
std::size_t waiting_begins(const MatmulOptions& options) { return rounded_up(options.workspace_bytes); }
std::size_t waiting_bytes(const MatmulOptions& options) { return options.workspace_bytes / 32; }

}   // namespace

struct Matmul::Impl {
    MatmulOptions options;
    cublasLtHandle_t handle = nullptr;
    int left_free = 0;   // multiprocessors
    bool tries_weight_gradients_only = false;
    double tried_seconds = 0;
    DeviceBuffer<std::uint8_t> workspace;   // for cuBLASLt and bias_gradient, then waiting bias gradients
    BiasSums waiting;
    std::size_t waiting_used = 0;
    std::map<MatmulProblem, MatmulPlan> plans;
    std::map<std::string, MatmulAlgorithm> given;   // by the problem's name
    std::vector<std::string> refused;               // why some of `given` could not be used

    Impl(Arena& arena, MatmulOptions o)
        : options(o),
          workspace(arena.allocate<std::uint8_t>("workspace/matmul", waiting_begins(o) + waiting_bytes(o))) {
        if (options.tries == 0) options.tries = loop_threads_may_be_one ? 1 : 16;
        cublas_check(cublasLtCreate(&handle), "start");
        if (options.own_kernels != OwnKernels::where_they_serve) return;
        const std::string refusal = sm90_matmul_refusal();
        if (!refusal.empty()) options.own_kernels = OwnKernels::never;
        if (refusal.starts_with("self-check")) Log().warning("own matmuls are not used: %s", refusal.c_str());
    }
    ~Impl() {
        plans.clear();
        if (handle) cublasLtDestroy(handle);
    }

    MatmulPlan& plan(const MatmulProblem& problem, const void* bias, const void* aux);
    void choose_algorithm(MatmulPlan& plan, const MatmulProblem& problem);
    double timed(const std::function<void()>& work, cudaStream_t stream) const;
    void take_fastest(MatmulPlan& plan, void* d, const void* a, const void* b, const void* c, cudaStream_t stream);
    cublasStatus_t multiply(const MatmulPlan& plan, void* d, const void* a, const void* b, const void* c,
                            cudaStream_t stream) {
        if (plan.own_width > 0) {
            HopperMatmul problem = *plan.own;
            problem.out = static_cast<bf16*>(d);
            problem.in = static_cast<const bf16*>(b);
            problem.weight = static_cast<const bf16*>(a);
            if (problem.end == HopperMatmulEnd::add) problem.beside = static_cast<bf16*>(const_cast<void*>(c));
            launch_hopper_matmul(problem, plan.own_width, std::max(1, multiprocessors() - left_free), stream);
            return CUBLAS_STATUS_SUCCESS;
        }
        const float alpha = 1.0f, beta = c != nullptr ? 1.0f : 0.0f;
        return cublasLtMatmul(handle, plan.desc, &alpha, a, plan.a, b, plan.b, &beta, c != nullptr ? c : d, plan.d, d,
                              plan.d, &plan.algorithm, workspace.data(), plan.workspace_bytes, stream);
    }
    bool take_given_algorithm(MatmulPlan& plan, const MatmulRow& row);
    bool try_run(const MatmulRow* row, void* d, const MatmulOperand& dm, const void* a, const MatmulOperand& am,
                 const void* b, const MatmulOperand& bm, const void* bias, const void* aux, const void* c,
                 cudaStream_t stream);
    template <class... Arguments>
    void run(const MatmulRow* row, const Arguments&... arguments) {
        if (!try_run(row, arguments...)) throw Error(ErrorKind::bug, last_refusal);
    }
    template <class T>
    static constexpr bool fuses_gelu = !std::is_same_v<T, float>;
    std::string last_refusal;
    MatmulPlan* just_timed = nullptr;   // plan timed by the last call
};

// Returns the plan of a problem, made when it is first met. `bias` and `aux` matter only for their alignment, which the
// heuristic reads off the pointers.
MatmulPlan& Matmul::Impl::plan(const MatmulProblem& problem, const void* bias, const void* aux) {
    auto [place, is_new] = plans.try_emplace(problem);
    MatmulPlan& plan = place->second;
    if (!is_new) return plan;
    try {
        const MatmulRow& row = matmul_rows[problem.row];
        bool tf32 = options.allow_tf32 && row.input == CUDA_R_32F;
        plan.name = describe(problem, tf32);
        cublas_check(
            cublasLtMatmulDescCreate(&plan.desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "descriptor of " + plan.name);
        plan.set(CUBLASLT_MATMUL_DESC_TRANSA, row.transpose_a);
        plan.set(CUBLASLT_MATMUL_DESC_TRANSB, row.transpose_b);
        plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, row.epilogue);
        if (problem.left_free > 0) {
            plan.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::max(1, multiprocessors() - problem.left_free));
        }
        if (bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        if (aux) {
            plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
            plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.d.ld);
        }
        create_layout(&plan.a, row.input, problem.a, plan.name);
        create_layout(&plan.b, row.input, problem.b, plan.name);
        create_layout(&plan.d, row.output, problem.d, plan.name);
        plan.result_bytes = static_cast<std::size_t>((problem.d.cols - 1) * problem.d.ld + problem.d.rows) *
                            (row.output == CUDA_R_32F ? 4 : 2);
        if (options.own_kernels != OwnKernels::never) plan.own = own_problem(problem);
        choose_algorithm(plan, problem);
    } catch (...) {
        plans.erase(place);
        throw;
    }
    return plan;
}

// Takes the algorithm given for this problem; returns true if there is one and cuBLASLt accepts it.
bool Matmul::Impl::take_given_algorithm(MatmulPlan& plan, const MatmulRow& row) {
    auto found = given.find(plan.name);
    if (found == given.end()) return false;
    if (row.epilogue == CUBLASLT_EPILOGUE_BGRADB && found->second == MatmulAlgorithm{plan.name, {}, 0}) {
        plan.use = MatmulPlan::Use::apart;
        return true;
    }
    if (found->second.words[0] == own_kernel_word) {
        const auto width = static_cast<int>(found->second.words[1]);
        if (plan.own && std::ranges::find(hopper_matmul_widths, width) != hopper_matmul_widths.end()) {
            plan.own_width = width;
            return true;
        }
        refused.push_back(text(plan.name, ": no own kernel for it here"));
        given.erase(found);
        return false;
    }
    std::ranges::copy(found->second.words, plan.algorithm.data);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, plan.desc, plan.a, plan.b, plan.d, plan.d, &plan.algorithm, &result);
    plan.workspace_bytes = std::max<std::size_t>(result.workspaceSize, found->second.workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS && plan.workspace_bytes <= options.workspace_bytes) return true;
    refused.push_back(status == CUBLAS_STATUS_SUCCESS ? text(plan.name, ": it needs ", plan.workspace_bytes,
                                                             " bytes of workspace, there are ", options.workspace_bytes)
                                                      : text(plan.name, ": ", cublasLtGetStatusName(status)));
    given.erase(found);
    return false;
}

// Takes the algorithm given for this problem, else the first of cuBLASLt's heuristic, and notes the others to be timed.
// Algorithms that add partial sums in the result are excluded: their order would not be fixed, or they would be
// rounded.
void Matmul::Impl::choose_algorithm(MatmulPlan& plan, const MatmulProblem& problem) {
    const MatmulRow& row = matmul_rows[problem.row];
    if (take_given_algorithm(plan, row)) return;
    cublasLtMatmulPreference_t preference = nullptr;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference), "preference of " + plan.name);
    std::shared_ptr<void> owner(
        preference, [](void* p) { cublasLtMatmulPreferenceDestroy(static_cast<cublasLtMatmulPreference_t>(p)); });
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                     "preference of " + plan.name);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{options.workspace_bytes});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.a.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.b.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.c_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.d.alignment);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    std::array<cublasLtMatmulHeuristicResult_t, 64> found{};   // (nvcc compiles no vector of this unnamed struct)
    const int most = std::clamp(options.tries, 1, static_cast<int>(found.size()));
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.desc, plan.a, plan.b, plan.d, plan.d,
                                                           preference, most, found.data(), &count);
    if (status == CUBLAS_STATUS_SUCCESS) status = count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : found[0].state;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        plan.use = MatmulPlan::Use::refused;
        plan.refusal = text("cuBLASLt: heuristic for ", plan.name, " failed: ", cublasLtGetStatusName(status));
        return;
    }
    cublas_check(status, "heuristic for " + plan.name);
    plan.algorithm = found[0].algo;
    plan.workspace_bytes = found[0].workspaceSize;
    // A single candidate is timed only where it may be slower than two operations or than an own kernel.
    if (most == 1 || (count == 1 && row.epilogue != CUBLASLT_EPILOGUE_BGRADB && !plan.own)) return;
    for (const cublasLtMatmulHeuristicResult_t& one : std::span(found).first(static_cast<std::size_t>(count))) {
        if (one.state == CUBLAS_STATUS_SUCCESS) plan.candidates.push_back({one.algo, one.workspaceSize});
    }
    if (!plan.own) return;
    for (int width : hopper_matmul_widths) plan.candidates.push_back({{}, 0, width});
}

double Matmul::Impl::timed(const std::function<void()>& work, cudaStream_t stream) const {
    if (options.timer) return options.timer(work, stream);
    const double one = least_seconds(work, stream, 1);
    return one > 200e-6 ? std::min(one, least_seconds(work, stream, 2)) : least_seconds(work, stream, 3, 8);
}

// Times each candidate and takes the fastest, the heuristic's earlier one of two that are about as fast. A product that
// accumulates adds to other memory meanwhile; if none can be allocated, the heuristic's first stays.
void Matmul::Impl::take_fastest(MatmulPlan& plan, void* d, const void* a, const void* b, const void* c,
                                cudaStream_t stream) {
    const std::vector<MatmulCandidate> candidates = std::exchange(plan.candidates, {});
    if (tried_seconds >= options.most_seconds) return;
    const double start = steady_seconds();
    Arena arena;
    DeviceBuffer<std::uint8_t> sum;
    if (c == d) {
        try {
            sum = arena.allocate<std::uint8_t>("workspace/matmul tries", plan.result_bytes);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device) throw;
            return;
        }
        sum.zero(stream);
        c = d = sum.data();
    }
    auto take = [&](const MatmulCandidate& candidate) {
        plan.algorithm = candidate.algorithm;
        plan.workspace_bytes = candidate.workspace_bytes;
        plan.own_width = candidate.own_width;
    };
    const MatmulCandidate* fastest = &candidates[0];
    double least = std::numeric_limits<double>::infinity();
    for (const MatmulCandidate& candidate : candidates) {
        take(candidate);
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        const double seconds = timed(
            [&] {
                if (status == CUBLAS_STATUS_SUCCESS) status = multiply(plan, d, a, b, c, stream);
            },
            stream);
        if (status == CUBLAS_STATUS_SUCCESS && clearly_faster(seconds, least)) least = seconds, fastest = &candidate;
    }
    take(*fastest);
    plan.seconds = least;
    just_timed = &plan;
    CUDA_CHECK(cudaStreamSynchronize(stream));   // before `sum` is freed
    tried_seconds += steady_seconds() - start;
}

// Multiplies; adds `c`, which has D's layout: D itself, another matrix or null for none. Returns false, having only set
// `last_refusal`, if cuBLASLt has no algorithm for the problem.
bool Matmul::Impl::try_run(const MatmulRow* row, void* d, const MatmulOperand& dm, const void* a,
                           const MatmulOperand& am, const void* b, const MatmulOperand& bm, const void* bias,
                           const void* aux, const void* c, cudaStream_t stream) {
    ENSURE(row != nullptr, "this matmul is not in matmul_rows");
    const bool accumulate = c != nullptr, another = row->addend == MatmulAddend::another;
    ENSURE(!accumulate || another || (row->addend == MatmulAddend::output && c == d), row->use, " adds no such matrix");
    ENSURE(dm.rows > 0 && dm.cols > 0 && am.rows > 0 && am.cols > 0, row->use, " of an empty matrix");
    const std::uint32_t c_alignment = accumulate ? alignment_bytes(c) : dm.alignment;
    MatmulPlan& p = plan({row - matmul_rows, accumulate, am, bm, dm, c_alignment,
                          std::min(alignment_bytes(bias), alignment_bytes(aux)), left_free},
                         bias, aux);
    if (p.use != MatmulPlan::Use::algorithm) {
        last_refusal = p.refusal;
        return false;
    }
    if (bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (aux) p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    if (p.own) {
        p.own->bias = static_cast<const bf16*>(bias);
        p.own->beside = static_cast<bf16*>(const_cast<void*>(aux));
    }
    just_timed = nullptr;
    const bool is_weight_gradient = row->transpose_b == CUBLAS_OP_T;   // no other row transposes B
    if (!p.candidates.empty() && (is_weight_gradient || !tries_weight_gradients_only)) {
        take_fastest(p, d, a, b, c, stream);
    }
    cublas_check(multiply(p, d, a, b, c, stream), p.name);
    if (p.own_width == 0 && OperationTimer::watches(stream)) {   // own kernels are noted by launch()
        OperationTimer::note(stream, text("matmul, ", row->use, accumulate && another ? " + residual" : ""),
                             bytes_of(*row, am, bm, dm, accumulate));
    }
    return true;
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
    constexpr const MatmulRow* plain =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT);
    constexpr const MatmulRow* with_bias =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS);
    impl_->run(bias ? with_bias : plain, out, matrix(out, s.N, s.M, s.out_stride), weight,
               matrix(weight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride), bias, nullptr, nullptr,
               stream);
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
    constexpr const MatmulRow* plain =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT);
    constexpr const MatmulRow* with_bias =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS);
    ENSURE(s.out_stride == 0 || s.out_stride == s.N, "a residual whose rows have gaps");
    ENSURE(residual != out, "a residual that the sum would overwrite");
    if (impl_->try_run(bias ? with_bias : plain, out, matrix(out, s.N, s.M, 0), weight,
                       matrix(weight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride), bias, nullptr,
                       residual, stream)) {
        return;
    }
    forward(out, in, weight, bias, s, stream);
    residual_forward(out, residual, out, std::int64_t{s.M} * s.N, stream);
}

template <class T>
void Matmul::forward_gelu(T* out, T* pre_gelu, const T* in, const T* weight, const T* bias, const MatmulShape& s,
                          cudaStream_t stream) {
    constexpr const MatmulRow* plain =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX);
    constexpr const MatmulRow* with_bias =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    if (Impl::fuses_gelu<T> && impl_->try_run(bias ? with_bias : plain, out, matrix(out, s.N, s.M, s.out_stride),
                                              weight, matrix(weight, s.K, s.N, s.weight_stride), in,
                                              matrix(in, s.K, s.M, s.in_stride), bias, pre_gelu, nullptr, stream)) {
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
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT);
    impl_->run(row, dinp, matrix(dinp, s.K, s.M, s.in_stride), weight, matrix(weight, s.K, s.N, s.weight_stride), dout,
               matrix(dout, s.N, s.M, s.out_stride), nullptr, nullptr, accumulate ? dinp : nullptr, stream);
}

template <class T>
void Matmul::input_gradient_gelu(T* dinp, const T* dout, const T* weight, const T* pre_gelu, const MatmulShape& s,
                                 cudaStream_t stream) {
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU);
    if (Impl::fuses_gelu<T> &&
        impl_->try_run(row, dinp, matrix(dinp, s.K, s.M, s.in_stride), weight,
                       matrix(weight, s.K, s.N, s.weight_stride), dout, matrix(dout, s.N, s.M, s.out_stride), nullptr,
                       pre_gelu, nullptr, stream)) {
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
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<G>, CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT);
    impl_->run(row, dweight, matrix(dweight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride), dout,
               matrix(dout, s.N, s.M, s.out_stride), nullptr, nullptr, accumulate ? dweight : nullptr, stream);
}

template <class T, class G>
void Matmul::weight_and_bias_gradient(G* dweight, G* dbias, const T* dout, const T* in, const MatmulShape& s,
                                      bool accumulate, cudaStream_t stream) {
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<G>, CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_BGRADB);
    const std::size_t bytes = rounded_up(sizeof(G) * static_cast<std::size_t>(s.N));
    const std::size_t room = waiting_bytes(impl_->options);
    BiasSums& waiting = impl_->waiting;
    // One launch adds all waiting sums in parallel: two of the same bias would race.
    const auto all = std::span(waiting.to).first(static_cast<std::size_t>(waiting.count));
    const bool waits_already = std::ranges::find(all, static_cast<void*>(dbias)) != all.end();
    if (waits_already || (accumulate && (waiting.count == BiasSums::most || impl_->waiting_used + bytes > room))) {
        add_bias_gradients(stream);
    }
    // A waiting bf16 sum would be rounded twice.
    const bool may_wait = std::is_same_v<G, float> && bytes <= room;
    G* const sums =
        !accumulate
            ? dbias
            : reinterpret_cast<G*>(impl_->workspace.data() + waiting_begins(impl_->options) + impl_->waiting_used);
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
        if (clearly_faster(impl_->timed(apart, stream), together.seconds)) together.use = MatmulPlan::Use::apart;
        CUDA_CHECK(cudaStreamSynchronize(stream));   // before the sums are freed
    };
    if ((!accumulate || may_wait) &&
        impl_->try_run(row, dweight, matrix(dweight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride),
                       dout, matrix(dout, s.N, s.M, s.out_stride), sums, nullptr, accumulate ? dweight : nullptr,
                       stream)) {
        if (impl_->just_timed != nullptr) try_apart(*impl_->just_timed);
        if (!accumulate) return;
        if constexpr (std::is_same_v<G, float>) {
            const auto last = static_cast<std::size_t>(waiting.count++);
            waiting.to[last] = dbias, waiting.from[last] = sums, waiting.channels[last] = s.N;
            impl_->waiting_used += bytes;
        }
        return;
    }
    bias_gradient(dbias, dout, s, accumulate, stream);
    weight_gradient(dweight, dout, in, s, accumulate, stream);
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

bool Matmul::tries_algorithms() const { return impl_->options.tries > 1; }
void Matmul::try_weight_gradients_only(bool only) { impl_->tries_weight_gradients_only = only; }
void Matmul::stop_trying() { impl_->options.tries = 1; }

std::vector<MatmulAlgorithm> Matmul::algorithms() const {
    std::map<std::string, MatmulAlgorithm> by_name = impl_->given;
    for (const auto& [problem, plan] : impl_->plans) {
        if (plan.use == MatmulPlan::Use::refused) continue;
        const bool apart = plan.use == MatmulPlan::Use::apart;
        MatmulAlgorithm algorithm{plan.name, {}, apart ? 0 : plan.workspace_bytes};
        if (plan.own_width > 0) {
            algorithm.words = {own_kernel_word, static_cast<std::uint64_t>(plan.own_width)};
        } else if (!apart) {
            std::ranges::copy(plan.algorithm.data, algorithm.words.begin());
        }
        by_name[plan.name] = algorithm;
    }
    std::vector<MatmulAlgorithm> result;
    for (auto& [name, algorithm] : by_name) result.push_back(std::move(algorithm));
    return result;
}

void Matmul::use_algorithms(std::span<const MatmulAlgorithm> algorithms) {
    for (const MatmulAlgorithm& algorithm : algorithms) impl_->given[algorithm.problem] = algorithm;
    impl_->plans.clear();   // remade, with the given algorithms, when next met
}

const std::vector<std::string>& Matmul::refused_algorithms() const { return impl_->refused; }

std::vector<std::string> Matmul::unfused() const {
    std::vector<std::string> result;
    for (const auto& [problem, plan] : impl_->plans) {
        if (plan.use == MatmulPlan::Use::refused) result.push_back(plan.refusal);
    }
    return result;
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
