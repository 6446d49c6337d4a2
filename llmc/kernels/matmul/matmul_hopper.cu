#include "llmc/kernels/matmul/matmul_hopper.h"

#include <algorithm>

#include "llmc/base/check.h"
#include "llmc/kernels/matmul/matmul_hopper.cuh"

namespace {

// Returns the map of a matrix (rows, columns) with boxes of 64 columns and `box_rows` rows.
TensorMap map_of_matrix(const bf16* data, int rows, int columns, std::int64_t stride, int box_rows) {
    const auto row = static_cast<std::uint64_t>(stride) * sizeof(bf16), all = row * static_cast<std::uint64_t>(rows);
    return make_tensor_map(data, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), 1, 1},
                           {row, all, all}, {static_cast<std::uint32_t>(box_rows), 1, 1});
}

// Returns the bytes from a matrix's first element to its last.
std::size_t bytes_of(int rows, int columns, std::int64_t stride) {
    return static_cast<std::size_t>((rows - 1) * stride + columns) * sizeof(bf16);
}

template <int COLUMNS, bool TRANSPOSED, HopperMatmulEnd END>
void start(const HopperMatmul& p, int blocks, cudaStream_t stream) {
    using Tile = HopperMatmulTile<COLUMNS, END>;
    const HopperMatmulSizes sizes{p.tokens, p.channels, p.depth};
    HopperMatmulMaps maps{};
    maps.in = map_of_matrix(p.in, p.tokens, p.depth, p.in_stride, Tile::rows);
    maps.weight = TRANSPOSED ? map_of_matrix(p.weight, p.depth, p.channels, p.weight_stride, Tile::depth)
                             : map_of_matrix(p.weight, p.channels, p.depth, p.weight_stride, Tile::columns);
    const std::size_t out_bytes = bytes_of(p.tokens, p.channels, p.out_stride);
    const int tiles = hopper_matmul_tiles<Tile>(sizes);
    Launch where(dim3(static_cast<unsigned>(std::clamp(blocks, 1, tiles))), dim3(Tile::threads), Tile::shared_bytes,
                 stream);
    where.reads(p.in, bytes_of(p.tokens, p.depth, p.in_stride))
        .reads(p.weight, TRANSPOSED ? bytes_of(p.depth, p.channels, p.weight_stride)
                                    : bytes_of(p.channels, p.depth, p.weight_stride))
        .reads(p.bias, static_cast<std::size_t>(p.channels) * sizeof(bf16))
        .writes(p.out, out_bytes)
        .multiplies(2.0 * p.tokens * p.channels * p.depth);
    if constexpr (Tile::reads_beside) {
        maps.beside = map_of_matrix(p.beside, p.tokens, p.channels, p.out_stride, Tile::rows);
        where.reads(p.beside, out_bytes);
    }
    if constexpr (END == HopperMatmulEnd::gelu) where.writes(p.beside, out_bytes);
    launch(matmul_hopper<COLUMNS, TRANSPOSED, END>, where, maps, sizes,
           HopperMatmulResults{p.out, p.beside, p.out_stride, p.bias});
}

template <int COLUMNS>
void start(const HopperMatmul& p, int blocks, cudaStream_t stream) {
    using enum HopperMatmulEnd;
    if (p.transposed) {
        switch (p.end) {
            case plain: return start<COLUMNS, true, plain>(p, blocks, stream);
            case gelu_slope: return start<COLUMNS, true, gelu_slope>(p, blocks, stream);
            case add:
            case gelu: break;
        }
    } else {
        switch (p.end) {
            case plain: return start<COLUMNS, false, plain>(p, blocks, stream);
            case add: return start<COLUMNS, false, add>(p, blocks, stream);
            case gelu: return start<COLUMNS, false, gelu>(p, blocks, stream);
            case gelu_slope: break;
        }
    }
    throw Error(ErrorKind::bug, "no matmul for sm_90a ends so");
}

}   // namespace

bool hopper_matmul_takes(const HopperMatmul& p) {
    using enum HopperMatmulEnd;
    if (p.transposed ? p.end == gelu || p.end == add || p.bias != nullptr : p.end == gelu_slope) return false;
    return p.in_stride % 8 == 0 && p.weight_stride % 8 == 0 && p.out_stride % 8 == 0 && p.channels % 8 == 0;
}

void launch_hopper_matmul(const HopperMatmul& problem, int width, int blocks, cudaStream_t stream) {
    switch (width) {
        case 128: return start<128>(problem, blocks, stream);
        case 192: return start<192>(problem, blocks, stream);
        default: throw Error(ErrorKind::bug, text("no matmul for sm_90a has tiles of ", width, " channels"));
    }
}
