// Choice of the algorithm of each problem: the one given, the heuristic's first, or the fastest of those timed.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/kernels/least_time.h"
#include "llmc/kernels/matmul/matmul_impl.h"

namespace {

int multiprocessors() {
    int device = 0, count = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}   // namespace

cublasStatus_t Matmul::Impl::multiply(const MatmulPlan& plan, void* d, const void* a, const void* b, const void* c,
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
        create_layout(&plan.a, row.input, problem.a, problem.count, plan.name);
        create_layout(&plan.b, row.input, problem.b, problem.count, plan.name);
        create_layout(&plan.d, row.output, problem.d, problem.count, plan.name);
        plan.result_bytes = static_cast<std::size_t>((problem.count - 1) * problem.d.next +
                                                     (problem.d.cols - 1) * problem.d.ld + problem.d.rows) *
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
    if (found->second.is_own_kernel()) {
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

double matmul_seconds(const std::function<void()>& work, cudaStream_t stream) {
    const double one = least_seconds(work, stream, 1);
    return one > 200e-6 ? std::min(one, least_seconds(work, stream, 2)) : least_seconds(work, stream, 3, 8);
}

// Times each candidate and takes the fastest, the heuristic's earlier one of two that are about as fast. A product that
// accumulates adds to other memory meanwhile; if none can be allocated, the heuristic's first stays.
bool Matmul::Impl::take_fastest(MatmulPlan& plan, void* d, const void* a, const void* b, const void* c,
                                cudaStream_t stream) {
    const std::vector<MatmulCandidate> candidates = std::exchange(plan.candidates, {});
    if (tried_seconds >= options.most_seconds) return false;
    const double start = steady_seconds();
    Arena arena;
    DeviceBuffer<std::uint8_t> sum;
    if (c == d) {
        try {
            sum = arena.allocate<std::uint8_t>("workspace/matmul tries", plan.result_bytes);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device) throw;
            return false;
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
        const double seconds = options.timer(
            [&] {
                if (status == CUBLAS_STATUS_SUCCESS) status = multiply(plan, d, a, b, c, stream);
            },
            stream);
        if (status == CUBLAS_STATUS_SUCCESS && clearly_faster(seconds, least)) least = seconds, fastest = &candidate;
    }
    take(*fastest);
    plan.seconds = least;
    CUDA_CHECK(cudaStreamSynchronize(stream));   // before `sum` is freed
    tried_seconds += steady_seconds() - start;
    return true;
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
            algorithm.words = {MatmulAlgorithm::own_kernel_word, static_cast<std::uint64_t>(plan.own_width)};
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
