// Plan that Matmul (matmul.h) keeps for each problem it has met: the description for cuBLASLt, and the algorithm
// chosen.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/matmul_rows.h"

inline void cublas_check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    bool no_device = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(no_device ? ErrorKind::no_device : ErrorKind::bug,
                text("cuBLASLt: ", what, " failed: ", cublasLtGetStatusName(status)));
}

// Returns the largest power of two that divides the address, at most 256 bytes, the most that cuBLASLt asks about.
inline std::uint32_t alignment_bytes(const void* pointer) {
    auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return address == 0 ? 256u : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

// A matrix as cuBLASLt sees it: `rows` adjacent elements, `cols` times, `ld` elements apart.
struct MatmulOperand {
    std::int64_t rows, cols, ld;
    std::uint32_t alignment;
    auto operator<=>(const MatmulOperand&) const = default;
};

inline MatmulOperand matrix(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    return {rows, cols, stride ? stride : rows, alignment_bytes(data)};
}

// Returns the bytes a multiplication moves, each operand once (bias not counted).
inline std::size_t bytes_of(const MatmulRow& row, const MatmulOperand& a, const MatmulOperand& b,
                            const MatmulOperand& d, bool accumulate) {
    auto bytes = [](const MatmulOperand& m, cudaDataType_t type) {
        return static_cast<std::size_t>(m.rows * m.cols) * (type == CUDA_R_32F ? 4 : 2);
    };
    const bool aux = (row.epilogue & 128) != 0;
    return bytes(a, row.input) + bytes(b, row.input) + (std::size_t{1} + aux + accumulate) * bytes(d, row.output);
}

// Everything that a plan depends on.
struct MatmulProblem {
    std::ptrdiff_t row;   // index into matmul_rows
    bool accumulate;
    MatmulOperand a, b, d;
    std::uint32_t c_alignment, epilogue_alignment;   // alignments of the added matrix; of bias and aux
    int left_free = 0;                               // multiprocessors left free
    auto operator<=>(const MatmulProblem&) const = default;
};

inline std::string describe(const MatmulProblem& p, bool tf32) {
    const MatmulRow& row = matmul_rows[p.row];
    auto type = [](cudaDataType_t t) { return t == CUDA_R_32F ? "fp32" : "bf16"; };
    auto one = [](const char* name, const MatmulOperand& m) {
        return text(" ", name, "=", m.rows, "x", m.cols, "/", m.ld, "@", m.alignment);
    };
    return text(row.use, " ", type(row.input), tf32 ? " as tf32" : "", " -> ", type(row.output),
                !p.accumulate                         ? std::string()
                : row.addend == MatmulAddend::another ? text(" + residual@", p.c_alignment)
                                                      : std::string(" accumulated"),
                one("A", p.a), one("B", p.b), one("D", p.d), " epilogue@", p.epilogue_alignment,
                p.left_free > 0 ? text(" leaving ", p.left_free) : std::string());
}

struct MatmulCandidate {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace_bytes;
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
    std::vector<MatmulCandidate> candidates;   // to be timed, until the fastest is known
    double seconds = 0;                        // time of the fastest candidate

    MatmulPlan() = default;
    MatmulPlan(const MatmulPlan&) = delete;
    MatmulPlan& operator=(const MatmulPlan&) = delete;
    ~MatmulPlan() {
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

inline void create_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, const MatmulOperand& m,
                          const std::string& name) {
    cublas_check(cublasLtMatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(m.rows),
                                            static_cast<std::uint64_t>(m.cols), m.ld),
                 "layout of " + name);
}
