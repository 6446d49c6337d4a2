// Tests what the stand-in of cuBLASLt accepts and refuses: exactly the rows of matmul_rows.

#include <cublasLt.h>
#include <doctest/doctest.h>

#include <vector>

#include "llmc/base/arena.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/matmul/matmul.h"

namespace {

// A call that serves one row; tests change one thing and look at the status.
struct Call {
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType_t a_type, b_type, c_type, d_type;
    cublasOperation_t transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    std::int32_t order = CUBLASLT_ORDER_COL, batch_count = 1, bias_type = -1, aux_type = -1, pointer_mode = 0;
    std::uint64_t rows = 16, cols = 5, depth = 8, d_rows = 16;
    std::int64_t aux_ld = 16, d_ld = 16, batch_stride = 128;   // of D at least rows x cols
    float alpha = 1, beta = 0;
    bool with_bias_pointer = true, with_aux_pointer = true;
    std::uint64_t algorithm = 0;   // 0: the heuristic's
    bool adds_another = false;

    explicit Call(const MatmulRow& row)
        : a_type(row.input),
          b_type(row.input),
          c_type(row.output),
          d_type(row.output),
          transpose_a(row.transpose_a),
          transpose_b(row.transpose_b),
          epilogue(row.epilogue) {}
};

struct Answer {
    cublasStatus_t heuristic, matmul;
    bool operator==(const Answer&) const = default;
};
constexpr Answer accepted{CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_SUCCESS};
constexpr Answer not_supported{CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED};
constexpr Answer contradictory{CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE};

template <class V>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const V& value) {
    REQUIRE(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
}

cublasLtMatrixLayout_t layout(const Call& call, cudaDataType_t type, std::uint64_t rows, std::uint64_t cols,
                              cublasOperation_t op, std::int64_t ld = 0) {
    if (op != CUBLAS_OP_N) std::swap(rows, cols);
    cublasLtMatrixLayout_t result = nullptr;
    REQUIRE(cublasLtMatrixLayoutCreate(&result, type, rows, cols, ld ? ld : static_cast<std::int64_t>(rows)) ==
            CUBLAS_STATUS_SUCCESS);
    cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_ORDER, &call.order, sizeof call.order);
    cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &call.batch_count,
                                     sizeof call.batch_count);
    cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &call.batch_stride,
                                     sizeof call.batch_stride);
    return result;
}

Answer ask(const Call& call) {
    Arena arena;
    DeviceBuffer<float> memory = arena.allocate<float>("test/operands", 6 * 1024);
    auto operand = [&](int index) { return memory.data() + index * 1024; };
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&desc, call.compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, call.transpose_a);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, call.transpose_b);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, call.epilogue);
    set(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, call.pointer_mode);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, call.bias_type);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, call.aux_type);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.aux_ld);
    if (call.with_bias_pointer) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operand(4));
    if (call.with_aux_pointer) set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operand(5));
    cublasLtMatrixLayout_t a = layout(call, call.a_type, call.rows, call.depth, call.transpose_a);
    cublasLtMatrixLayout_t b = layout(call, call.b_type, call.depth, call.cols, call.transpose_b);
    cublasLtMatrixLayout_t c = layout(call, call.c_type, call.d_rows, call.cols, CUBLAS_OP_N, call.d_ld);
    cublasLtMatrixLayout_t d = layout(call, call.d_type, call.d_rows, call.cols, CUBLAS_OP_N, call.d_ld);

    Answer answer;
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    answer.heuristic = cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, 1, &result, &count);
    CHECK((count == 1) == (answer.heuristic == CUBLAS_STATUS_SUCCESS));
    if (call.algorithm) result.algo.data[0] = call.algorithm;
    bool use_algorithm = count == 1 || call.algorithm;
    answer.matmul = cublasLtMatmul(handle, desc, &call.alpha, operand(0), a, operand(1), b, &call.beta,
                                   operand(call.adds_another ? 2 : 3), c, operand(3), d,
                                   use_algorithm ? &result.algo : nullptr, nullptr, 0, stream);
    for (cublasLtMatrixLayout_t m : {a, b, c, d}) cublasLtMatrixLayoutDestroy(m);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(desc);   // before the operation has run: it no longer needs them
    cublasLtDestroy(handle);
    CUDA_CHECK(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaStreamDestroy(stream));
    return answer;
}

template <class Change>
Answer ask(const MatmulRow& row, Change change) {
    Call call(row);
    change(call);
    return ask(call);
}

}   // namespace

TEST_CASE("cublaslt: every row of the table is accepted") {
    for (const MatmulRow& row : matmul_rows) {
        CAPTURE(row.use);
        CHECK(ask(Call(row)) == accepted);
        Answer accumulated = ask(row, [](Call& c) { c.beta = 1; });
        auto when = [](bool accepts) { return accepts ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED; };
        CHECK(accumulated.matmul == when(row.addend == MatmulAddend::output));
        Answer with_another = ask(row, [](Call& c) { c.beta = 1, c.adds_another = true; });
        CHECK(with_another.matmul == when(row.addend == MatmulAddend::another));
        Answer tf32 = ask(row, [](Call& c) { c.compute = CUBLAS_COMPUTE_32F_FAST_TF32; });
        CHECK(tf32 == (row.input == CUDA_R_32F ? accepted : not_supported));
    }
}

