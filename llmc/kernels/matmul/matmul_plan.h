// Plan that Matmul (matmul.h) keeps for each problem it has met: the description for cuBLASLt and for own kernels, and
// the algorithm chosen.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/matmul_rows.h"
#include "llmc/kernels/matmul/matmul_hopper.h"

// Throws an Error where a call of cuBLASLt failed; `what`: the call in words.
void cublas_check(cublasStatus_t status, const std::string& what);

// Returns the largest power of two that divides the address, at most 256 bytes, the most that cuBLASLt asks about.
std::uint32_t alignment_bytes(const void* pointer);

// A matrix as cuBLASLt sees it: `rows` adjacent elements, `cols` times, `ld` elements apart; in a batch the next one is
// `next` elements away.
struct MatmulOperand {
    std::int64_t rows, cols, ld, next;
    std::uint32_t alignment;
    auto operator<=>(const MatmulOperand&) const = default;
};

// Returns the operand; `next` has no meaning if `count` is 1, and is 0 then.
MatmulOperand matrix(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride, int count = 1,
                     std::int64_t next = 0);

// Everything that a plan depends on.
struct MatmulProblem {
    std::ptrdiff_t row;   // index into matmul_rows
    bool accumulate;
    MatmulOperand a, b, d;
    std::uint32_t c_alignment, epilogue_alignment;   // alignments of the added matrix; of bias and aux
    int left_free = 0;                               // multiprocessors left free
    int count = 1;                                   // products in a batch
    auto operator<=>(const MatmulProblem&) const = default;
};

std::string describe(const MatmulProblem& p, bool tf32);   // for messages

// Returns the bytes that its multiplication moves, each operand once (bias not counted).
std::size_t bytes_of(const MatmulProblem& p);

// Returns the problem for the kernels of matmul_hopper.h, without its pointers, or nothing if they cannot compute it.
std::optional<HopperMatmul> own_problem(const MatmulProblem& p);

struct MatmulCandidate {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace_bytes;
    int own_width = 0;   // above 0: not cuBLASLt's, but the kernel of matmul_hopper.h of this width
};

// Owns the descriptors of one problem and the algorithm chosen for it.
struct MatmulPlan {
    std::string name;
    // How the problem is computed: by an algorithm; apart as two operations, because they were faster (BGRADB rows
    // only; the MatmulAlgorithm then has no word and no workspace); or apart because cuBLASLt has no algorithm, for the
    // reason in `refusal`.
    enum class Use : std::uint8_t { algorithm, apart, refused } use = Use::algorithm;
    std::string refusal;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t workspace_bytes = 0, result_bytes = 0;
    std::optional<HopperMatmul> own;   // the problem for own kernels, if they may be used; its pointers are the last
                                       // call's bias and aux
    int own_width = 0;                 // above 0: computed by the own kernel of this width
    std::vector<MatmulCandidate> candidates;   // to be timed, until the fastest is known
    double seconds = 0;                        // time of the fastest candidate

    MatmulPlan() = default;
    MatmulPlan(const MatmulPlan&) = delete;
    MatmulPlan& operator=(const MatmulPlan&) = delete;
    ~MatmulPlan();

    template <class V>
    void set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
        cublas_check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value), "descriptor of " + name);
    }
};

void create_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, const MatmulOperand& m, int count,
                   const std::string& name);
