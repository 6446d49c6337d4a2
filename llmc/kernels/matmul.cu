#include "llmc/kernels/matmul.h"

#include <algorithm>
#include <compare>
#include <map>

#include "llmc/kernels/bias_gradient.h"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/operation_timer.h"

namespace {

template <class T>
constexpr cudaDataType_t cuda_type = CUDA_R_32F;
template <>
constexpr cudaDataType_t cuda_type<bf16> = CUDA_R_16BF;

void cublas_check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    bool no_device = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(no_device ? ErrorKind::no_device : ErrorKind::bug,
                text("cuBLASLt: ", what, " failed: ", cublasLtGetStatusName(status)));
}

// The largest power of two that divides the address, at most what cuBLASLt asks about (256 bytes).
std::uint32_t alignment_bytes(const void* pointer) {
    auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return address == 0 ? 256u : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

// A matrix as cuBLASLt sees it: `rows` adjacent elements, `cols` times, `ld` elements apart.
struct Matrix {
    std::int64_t rows, cols, ld;
    std::uint32_t alignment;
    auto operator<=>(const Matrix&) const = default;
};

Matrix matrix(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    return {rows, cols, stride ? stride : rows, alignment_bytes(data)};
}

// All that a plan depends on.
struct Problem {
    std::ptrdiff_t row;   // index into matmul_rows
    bool accumulate;
    Matrix a, b, d;
    std::uint32_t epilogue_alignment;   // of bias and aux
    auto operator<=>(const Problem&) const = default;
};

std::string describe(const Problem& p, bool tf32) {
    const MatmulRow& row = matmul_rows[p.row];
    auto type = [](cudaDataType_t t) { return t == CUDA_R_32F ? "fp32" : "bf16"; };
    auto one = [](const char* name, const Matrix& m) {
        return text(" ", name, "=", m.rows, "x", m.cols, "/", m.ld, "@", m.alignment);
    };
    return text(row.use, " ", type(row.input), tf32 ? " as tf32" : "", " -> ", type(row.output),
                p.accumulate ? " accumulated" : "", one("A", p.a), one("B", p.b), one("D", p.d), " epilogue@",
                p.epilogue_alignment);
}

// Owns the descriptors of one problem and the algorithm chosen for it.
struct Plan {
    std::string name;
    std::string refusal;   // why there is no algorithm; empty where there is one
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t workspace_bytes = 0;

    Plan() = default;
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    ~Plan() {
        if (d) cublasLtMatrixLayoutDestroy(d);
        if (b) cublasLtMatrixLayoutDestroy(b);
        if (a) cublasLtMatrixLayoutDestroy(a);
        if (desc) cublasLtMatmulDescDestroy(desc);
    }

    template <class V>
    void set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
        cublas_check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value), "descriptor of " + name);
    }
};

void create_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, const Matrix& m, const std::string& name) {
    cublas_check(cublasLtMatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(m.rows),
                                            static_cast<std::uint64_t>(m.cols), m.ld),
                 "layout of " + name);
}

}   // namespace

struct Matmul::Impl {
    MatmulOptions options;
    cublasLtHandle_t handle = nullptr;
    DeviceBuffer<std::uint8_t> workspace;
    std::map<Problem, Plan> plans;
    std::map<std::string, MatmulAlgorithm> given;   // by name of the problem
    std::vector<std::string> refused;               // of those: why they could not be used

    Impl(Arena& arena, MatmulOptions o)
        : options(o), workspace(arena.allocate<std::uint8_t>("workspace/matmul", o.workspace_bytes)) {
        cublas_check(cublasLtCreate(&handle), "start");
    }
    ~Impl() {
        plans.clear();
        if (handle) cublasLtDestroy(handle);
    }

    Plan& plan(const Problem& problem, const void* bias, const void* aux);
    void choose_algorithm(Plan& plan, const Problem& problem);
    bool take_given_algorithm(Plan& plan);
    bool try_run(const MatmulRow* row, void* d, const Matrix& dm, const void* a, const Matrix& am, const void* b,
                 const Matrix& bm, const void* bias, const void* aux, bool accumulate, cudaStream_t stream);
    template <class... Arguments>
    void run(const MatmulRow* row, const Arguments&... arguments) {
        if (!try_run(row, arguments...)) throw Error(ErrorKind::bug, last_refusal);
    }
    template <class T>
    bool fuses_gelu() const {
        return !std::is_same_v<T, float> || options.fuse_fp32_gelu;
    }
    std::string last_refusal;
};