TEST_CASE("cublaslt: types, transposes, epilogues, orders, batches and scales outside the table are not supported") {
    for (const MatmulRow& row : matmul_rows) {
        CAPTURE(row.use);
        CHECK(ask(row, [](Call& c) { c.a_type = c.a_type == CUDA_R_32F ? CUDA_R_16BF : CUDA_R_32F; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.a_type = c.b_type = CUDA_R_16F; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.c_type = CUDA_R_16F; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.transpose_a = c.transpose_b = CUBLAS_OP_T; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_RELU; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_BGRADA; }) == not_supported);
        if (row.transpose_b != CUBLAS_OP_T) {
            CHECK(ask(row, [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_BGRADB; }) == not_supported);
        }
        CHECK(ask(row, [](Call& c) { c.order = CUBLASLT_ORDER_ROW; }) == not_supported);
        const bool takes_batches = row.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
        CHECK(ask(row, [](Call& c) { c.batch_count = 2; }) == (takes_batches ? accepted : not_supported));
        CHECK(ask(row, [](Call& c) { c.compute = CUBLAS_COMPUTE_32F_PEDANTIC; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE; }) == not_supported);
        CHECK(ask(row, [](Call& c) { c.alpha = 2; }).matmul == CUBLAS_STATUS_NOT_SUPPORTED);
        CHECK(ask(row, [](Call& c) { c.beta = 0.5f; }).matmul == CUBLAS_STATUS_NOT_SUPPORTED);
    }
    // bf16 in and fp32 out exists for the weight gradient only
    for (const MatmulRow& row : matmul_rows) {
        if (row.input != CUDA_R_16BF || row.transpose_b == CUBLAS_OP_T) continue;
        CHECK(ask(row, [](Call& c) { c.c_type = c.d_type = CUDA_R_32F; }) == not_supported);
    }
}

TEST_CASE("cublaslt: sizes, pointers and algorithms that contradict one another are invalid") {
    for (const MatmulRow& row : matmul_rows) {
        CAPTURE(row.use);
        CHECK(ask(row, [](Call& c) { c.d_rows = 24, c.d_ld = 24, c.aux_ld = 24; }) == contradictory);
        CHECK(ask(row, [](Call& c) { c.d_ld = 15; }) == contradictory);
        if (row.epilogue == CUBLASLT_EPILOGUE_DEFAULT) {   // results of a batch that overlap
            CHECK(ask(row, [](Call& c) { c.batch_count = 2, c.batch_stride = 16 * 5 - 1; }) == contradictory);
        }
        CHECK(ask(row, [](Call& c) { c.algorithm = 99; }).matmul == CUBLAS_STATUS_INVALID_VALUE);
        if (row.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB)) {
            CHECK(ask(row, [](Call& c) { c.with_bias_pointer = false; }) == contradictory);
            CHECK(ask(row, [](Call& c) { c.bias_type = CUDA_R_16F; }) == not_supported);
        }
        if (row.epilogue & 128) {
            CHECK(ask(row, [](Call& c) { c.with_aux_pointer = false; }) == contradictory);
            CHECK(ask(row, [](Call& c) { c.aux_ld = 8; }) == contradictory);    // shorter than a row
            CHECK(ask(row, [](Call& c) { c.aux_ld = 20; }) == not_supported);   // not a multiple of 8
            CHECK(ask(row, [](Call& c) { c.aux_type = CUDA_R_16F; }) == not_supported);
        }
    }
}

TEST_CASE("cublaslt: attributes of the wrong size or unknown are invalid") {
    cublasLtMatmulDesc_t desc = nullptr;
    REQUIRE(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    std::int64_t wide = 0;
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide) ==
          CUBLAS_STATUS_INVALID_VALUE);
    auto unknown = static_cast<cublasLtMatmulDescAttributes_t>(31);
    CHECK(cublasLtMatmulDescSetAttribute(desc, unknown, &wide, sizeof wide) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasLtMatmulDescDestroy(desc) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtCreate(nullptr) == CUBLAS_STATUS_INVALID_VALUE);
    int count = 0;
    cublasLtMatmulHeuristicResult_t result;
    CHECK(cublasLtMatmulAlgoGetHeuristic(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, &result,
                                         &count) == CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(std::string(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED)) == "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST_CASE("cublaslt: one workspace used on two streams is a race, reported by name") {
    host::TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    Arena arena;
    Matmul matmul(arena);
    DeviceBuffer<float> memory = arena.allocate<float>("test/operands", 6 * 64);
    CUDA_CHECK(cudaMemsetAsync(memory.data(), 0, memory.bytes(), one));
    CUDA_CHECK(cudaStreamSynchronize(one));
    auto operand = [&](int index) { return memory.data() + index * 64; };
    const MatmulShape shape{8, 8, 8};
    matmul.forward<float>(operand(0), operand(1), operand(2), nullptr, shape, one);
    CHECK_THROWS_AS(matmul.forward<float>(operand(3), operand(4), operand(5), nullptr, shape, two), Error);
    const std::string message = host::take_fault();
    CHECK(message.find("cublasLtMatmul (forward, 8x8)") != std::string::npos);
    CHECK(message.find("of device memory") != std::string::npos);
}
