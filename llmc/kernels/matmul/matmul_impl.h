// State of a Matmul (matmul.h): its library's handle, memory, and a plan for each problem met. Matmul's calls are in
// matmul.cu, the choice of algorithms in matmul_algorithms.cpp.
#pragma once

#include <cublasLt.h>

#include <map>
#include <type_traits>

#include "llmc/kernels/matmul/bias_gradient.h"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/kernels/matmul/matmul_plan.h"

struct Matmul::Impl {
    MatmulOptions options;
    cublasLtHandle_t handle = nullptr;
    int left_free = 0;   // multiprocessors
    bool tries_weight_gradients_only = false;
    double tried_seconds = 0;
    DeviceBuffer<std::uint8_t> workspace;   // for cuBLASLt and bias_gradient
    DeviceBuffer<float> waiting_sums;       // bias gradients that add_bias_gradients will add: `waiting`
    BiasSums waiting;
    std::size_t waiting_used = 0;   // floats
    std::map<MatmulProblem, MatmulPlan> plans;
    std::map<std::string, MatmulAlgorithm> given;   // by the problem's name
    std::vector<std::string> refused;               // why some of `given` could not be used

    Impl(Arena& arena, MatmulOptions given_options);
    ~Impl();

    MatmulPlan& plan(const MatmulProblem& problem, const void* bias, const void* aux);
    void choose_algorithm(MatmulPlan& plan, const MatmulProblem& problem);
    // Returns whether the candidates were timed: there may be no time or memory for that.
    bool take_fastest(MatmulPlan& plan, void* d, const void* a, const void* b, const void* c, cudaStream_t stream);
    cublasStatus_t multiply(const MatmulPlan& plan, void* d, const void* a, const void* b, const void* c,
                            cudaStream_t stream);
    bool take_given_algorithm(MatmulPlan& plan, const MatmulRow& row);
    // Says what a call has done. It did nothing if cuBLASLt has no algorithm for the problem: plan.refusal says why.
    struct Attempt {
        MatmulPlan& plan;
        bool ran, timed_plan;   // timed_plan: this call has chosen the plan's algorithm
    };
    Attempt try_run(const MatmulRow* row, void* d, const MatmulOperand& dm, const void* a, const MatmulOperand& am,
                    const void* b, const MatmulOperand& bm, const void* bias, const void* aux, const void* c,
                    cudaStream_t stream, int count = 1);
    template <class... Arguments>
    void run(const MatmulRow* row, const Arguments&... arguments) {
        const Attempt attempt = try_run(row, arguments...);
        if (!attempt.ran) throw Error(ErrorKind::bug, attempt.plan.refusal);
    }
    template <class T>
    static constexpr bool fuses_gelu = !std::is_same_v<T, float>;
};