// The plan of a problem, made when it is first met. `bias` and `aux` matter only for their alignment, which the
// heuristic reads off the pointers.
Plan& Matmul::Impl::plan(const Problem& problem, const void* bias, const void* aux) {
    auto [place, is_new] = plans.try_emplace(problem);
    Plan& plan = place->second;
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
        if (bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        if (aux) {
            plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
            plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.d.ld);
        }
        create_layout(&plan.a, row.input, problem.a, plan.name);
        create_layout(&plan.b, row.input, problem.b, plan.name);
        create_layout(&plan.d, row.output, problem.d, plan.name);
        choose_algorithm(plan, problem);
    } catch (...) {
        plans.erase(place);
        throw;
    }
    return plan;
}

// True when there is one and it serves.
bool Matmul::Impl::take_given_algorithm(Plan& plan) {
    auto found = given.find(plan.name);
    if (found == given.end()) return false;
    std::ranges::copy(found->second.words, plan.algorithm.data);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, plan.desc, plan.a, plan.b, plan.d, plan.d, &plan.algorithm, &result);
    plan.workspace_bytes = std::max<std::size_t>(result.workspaceSize, found->second.workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS && plan.workspace_bytes <= workspace.bytes()) return true;
    refused.push_back(status == CUBLAS_STATUS_SUCCESS ? text(plan.name, ": it needs ", plan.workspace_bytes,
                                                             " bytes of workspace, there are ", workspace.bytes())
                                                      : text(plan.name, ": ", cublasLtGetStatusName(status)));
    given.erase(found);
    return false;
}

// Takes the algorithm given for this problem, else the first of cuBLASLt's heuristic.
void Matmul::Impl::choose_algorithm(Plan& plan, const Problem& problem) {
    if (take_given_algorithm(plan)) return;
    cublasLtMatmulPreference_t preference = nullptr;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference), "preference of " + plan.name);
    std::shared_ptr<void> owner(
        preference, [](void* p) { cublasLtMatmulPreferenceDestroy(static_cast<cublasLtMatmulPreference_t>(p)); });
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                     "preference of " + plan.name);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace.bytes()});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.a.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.b.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.d.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.d.alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.desc, plan.a, plan.b, plan.d, plan.d,
                                                           preference, 1, &result, &count);
    if (status == CUBLAS_STATUS_SUCCESS) status = count == 1 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        plan.refusal = text("cuBLASLt: heuristic for ", plan.name, " failed: ", cublasLtGetStatusName(status));
        return;
    }
    cublas_check(status, "heuristic for " + plan.name);
    plan.algorithm = result.algo;
    plan.workspace_bytes = result.workspaceSize;
}

// False, with nothing done but `last_refusal` said, where cuBLASLt has no algorithm for the problem.
bool Matmul::Impl::try_run(const MatmulRow* row, void* d, const Matrix& dm, const void* a, const Matrix& am,
                           const void* b, const Matrix& bm, const void* bias, const void* aux, bool accumulate,
                           cudaStream_t stream) {
    ENSURE(row != nullptr, "this matmul is not in matmul_rows");
    ENSURE(!accumulate || row->may_accumulate, row->use, " cannot accumulate");
    ENSURE(dm.rows > 0 && dm.cols > 0 && am.rows > 0 && am.cols > 0, row->use, " of an empty matrix");
    Plan& p = plan({row - matmul_rows, accumulate, am, bm, dm, std::min(alignment_bytes(bias), alignment_bytes(aux))},
                   bias, aux);
    if (!p.refusal.empty()) {
        last_refusal = p.refusal;
        return false;
    }
    if (bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (aux) p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    cublas_check(cublasLtMatmul(handle, p.desc, &alpha, a, p.a, b, p.b, &beta, d, p.d, d, p.d, &p.algorithm,
                                workspace.data(), p.workspace_bytes, stream),
                 p.name);
    if (OperationTimer::watches(stream)) OperationTimer::note(stream, text("matmul, ", row->use));
    return true;
}

namespace {

// GELU as a kernel of its own, over `rows` rows that may have gaps between them: apply(first element, elements).
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
               matrix(weight, s.K, s.N, s.weight_stride), in, matrix(in, s.K, s.M, s.in_stride), bias, nullptr, false,
               stream);
}

