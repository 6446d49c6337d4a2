// What the program asks of cuBLASLt: every use, as one table.
//
// Two read it. The matmuls (llmc/kernels/matmul.h) call cuBLASLt in these ways only. The stand-in for machines without
// a GPU performs exactly these rows and refuses all others, as cuBLASLt refuses what it does not support.
#pragma once

#include <cublasLt.h>

#include <cstdint>

// One use of cuBLASLt: D = op(A) op(B) + beta C with C = D in memory. cuBLASLt reads matrices column by column, so our
// row-major matrices are its transposed ones, and each product is asked for as (result)^T = (right)^T (left)^T:
// A is the weight (or the input, for the weight gradient) and B holds the tokens. Bias and aux have D's type.
struct MatmulRow {
    const char* use;
    cudaDataType_t input, output;
    cublasOperation_t transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    bool may_accumulate;   // beta may be 1 besides 0; alpha is always 1
};

// clang-format off
inline constexpr MatmulRow matmul_rows[] = {
    {"forward",                CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       false},
    {"forward + bias",         CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS,          false},
    {"forward + bias + gelu",  CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, false},
    {"input gradient",         CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       true},
    {"input gradient x gelu'", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU,         false},
    {"weight gradient",        CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       true},
    {"weight gradient",        CUDA_R_16BF, CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       true},
    {"forward",                CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       false},
    {"forward + bias",         CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS,          false},
    {"forward + bias + gelu",  CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, false},
    {"input gradient",         CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,       true},
    {"input gradient x gelu'", CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU,         false},
    {"weight gradient",        CUDA_R_32F,  CUDA_R_32F,  CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,       true},
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

// In every row besides: compute type CUBLAS_COMPUTE_32F (fp32 rows also CUBLAS_COMPUTE_32F_FAST_TF32), scale type
// CUDA_R_32F, alpha and beta on the host, column order, no batches, every pointer a multiple of its element size, and
// GELU's aux rows start at multiples of this many elements (cublasLt.h, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD).
inline constexpr std::int64_t matmul_aux_alignment = 8;
