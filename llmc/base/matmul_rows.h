// Every way in which the program uses cuBLASLt, as one table.
//
// It has two readers. The matmuls (llmc/kernels/matmul/matmul.h) call cuBLASLt in these ways only. The stand-in for
// machines without a GPU performs exactly these rows and refuses all others, as cuBLASLt refuses what it does not
// support.
#pragma once

#include <cublasLt.h>

#include <cstdint>

// The matrix that may be added to a product with beta = 1 (`none`: beta is 0): the contents of D, or another matrix of
// D's layout.
enum class MatmulAddend : std::uint8_t { none, output, another };

// One use of cuBLASLt: D = op(A) op(B) + beta C, and the epilogue, before D is rounded. cuBLASLt reads matrices column
// by column, so it sees our row-major matrices transposed, and each call computes (result)^T = (right)^T (left)^T: A is
// the weight (or the input, for the weight gradient) and B holds the tokens. Bias and aux have D's type. A bias
// gradient (BGRADB) is overwritten with the sums of op(B)'s columns, whatever beta is.
struct MatmulRow {
    const char* use;
    cudaDataType_t input, output;
    cublasOperation_t transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    MatmulAddend addend;   // alpha is always 1
};

// clang-format off
inline constexpr MatmulRow matmul_rows[] = {
    {"forward",                CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::another},
    {"forward + bias",         CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS,          MatmulAddend::another},
    {"forward + gelu",         CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX,      MatmulAddend::none},
    {"forward + bias + gelu",  CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, MatmulAddend::none},
    {"input gradient",         CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::output},
    {"input gradient x gelu'", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU,         MatmulAddend::none},
    {"weight gradient",        CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::output},
    {"weight gradient",        CUDA_R_16BF, CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::output},
    {"weight + bias gradient", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_BGRADB,        MatmulAddend::output},
    {"weight + bias gradient", CUDA_R_16BF, CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_BGRADB,        MatmulAddend::output},
    {"forward",                CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::another},
    {"forward + bias",         CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS,          MatmulAddend::another},
    {"forward + gelu",         CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX,      MatmulAddend::none},
    {"forward + bias + gelu",  CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, MatmulAddend::none},
    {"input gradient",         CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::output},
    {"input gradient x gelu'", CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU,         MatmulAddend::none},
    {"weight gradient",        CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       MatmulAddend::output},
    {"weight + bias gradient", CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_BGRADB,        MatmulAddend::output},
};
// clang-format on

constexpr const MatmulRow* find_matmul_row(cudaDataType_t input, cudaDataType_t output, cublasOperation_t transpose_a,
                                           cublasOperation_t transpose_b, cublasLtEpilogue_t epilogue) {
    for (const MatmulRow& row : matmul_rows) {
        if (row.input == input && row.output == output && row.transpose_a == transpose_a &&
            row.transpose_b == transpose_b && row.epilogue == epilogue) {
            return &row;
        }
    }
    return nullptr;
}

// Every row also has: compute type CUBLAS_COMPUTE_32F (fp32 rows also CUBLAS_COMPUTE_32F_FAST_TF32), scale type
// CUDA_R_32F, alpha and beta on the host, column order, batches (at equal distances) only without an epilogue, every
// pointer a multiple of its element size. GELU's aux rows start at multiples of this many elements (cublasLt.h,
// CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD).
inline constexpr std::int64_t matmul_aux_alignment = 8;
