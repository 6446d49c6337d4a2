#include "llmc/kernels/matmul/matmul_plan.h"

#include <algorithm>
#include <limits>

void cublas_check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    bool no_device = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(no_device ? ErrorKind::no_device : ErrorKind::bug,
                text("cuBLASLt: ", what, " failed: ", cublasLtGetStatusName(status)));
}

std::uint32_t alignment_bytes(const void* pointer) {
    auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return address == 0 ? 256u : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

MatmulOperand matrix(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride, int count,
                     std::int64_t next) {
    return {rows, cols, stride ? stride : rows, count > 1 ? next : 0, alignment_bytes(data)};
}

std::size_t bytes_of(const MatmulProblem& p) {
    const MatmulRow& row = matmul_rows[p.row];
    auto bytes = [&](const MatmulOperand& m, cudaDataType_t type) {
        return static_cast<std::size_t>(m.rows * m.cols * p.count) * (type == CUDA_R_32F ? 4 : 2);
    };
    const bool aux = (row.epilogue & 128) != 0;
    return bytes(p.a, row.input) + bytes(p.b, row.input) +
           (std::size_t{1} + aux + p.accumulate) * bytes(p.d, row.output);
}

std::string describe(const MatmulProblem& p, bool tf32) {
    const MatmulRow& row = matmul_rows[p.row];
    auto type = [](cudaDataType_t t) { return t == CUDA_R_32F ? "fp32" : "bf16"; };
    auto one = [&p](const char* name, const MatmulOperand& m) {
        return text(" ", name, "=", m.rows, "x", m.cols, "/", m.ld, p.count > 1 ? text("/", m.next) : std::string(),
                    "@", m.alignment);
    };
    return text(row.use, " ", type(row.input), tf32 ? " as tf32" : "", " -> ", type(row.output),
                !p.accumulate                         ? std::string()
                : row.addend == MatmulAddend::another ? text(" + residual@", p.c_alignment)
                                                      : std::string(" accumulated"),
                one("A", p.a), one("B", p.b), one("D", p.d), " epilogue@", p.epilogue_alignment,
                p.count > 1 ? text(" times ", p.count) : std::string(),
                p.left_free > 0 ? text(" leaving ", p.left_free) : std::string());
}

std::optional<HopperMatmul> own_problem(const MatmulProblem& p) {
    const MatmulRow& row = matmul_rows[p.row];
    if (row.input != CUDA_R_16BF || row.output != CUDA_R_16BF || row.transpose_b != CUBLAS_OP_N) return std::nullopt;
    if (p.count > 1) return std::nullopt;
    HopperMatmul own{};
    switch (row.epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT:
        case CUBLASLT_EPILOGUE_BIAS: own.end = p.accumulate ? HopperMatmulEnd::add : HopperMatmulEnd::plain; break;
        case CUBLASLT_EPILOGUE_GELU_AUX:
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: own.end = HopperMatmulEnd::gelu; break;
        case CUBLASLT_EPILOGUE_DGELU: own.end = HopperMatmulEnd::gelu_slope; break;
        default: return std::nullopt;
    }
    const std::uint32_t least =
        std::min({p.a.alignment, p.b.alignment, p.d.alignment, p.c_alignment, p.epilogue_alignment});
    constexpr std::int64_t most = std::numeric_limits<int>::max();
    if (least < 16 || std::max({p.d.rows, p.d.cols, p.b.rows}) > most) return std::nullopt;
    own.transposed = row.transpose_a == CUBLAS_OP_N;
    own.tokens = static_cast<int>(p.d.cols);
    own.channels = static_cast<int>(p.d.rows);
    own.depth = static_cast<int>(p.b.rows);
    own.out_stride = p.d.ld;
    own.in_stride = p.b.ld;
    own.weight_stride = p.a.ld;
    return hopper_matmul_takes(own) ? std::optional(own) : std::nullopt;
}

MatmulPlan::~MatmulPlan() {
    if (d) cublasLtMatrixLayoutDestroy(d);
    if (b) cublasLtMatrixLayoutDestroy(b);
    if (a) cublasLtMatrixLayoutDestroy(a);
    if (desc) cublasLtMatmulDescDestroy(desc);
}

void create_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, const MatmulOperand& m, int count,
                   const std::string& name) {
    cublas_check(cublasLtMatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(m.rows),
                                            static_cast<std::uint64_t>(m.cols), m.ld),
                 "layout of " + name);
    if (count == 1) return;
    auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
        cublas_check(cublasLtMatrixLayoutSetAttribute(*layout, attribute, &value, sizeof value), "layout of " + name);
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{count});
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.next);
}
