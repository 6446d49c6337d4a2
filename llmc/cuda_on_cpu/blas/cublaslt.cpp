// Stand-in for cuBLASLt: descriptors, the table of supported problems, and the operation put on the stream.

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/matmul_rows.h"
#include "llmc/cuda_on_cpu/blas/gemm.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

struct cublasLtContext {};

struct cublasLtMatrixLayoutOpaque_t {
    std::uint32_t type;
    std::int32_t order = CUBLASLT_ORDER_COL;
    std::uint64_t rows, cols;
    std::int64_t ld;
    std::int32_t batch_count = 1;
    std::int64_t batch_stride = 0;
};

struct cublasLtMatmulDescOpaque_t {
    std::int32_t compute, scale;
    std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
    void* aux = nullptr;
    std::int64_t aux_ld = 0;
    std::int32_t bias_type = -1, aux_type = -1, multiprocessors = 0;
};

struct cublasLtMatmulPreferenceOpaque_t {
    std::uint64_t max_workspace_bytes = 0;
    std::uint32_t alignment_bytes[4] = {256, 256, 256, 256};   // alignments of A, B, C, D
    std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace {

// Workspace that the stand-in declares. A real algorithm's is unknown; some bytes suffice to show the race detector who
// shares a workspace.
constexpr std::size_t nominal_workspace_bytes = 256;

template <class Field>
cublasStatus_t set_field(Field& field, const void* value, std::size_t bytes) {
    if (value == nullptr || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T, class... Args>
cublasStatus_t create(T** result, Args... args) {
    if (result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    *result = new (std::nothrow) T{args...};
    return *result ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

template <class T>
cublasStatus_t destroy(T* object) {
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

using Layout = cublasLtMatrixLayoutOpaque_t;
using Desc = cublasLtMatmulDescOpaque_t;

std::uint64_t op_rows(const Layout& m, std::int32_t op) { return op == CUBLAS_OP_N ? m.rows : m.cols; }
std::uint64_t op_cols(const Layout& m, std::int32_t op) { return op == CUBLAS_OP_N ? m.cols : m.rows; }

bool makes_bias(const MatmulRow& row) { return row.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
bool has_bias(const MatmulRow& row) { return (row.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || makes_bias(row); }
bool has_aux(const MatmulRow& row) { return (row.epilogue & 128) != 0; }

int refused_epilogue = 0;
bool refuses_unaligned_addend = false;

// Returns the row that serves this problem; null if the table has none.
const MatmulRow* find_row(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    for (const Layout* m : {&a, &b, &c, &d}) {
        if (m->order != CUBLASLT_ORDER_COL || m->batch_count != d.batch_count) return nullptr;
    }
    if (a.type != b.type || c.type != d.type || c.ld != d.ld) return nullptr;
    const MatmulRow* row = find_matmul_row(static_cast<cudaDataType_t>(a.type), static_cast<cudaDataType_t>(d.type),
                                           static_cast<cublasOperation_t>(desc.transpose_a),
                                           static_cast<cublasOperation_t>(desc.transpose_b),
                                           static_cast<cublasLtEpilogue_t>(desc.epilogue));
    if (row == nullptr || row->epilogue == refused_epilogue) return nullptr;
    if (d.batch_count != 1 && row->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return nullptr;
    bool tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && row->input == CUDA_R_32F;
    if (desc.compute != CUBLAS_COMPUTE_32F && !tf32) return nullptr;
    if (desc.scale != CUDA_R_32F || desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return nullptr;
    if (has_bias(*row) && desc.bias_type != -1 && desc.bias_type != row->output) return nullptr;
    if (has_aux(*row)) {
        if (desc.aux_type != -1 && desc.aux_type != row->output) return nullptr;
        if (desc.aux_ld % matmul_aux_alignment != 0) return nullptr;
    }
    return row;
}

// Returns true if sizes and pointers agree with one another.
bool is_consistent(const Desc& desc, const MatmulRow& row, const Layout& a, const Layout& b, const Layout& c,
                   const Layout& d) {
    for (const Layout* m : {&a, &b, &c, &d}) {
        if (m->rows == 0 || m->cols == 0 || m->ld < static_cast<std::int64_t>(m->rows)) return false;
        if (m->batch_count < 1) return false;
    }
    if (op_rows(a, desc.transpose_a) != d.rows || op_cols(b, desc.transpose_b) != d.cols) return false;
    if (op_cols(a, desc.transpose_a) != op_rows(b, desc.transpose_b)) return false;
    if (c.rows != d.rows || c.cols != d.cols || c.batch_stride != d.batch_stride) return false;
    if (d.batch_count > 1 &&
        d.batch_stride < static_cast<std::int64_t>(d.cols - 1) * d.ld + static_cast<std::int64_t>(d.rows)) {
        return false;   // results that overlap
    }
    if (has_bias(row) && desc.bias == nullptr) return false;
    if (has_aux(row) && (desc.aux == nullptr || desc.aux_ld < static_cast<std::int64_t>(d.rows))) return false;
    return true;
}

std::size_t element_bytes(std::uint32_t type) { return type == CUDA_R_32F ? 4 : 2; }

bool is_aligned(const void* pointer, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

host::Access access(const void* data, std::uint64_t rows, std::uint64_t cols, std::int64_t ld, std::uint32_t type,
                    bool write) {
    return {data, ((cols - 1) * static_cast<std::uint64_t>(ld) + rows) * element_bytes(type), write};
}

host::Access access(const void* data, const Layout& m, bool write) {
    host::Access one = access(data, m.rows, m.cols, m.ld, m.type, write);
    one.bytes +=
        static_cast<std::size_t>(m.batch_count - 1) * static_cast<std::size_t>(m.batch_stride) * element_bytes(m.type);
    return one;
}

host::GemmEpilogue epilogue_of(const MatmulRow& row) {
    switch (row.epilogue) {
        case CUBLASLT_EPILOGUE_BIAS: return host::GemmEpilogue::bias;
        case CUBLASLT_EPILOGUE_GELU_AUX:
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return host::GemmEpilogue::gelu;
        case CUBLASLT_EPILOGUE_DGELU: return host::GemmEpilogue::dgelu;
        case CUBLASLT_EPILOGUE_BGRADB: return host::GemmEpilogue::row_sums;
        default: return row.addend == MatmulAddend::another ? host::GemmEpilogue::bias : host::GemmEpilogue::none;
    }
}

// Returns the same product for row-major matrices: transposed, so with exchanged operands.
host::Gemm row_major(const Desc& desc, const MatmulRow& row, const void* a, const Layout& al, const void* b,
                     const Layout& bl, const void* added, void* d, const Layout& dl) {
    host::Gemm g{};
    g.M = static_cast<std::int64_t>(dl.cols);
    g.N = static_cast<std::int64_t>(dl.rows);
    g.K = static_cast<std::int64_t>(op_cols(al, desc.transpose_a));
    g.a = b, g.a_stride = bl.ld, g.a_transposed = desc.transpose_b == CUBLAS_OP_T;
    g.b = a, g.b_stride = al.ld, g.b_transposed = desc.transpose_a == CUBLAS_OP_T;
    g.d = d, g.d_stride = dl.ld;
    g.input_bf16 = row.input == CUDA_R_16BF;
    g.output_bf16 = row.output == CUDA_R_16BF;
    g.added = added;
    g.epilogue = epilogue_of(row);
    if (has_bias(row)) g.bias = const_cast<void*>(desc.bias);   // some epilogues write it
    g.aux = desc.aux, g.aux_stride = desc.aux_ld;
    return g;
}

// Returns product i of a batch whose first is `first`.
host::Gemm of_batch(host::Gemm first, const Layout& a, const Layout& b, const Layout& d, std::int32_t i) {
    auto at = [i](const void* data, const Layout& m) -> const void* {
        const std::int64_t bytes = i * m.batch_stride * static_cast<std::int64_t>(element_bytes(m.type));
        return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
    };
    first.a = at(first.a, b), first.b = at(first.b, a);   // exchanged by row_major
    first.d = const_cast<void*>(at(first.d, d)), first.added = at(first.added, d);
    return first;
}

// An algorithm of the stand-in holds 1 + the row's index, so that one chosen for another row is refused, and its own
// number. All compute the same; there are several so that a test can tell which was chosen. Only the first is offered,
// unless a test asks for more: on a CPU there is nothing to time.
int offered_algorithms = 1;
constexpr std::uint64_t algorithms_per_row = 4;
std::uint64_t algorithm_of(const MatmulRow& row) { return static_cast<std::uint64_t>(&row - matmul_rows) + 1; }
bool serves(const cublasLtMatmulAlgo_t& algorithm, const MatmulRow& row) {
    return algorithm.data[0] == algorithm_of(row) && algorithm.data[1] < algorithms_per_row;
}

}   // namespace

void host::refuse_epilogue(int epilogue) { refused_epilogue = epilogue; }
void host::refuse_unaligned_addend(bool refuse) { refuses_unaligned_addend = refuse; }
void host::offer_algorithms(int count) { offered_algorithms = std::clamp<int>(count, 1, algorithms_per_row); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "unknown cuBLAS status";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "success";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "the requested functionality is not supported";
        case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
        default: return cublasLtGetStatusName(status);
    }
}

std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld) {
    return create(layout, static_cast<std::uint32_t>(type), static_cast<std::int32_t>(CUBLASLT_ORDER_COL), rows, cols,
                  ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
    if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return set_field(layout->type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ORDER: return set_field(layout->order, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return set_field(layout->rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return set_field(layout->cols, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD: return set_field(layout->ld, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set_field(layout->batch_count, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set_field(layout->batch_stride, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    return create(desc, static_cast<std::int32_t>(compute), static_cast<std::int32_t>(scale));
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
    if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set_field(desc->compute, value, bytes);
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set_field(desc->scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set_field(desc->pointer_mode, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSA: return set_field(desc->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return set_field(desc->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set_field(desc->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set_field(desc->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set_field(desc->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set_field(desc->aux_ld, value, bytes);
        case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return set_field(desc->multiprocessors, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return set_field(desc->aux_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set_field(desc->bias_type, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
    if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set_field(preference->max_workspace_bytes, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set_field(preference->reduction_schemes, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set_field(preference->alignment_bytes[0], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set_field(preference->alignment_bytes[1], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set_field(preference->alignment_bytes[2], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set_field(preference->alignment_bytes[3], value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !a || !b || !c || !d || !preference || requested < 1 || !results || !returned) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *returned = 0;
    const MatmulRow* row = find_row(*desc, *a, *b, *c, *d);
    if (row == nullptr || !is_consistent(*desc, *row, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (refuses_unaligned_addend && preference->alignment_bytes[2] < preference->alignment_bytes[3]) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    *returned = std::min(requested, offered_algorithms);
    for (int i = 0; i < *returned; i++) {
        results[i] = {};
        results[i].algo.data[0] = algorithm_of(*row);
        results[i].algo.data[1] = static_cast<std::uint64_t>(i);
        results[i].workspaceSize = std::min<std::size_t>(nominal_workspace_bytes, preference->max_workspace_bytes);
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !a || !b || !c || !d || !algorithm || !result) return CUBLAS_STATUS_INVALID_VALUE;
    const MatmulRow* row = find_row(*desc, *a, *b, *c, *d);
    if (row == nullptr || !is_consistent(*desc, *row, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!serves(*algorithm, *row)) return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {};
    result->algo = *algorithm;
    result->workspaceSize = nominal_workspace_bytes;
    result->wavesCount = 1.0f;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t al, const void* b, cublasLtMatrixLayout_t bl, const void* beta,
                              const void* c, cublasLtMatrixLayout_t cl, void* d, cublasLtMatrixLayout_t dl,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !alpha || !a || !al || !b || !bl || !beta || !c || !cl || !d || !dl)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace == nullptr && workspace_bytes > 0) return CUBLAS_STATUS_INVALID_VALUE;
    const MatmulRow* row = find_row(*desc, *al, *bl, *cl, *dl);
    if (row == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_consistent(*desc, *row, *al, *bl, *cl, *dl)) return CUBLAS_STATUS_INVALID_VALUE;
    if (algorithm && !serves(*algorithm, *row)) return CUBLAS_STATUS_INVALID_VALUE;
    float alpha_value = *static_cast<const float*>(alpha), beta_value = *static_cast<const float*>(beta);
    bool accumulate = beta_value == 1.0f;
    if (alpha_value != 1.0f || (beta_value != 0.0f && !accumulate)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const MatmulAddend addend = row->addend;
    if (accumulate && (addend == MatmulAddend::none || (addend == MatmulAddend::output) != (c == d))) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    bool aligned = is_aligned(a, element_bytes(al->type)) && is_aligned(b, element_bytes(bl->type)) &&
                   is_aligned(c, element_bytes(dl->type)) && is_aligned(d, element_bytes(dl->type)) &&
                   is_aligned(desc->bias, element_bytes(dl->type)) && is_aligned(desc->aux, element_bytes(dl->type));
    if (!aligned) return CUBLAS_STATUS_INVALID_VALUE;

    host::Operation operation;
    const std::string limit =
        desc->multiprocessors > 0 ? text(", at most ", desc->multiprocessors, " multiprocessors") : "";
    operation.name = text("cublasLtMatmul (", row->use, ", ", dl->rows, "x", dl->cols, limit, ")");
    operation.accesses = {access(a, *al, false), access(b, *bl, false), access(d, *dl, true)};
    if (accumulate) operation.accesses.push_back(access(c, *cl, false));
    if (has_bias(*row)) {
        const bool writes = makes_bias(*row);
        operation.accesses.push_back(access(desc->bias, writes ? dl->cols : dl->rows, 1, 1, dl->type, writes));
    }
    if (has_aux(*row)) {
        bool writes = row->epilogue != CUBLASLT_EPILOGUE_DGELU;
        operation.accesses.push_back(access(desc->aux, dl->rows, dl->cols, desc->aux_ld, dl->type, writes));
    }
    if (workspace_bytes > 0) operation.accesses.push_back({workspace, workspace_bytes, true});
    const host::Gemm gemm = row_major(*desc, *row, a, *al, b, *bl, accumulate ? c : nullptr, d, *dl);
    operation.work.flops =
        2.0 * static_cast<double>(gemm.M) * static_cast<double>(gemm.N) * static_cast<double>(gemm.K) * dl->batch_count;
    operation.step = [gemm, al = *al, bl = *bl, dl = *dl] {
        for (std::int32_t i = 0; i < dl.batch_count; i++) host::gemm(of_batch(gemm, al, bl, dl, i));
        return true;
    };
    return host::enqueue(stream, std::move(operation)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                      : CUBLAS_STATUS_EXECUTION_FAILED;
}
