#include "llmc/kernels/attention/sm80/attention_mma.cuh"

#include <vector>

#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/attention/fp32/attention_fma.cuh"
#include "llmc/kernels/launch.cuh"

// Eight rows read at one chunk must fall on eight different groups of four banks.
TEST_CASE_TEMPLATE("attention_mma: swizzled tiles have no bank conflicts and no overlaps", D,
                   std::integral_constant<int, 32>, std::integral_constant<int, 64>, std::integral_constant<int, 80>,
                   std::integral_constant<int, 96>, std::integral_constant<int, 128>,
                   std::integral_constant<int, 256>) {
    using Tile = SwizzledTile<D::value>;
    std::vector<int> uses(64 * Tile::chunks);
    for (int row = 0; row < 64; row++)
        for (int chunk = 0; chunk < Tile::chunks; chunk++) uses.at(Tile::offset(row, chunk) / 16)++;
    for (int count : uses) CHECK(count == 1);
    for (int first = 0; first < 64; first += 8)
        for (int chunk = 0; chunk < Tile::chunks; chunk++) {
            int groups = 0;
            for (int row = first; row < first + 8; row++) groups |= 1 << Tile::offset(row, chunk) / 16 % 8;
            CHECK(groups == 0xff);
        }
    for (int row = 0; row < 16; row++) {   // products step by 16 rows and by pairs of chunks without recomputing
        CHECK(Tile::offset(row + 16, 1) == Tile::offset(row, 1) + Tile::bytes(16));
        for (int chunk = 0; chunk < Tile::chunks; chunk++) {
            SharedAddress first = 4096 + Tile::offset(row, chunk % 2);
            CHECK(Tile::at_pair(first, chunk / 2) == 4096u + Tile::offset(row, chunk));
        }
    }
}

// The two implementations share only the mask and delta; in bf16 they must agree with one reference.
TEST_CASE("attention_fma: bf16 matches double precision") {
    auto forward = [](const AttentionForward<bf16>& a, cudaStream_t stream) {
        dim3 grid(ceil_div(a.shape.Tq, FmaTile<64>::rows), a.shape.NH, a.shape.B);
        launch(attention_forward_fma<bf16, bf16, 64>,
               Launch(grid, FmaTile<64>::threads, FmaTile<64>::forward_bytes, stream), a);
    };
    auto backward = [](const AttentionBackward<bf16>& a, cudaStream_t stream) {
        unsigned rows = static_cast<unsigned>(ceil_div(a.shape.B * a.shape.NH * a.shape.Tq, DELTA_ROWS));
        launch(attention_delta<bf16, bf16>, Launch(rows, DELTA_THREADS, 0, stream), a);
        dim3 query_grid(ceil_div(a.shape.Tq, FmaTile<64>::rows), a.shape.NH, a.shape.B);
        dim3 key_grid(ceil_div(a.shape.Tk, FmaTile<64>::rows), a.shape.NH, a.shape.B);
        int bytes = FmaTile<64>::backward_bytes;
        launch(attention_backward_queries_fma<bf16, bf16, 64>, Launch(query_grid, FmaTile<64>::threads, bytes, stream),
               a);
        launch(attention_backward_keys_fma<bf16, bf16, 64>, Launch(key_grid, FmaTile<64>::threads, bytes, stream), a);
    };
    check_attention<bf16, bf16>(forward, backward, self_attention_shape(1, 130, 2, 64), Layout::packed);
}
