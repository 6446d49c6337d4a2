#include "llmc/cuda_on_cpu/blas/gemm.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <new>
#include <tuple>

#include "llmc/base/check.h"
#include "llmc/cuda_on_cpu/blas/vector_math.h"
#include "llmc/cuda_on_cpu/exec/thread_pool.h"

// From libgomp, which oneDNN links; declared here because clang++ comes without <omp.h>.
extern "C" void omp_set_num_threads(int count);

namespace host {
namespace {

using std::int64_t;
using Bf16Bits = std::uint16_t;

// Makes oneDNN use one thread on the calling thread. oneDNN asks OpenMP for the number of threads, which is a setting
// of the calling thread.
void one_dnn_on_this_thread() {
    static thread_local bool done = (omp_set_num_threads(1), true);
    (void)done;
}

// Throws if address space is short: oneDNN writes to a null pointer if it gets no memory for the code that it
// generates.
void require_address_space() {
    constexpr std::size_t enough = 64 << 20;   // suffices for several threads at once
    void* const memory = ::mmap(nullptr, enough, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    ::munmap(memory, enough);
}

// Returns memory of the calling thread, kept from call to call: fresh pages would cost as much as the conversion into
// them.
float* scratch(int slot, std::size_t count) {
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    struct Buffer {
        std::unique_ptr<float, Free> data;
        std::size_t count = 0;
    };
    static thread_local Buffer buffers[3];
    Buffer& buffer = buffers[slot];
    if (buffer.count < count) {
        std::size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
        buffer.data.reset(static_cast<float*>(std::aligned_alloc(4096, bytes)));
        ENSURE(buffer.data != nullptr, "no memory for ", bytes, " bytes of scratch");
        buffer.count = count;
    }
    return buffer.data.get();
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles

struct Range {
    int64_t begin, size;
};

// Cuts `size` into `parts` that differ by at most `unit`, and returns part `index`.
Range part(int64_t size, int64_t parts, int64_t index, int64_t unit) {
    int64_t units = (size + unit - 1) / unit;
    int64_t begin = std::min(size, units * index / parts * unit);
    return {begin, std::min(size, units * (index + 1) / parts * unit) - begin};
}

struct Tiling {
    int64_t row_parts, column_parts;
};

constexpr int64_t row_unit = 8, column_unit = 16;   // units that oneDNN's inner loops like
// Limits of a tile, so that it stays in the core's cache. bf16 instructions multiply so fast that packing B for oneDNN
// costs a noticeable part: there, more rows share it (measured with vdpbf16ps, not with AMX).
constexpr int64_t most_rows = 256, most_rows_bf16 = 1024, most_columns = 512;

// Returns the tiling with the least work on the busiest thread. A tile's cost is its multiplications and, per row and
// column, the packing and widening of its operands (about 16 multiplications per element, measured).
Tiling choose_tiling(int64_t M, int64_t N, int64_t rows_at_most, int threads) {
    Tiling best{1, 1};
    double best_cost = 1e300;
    int64_t first_rows = (M + rows_at_most - 1) / rows_at_most, first_columns = (N + most_columns - 1) / most_columns;
    for (int64_t rows = first_rows; rows <= std::min(M, first_rows + threads); rows++) {
        for (int64_t columns = first_columns; columns <= std::min(N, first_columns + threads); columns++) {
            double mb = static_cast<double>(part(M, rows, rows - 1, row_unit).size + row_unit);
            double nb = static_cast<double>(part(N, columns, columns - 1, column_unit).size + column_unit);
            double rounds = static_cast<double>((rows * columns + threads - 1) / threads);
            double cost = rounds * (mb * nb + 16.0 * (mb + nb));
            if (cost < best_cost) best_cost = cost, best = {rows, columns};
        }
    }
    return best;
}

// ---------------------------------------------------------------------------------------------------------------------
// Multiplies one tile: C(mb,nb) in fp32 at `c`, added to what is there with `accumulate`

void widen_block(const Bf16Bits* source, int64_t stride, int64_t rows, int64_t columns, float* out) {
    for (int64_t r = 0; r < rows; r++) {
        const Bf16Bits* from = source + r * stride;
        float* __restrict to = out + r * columns;
        for (int64_t i = 0; i < columns; i++) to[i] = widen(from[i]);
    }
}

template <class T>
const T* element(const void* data, int64_t stride, bool transposed, int64_t row, int64_t column) {
    return static_cast<const T*>(data) + (transposed ? column * stride + row : row * stride + column);
}

void multiply_fp32(const Gemm& g, Range m, Range n, float* c, int64_t c_stride, bool accumulate) {
    sgemm_on_this_thread(g.a_transposed, g.b_transposed, m.size, n.size, g.K, 1.0f,
                         element<float>(g.a, g.a_stride, g.a_transposed, m.begin, 0), g.a_stride,
                         element<float>(g.b, g.b_stride, g.b_transposed, 0, n.begin), g.b_stride,
                         accumulate ? 1.0f : 0.0f, c, c_stride);
}

// Widens a slice of K at a time, so that the fp32 copies are still in the cache when they are multiplied.
void multiply_widened(const Gemm& g, Range m, Range n, float* c, int64_t c_stride, bool accumulate) {
    constexpr int64_t most_depth = 512;
    int64_t slices = (g.K + most_depth - 1) / most_depth;
    for (int64_t slice = 0; slice < slices; slice++) {
        Range k = part(g.K, slices, slice, 16);
        if (k.size == 0) continue;
        float* a = scratch(0, static_cast<std::size_t>(m.size * k.size));
        float* b = scratch(1, static_cast<std::size_t>(n.size * k.size));
        const Bf16Bits* a_from = element<Bf16Bits>(g.a, g.a_stride, g.a_transposed, m.begin, k.begin);
        const Bf16Bits* b_from = element<Bf16Bits>(g.b, g.b_stride, g.b_transposed, k.begin, n.begin);
        int64_t a_rows = g.a_transposed ? k.size : m.size, a_columns = g.a_transposed ? m.size : k.size;
        int64_t b_rows = g.b_transposed ? n.size : k.size, b_columns = g.b_transposed ? k.size : n.size;
        widen_block(a_from, g.a_stride, a_rows, a_columns, a);
        widen_block(b_from, g.b_stride, b_rows, b_columns, b);
        sgemm_on_this_thread(g.a_transposed, g.b_transposed, m.size, n.size, k.size, 1.0f, a, a_columns, b, b_columns,
                             accumulate || slice > 0 ? 1.0f : 0.0f, c, c_stride);
    }
}

// A oneDNN matmul of bf16 operands into fp32, with its three operands.
struct NativeMatmul {
    dnnl::matmul primitive;
    dnnl::memory a, b, c;
};

NativeMatmul create_native(const Gemm& g, int64_t mb, int64_t nb, int64_t c_stride, bool accumulate,
                           const dnnl::engine& engine) {
    using dnnl::memory;
    require_address_space();
    auto strides = [](int64_t stride, bool transposed) {
        return transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
    };
    memory::desc a({mb, g.K}, memory::data_type::bf16, strides(g.a_stride, g.a_transposed));
    memory::desc b({g.K, nb}, memory::data_type::bf16, strides(g.b_stride, g.b_transposed));
    memory::desc c({mb, nb}, memory::data_type::f32, strides(c_stride, false));
    dnnl::primitive_attr attributes;
    if (accumulate) {
        dnnl::post_ops add;
        add.append_sum(1.0f);
        attributes.set_post_ops(add);
    }
    dnnl::matmul primitive(dnnl::matmul::primitive_desc({a, b, c}, attributes, engine));
    return {primitive, memory(a, engine, nullptr), memory(b, engine, nullptr), memory(c, engine, nullptr)};
}

void multiply_native_bf16(const Gemm& g, Range m, Range n, float* c, int64_t c_stride, bool accumulate) {
    one_dnn_on_this_thread();
    static thread_local dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    static thread_local dnnl::stream stream(engine);
    // Creating a primitive takes about a millisecond, so each thread keeps those it has made.
    using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, bool>;
    static thread_local std::map<Key, NativeMatmul> cache;
    Key key{m.size, n.size, g.K, g.a_stride, g.b_stride, c_stride, g.a_transposed, g.b_transposed, accumulate};
    auto found = cache.find(key);
    if (found == cache.end()) {
        found = cache.emplace(key, create_native(g, m.size, n.size, c_stride, accumulate, engine)).first;
    }
    NativeMatmul& native = found->second;
    auto data = [](const Bf16Bits* p) { return const_cast<void*>(static_cast<const void*>(p)); };
    native.a.set_data_handle(data(element<Bf16Bits>(g.a, g.a_stride, g.a_transposed, m.begin, 0)));
    native.b.set_data_handle(data(element<Bf16Bits>(g.b, g.b_stride, g.b_transposed, 0, n.begin)));
    native.c.set_data_handle(c);
    native.primitive.execute(stream,
                             {{DNNL_ARG_SRC, native.a}, {DNNL_ARG_WEIGHTS, native.b}, {DNNL_ARG_DST, native.c}});
    stream.wait();
}

// ---------------------------------------------------------------------------------------------------------------------
// Finishes one tile: the epilogue, and the rounding to D's type

template <class T>
struct Finish {
    const float* __restrict sums;
    T* __restrict d;
    const T* __restrict added;   // read by the bias epilogue only
    const T* __restrict bias;    // null: none
    T* __restrict aux;
};

template <GemmEpilogue epilogue, bool accumulate, bool biased, class T>
void finish_row(const Finish<T>& row, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = row.sums[i];
        if constexpr (accumulate) x += widen(epilogue == GemmEpilogue::bias ? row.added[i] : row.d[i]);
        if constexpr (biased) x += widen(row.bias[i]);
        if constexpr (epilogue == GemmEpilogue::gelu) {
            narrow(x, &row.aux[i]);
            x = vector_gelu(x);
        }
        if constexpr (epilogue == GemmEpilogue::dgelu) x *= vector_gelu_derivative(widen(row.aux[i]));
        narrow(x, &row.d[i]);
    }
}

template <GemmEpilogue epilogue, bool accumulate, class T>
void finish_tile(const Gemm& g, Range m, Range n, const float* sums) {
    for (int64_t r = 0; r < m.size; r++) {
        int64_t row = m.begin + r;
        Finish<T> pointers{sums + r * n.size, static_cast<T*>(g.d) + row * g.d_stride + n.begin,
                           static_cast<const T*>(g.added) + row * g.d_stride + n.begin,
                           g.bias == nullptr ? nullptr : static_cast<const T*>(g.bias) + n.begin,
                           static_cast<T*>(g.aux) + row * g.aux_stride + n.begin};
        constexpr bool may_have_bias = epilogue == GemmEpilogue::bias || epilogue == GemmEpilogue::gelu;
        if (may_have_bias && g.bias != nullptr) {
            finish_row<epilogue, accumulate, may_have_bias, T>(pointers, n.size);
        } else {
            finish_row<epilogue, accumulate, false, T>(pointers, n.size);
        }
    }
}

template <class T>
void finish_tile(const Gemm& g, Range m, Range n, const float* sums) {
    switch (g.epilogue) {
        case GemmEpilogue::none:
        case GemmEpilogue::row_sums:
            if (g.added) return finish_tile<GemmEpilogue::none, true, T>(g, m, n, sums);
            return finish_tile<GemmEpilogue::none, false, T>(g, m, n, sums);
        case GemmEpilogue::bias:
            if (g.added) return finish_tile<GemmEpilogue::bias, true, T>(g, m, n, sums);
            return finish_tile<GemmEpilogue::bias, false, T>(g, m, n, sums);
        case GemmEpilogue::gelu: return finish_tile<GemmEpilogue::gelu, false, T>(g, m, n, sums);
        case GemmEpilogue::dgelu: return finish_tile<GemmEpilogue::dgelu, false, T>(g, m, n, sums);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums of op(A)'s rows, which are columns in memory

// Sums are taken over blocks of rows of memory: short chains of sums.
constexpr int64_t columns_at_once = 128, rows_at_once = 64;

template <class T, class Sum>
void sum_rows(const Gemm& g, int64_t first, Sum* sums) {
    const int64_t count = std::min(columns_at_once, g.M - first);
    float total[columns_at_once] = {};
    for (int64_t begin = 0; begin < g.K; begin += rows_at_once) {
        float block[columns_at_once] = {};
        for (int64_t k = begin; k < std::min(g.K, begin + rows_at_once); k++) {
            const T* __restrict row = element<T>(g.a, g.a_stride, true, first, k);
            for (int64_t i = 0; i < count; i++) block[i] += widen(row[i]);
        }
        for (int64_t i = 0; i < count; i++) total[i] += block[i];
    }
    for (int64_t i = 0; i < count; i++) narrow(total[i], sums + first + i);
}

void sum_rows(const Gemm& g) {
    ENSURE(g.a_transposed, "sums of the rows of an A that is not transposed");
    auto sum = [&](int64_t piece) {
        const int64_t first = piece * columns_at_once;
        if (!g.input_bf16) return sum_rows<float>(g, first, static_cast<float*>(g.bias));
        if (g.output_bf16) return sum_rows<Bf16Bits>(g, first, static_cast<Bf16Bits*>(g.bias));
        sum_rows<Bf16Bits>(g, first, static_cast<float*>(g.bias));
    };
    parallel_for((g.M + columns_at_once - 1) / columns_at_once, sum, 1);
}

void multiply(const Gemm& g, bool native_bf16, Range m, Range n, float* c, int64_t c_stride, bool accumulate) {
    if (!g.input_bf16) return multiply_fp32(g, m, n, c, c_stride, accumulate);
    if (native_bf16) return multiply_native_bf16(g, m, n, c, c_stride, accumulate);
    multiply_widened(g, m, n, c, c_stride, accumulate);
}

}   // namespace

bool multiplies_bf16() {
    static const bool does = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_bf16;
    return does;
}

void gemm(const Gemm& g) {
    ENSURE(g.M > 0 && g.N > 0 && g.K > 0, "a matmul of nothing: M=", g.M, " N=", g.N, " K=", g.K);
    const bool plain = g.epilogue == GemmEpilogue::none || g.epilogue == GemmEpilogue::row_sums;   // D = sums
    ENSURE(!g.added || (plain ? g.added == g.d : g.epilogue == GemmEpilogue::bias && g.added != g.d),
           "an epilogue that adds no such matrix");
    ENSURE(g.bf16 != Bf16Gemm::native || multiplies_bf16(), "native bf16 on a processor without bf16 instructions");
    bool native_bf16 = g.bf16 == Bf16Gemm::automatic ? multiplies_bf16() : g.bf16 == Bf16Gemm::native;
    bool direct = !g.output_bf16 && plain;   // multiply straight into D
    Tiling tiling = choose_tiling(g.M, g.N, g.input_bf16 && native_bf16 ? most_rows_bf16 : most_rows, thread_count());
    auto compute_tile = [&](int64_t tile) {
        // Neighbouring tiles share columns of B, which is usually the bigger operand (the weights).
        Range m = part(g.M, tiling.row_parts, tile % tiling.row_parts, row_unit);
        Range n = part(g.N, tiling.column_parts, tile / tiling.row_parts, column_unit);
        if (m.size == 0 || n.size == 0) return;
        if (direct) {
            float* c = static_cast<float*>(g.d) + m.begin * g.d_stride + n.begin;
            return multiply(g, native_bf16, m, n, c, g.d_stride, g.added != nullptr);
        }
        float* sums = scratch(2, static_cast<std::size_t>(m.size * n.size));
        multiply(g, native_bf16, m, n, sums, n.size, false);
        if (g.output_bf16)
            finish_tile<Bf16Bits>(g, m, n, sums);
        else
            finish_tile<float>(g, m, n, sums);
    };
    parallel_for(tiling.row_parts * tiling.column_parts, compute_tile, 1);
    if (g.epilogue == GemmEpilogue::row_sums) sum_rows(g);
}

void sgemm_on_this_thread(bool a_transposed, bool b_transposed, int64_t M, int64_t N, int64_t K, float alpha,
                          const float* a, int64_t a_stride, const float* b, int64_t b_stride, float beta, float* c,
                          int64_t c_stride) {
    static thread_local bool has_code[2][2] = {};   // oneDNN generates it in a thread's first products
    if (!has_code[a_transposed][b_transposed]) require_address_space();
    has_code[a_transposed][b_transposed] = true;
    one_dnn_on_this_thread();
    dnnl::status status = dnnl::sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', M, N, K, alpha, a, a_stride,
                                      b, b_stride, beta, c, c_stride);
    ENSURE(status == dnnl::status::success, "oneDNN refuses a matmul M=", M, " N=", N, " K=", K);
}

}   // namespace host