template <class T>
void Matmul::forward_gelu(T* out, T* pre_gelu, const T* in, const T* weight, const T* bias, const MatmulShape& s,
                          cudaStream_t stream) {
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    if (impl_->fuses_gelu<T>() &&
        impl_->try_run(row, out, matrix(out, s.N, s.M, s.out_stride), weight, matrix(weight, s.K, s.N, s.weight_stride),
                       in, matrix(in, s.K, s.M, s.in_stride), bias, pre_gelu, false, stream)) {
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
               matrix(dout, s.N, s.M, s.out_stride), nullptr, nullptr, accumulate, stream);
}

template <class T>
void Matmul::input_gradient_gelu(T* dinp, const T* dout, const T* weight, const T* pre_gelu, const MatmulShape& s,
                                 cudaStream_t stream) {
    constexpr const MatmulRow* row =
        find_matmul_row(cuda_type<T>, cuda_type<T>, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU);
    if (impl_->fuses_gelu<T>() &&
        impl_->try_run(row, dinp, matrix(dinp, s.K, s.M, s.in_stride), weight,
                       matrix(weight, s.K, s.N, s.weight_stride), dout, matrix(dout, s.N, s.M, s.out_stride), nullptr,
                       pre_gelu, false, stream)) {
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
               matrix(dout, s.N, s.M, s.out_stride), nullptr, nullptr, accumulate, stream);
}

template <class T, class G>
void Matmul::bias_gradient(G* dbias, const T* dout, const MatmulShape& s, bool accumulate, cudaStream_t stream) {
    auto* scratch = reinterpret_cast<float*>(impl_->workspace.data());
    ::bias_gradient(dbias, scratch, impl_->workspace.bytes(), dout,
                    BiasGradientShape{s.M, s.N, s.out_stride ? s.out_stride : s.N}, accumulate, stream);
}

std::vector<MatmulAlgorithm> Matmul::algorithms() const {
    std::map<std::string, MatmulAlgorithm> by_name = impl_->given;
    for (const auto& [problem, plan] : impl_->plans) {
        if (!plan.refusal.empty()) continue;
        MatmulAlgorithm algorithm{plan.name, {}, plan.workspace_bytes};
        std::ranges::copy(plan.algorithm.data, algorithm.words.begin());
        by_name[plan.name] = algorithm;
    }
    std::vector<MatmulAlgorithm> result;
    for (auto& [name, algorithm] : by_name) result.push_back(std::move(algorithm));
    return result;
}

void Matmul::use_algorithms(std::span<const MatmulAlgorithm> algorithms) {
    for (const MatmulAlgorithm& algorithm : algorithms) impl_->given[algorithm.problem] = algorithm;
    impl_->plans.clear();   // made again, with the given algorithms, when next met
}

const std::vector<std::string>& Matmul::refused_algorithms() const { return impl_->refused; }

std::vector<std::string> Matmul::unfused() const {
    std::vector<std::string> result;
    for (const auto& [problem, plan] : impl_->plans) {
        if (!plan.refusal.empty()) result.push_back(plan.refusal);
    }
    return result;
}

#define INSTANTIATE(T)                                                                                             \
    template void Matmul::forward(T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);             \
    template void Matmul::forward_gelu(T*, T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t);    \
    template void Matmul::input_gradient(T*, const T*, const T*, const MatmulShape&, bool, cudaStream_t);          \
    template void Matmul::input_gradient_gelu(T*, const T*, const T*, const T*, const MatmulShape&, cudaStream_t); \
    template void Matmul::weight_gradient(float*, const T*, const T*, const MatmulShape&, bool, cudaStream_t);     \
    template void Matmul::bias_gradient(float*, const T*, const MatmulShape&, bool, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
template void Matmul::weight_gradient(bf16*, const bf16*, const bf16*, const MatmulShape&, bool, cudaStream_t);
template void Matmul::bias_gradient(bf16*, const bf16*, const MatmulShape&, bool, cudaStream_t);
