// Matmuls for sm_90a against double precision, on such a device or on the models of its instructions.
#include <vector>

#include "llmc/kernels/matmul/matmul_hopper_testing.h"
#include "llmc/kernels/ptx/on_sm90_testing.h"

namespace {

void check(const HopperMatmulCase& c, int blocks = 2) {
    if (!on_sm90()) return;
    CAPTURE(static_cast<int>(c.end));
    CAPTURE(c.transposed);
    CAPTURE(c.tokens);
    CAPTURE(c.channels);
    CAPTURE(c.depth);
    CAPTURE(c.has_bias);
    CAPTURE(c.gap);
    CAPTURE(blocks);
    const HopperMatmulProblem problem(c);
    for (int width : hopper_matmul_widths) {
        CAPTURE(width);
        problem.check(width, blocks);
    }
}

using enum HopperMatmulEnd;

}   // namespace

TEST_CASE("sm90: matmul: every end, with weights as forward has them") {
    for (const HopperMatmulEnd end : {plain, add, gelu}) {
        check({end, false, 150, 200, 136});
        check({end, false, 130, 392, 72, false});
    }
}

TEST_CASE("sm90: matmul: every end, with weights transposed, as a gradient of an input has them") {
    for (const HopperMatmulEnd end : {plain, gelu_slope}) {
        check({end, true, 150, 200, 136, false});
        check({end, true, 130, 392, 72, false});
    }
}

TEST_CASE("sm90: matmul: every size, whole tiles or not, and deeper than the ring") {
    for (int tokens : {1, 127, 128, 129, 300}) check({plain, false, tokens, 64, 64});
    for (int channels : {8, 56, 64, 128, 184, 192, 200, 400}) check({plain, false, 64, channels, 64});
    for (int channels : {8, 56, 64, 128, 184, 192, 200, 400}) check({plain, true, 64, channels, 64, false});
    for (int depth : {8, 16, 56, 64, 200, 640}) check({gelu, false, 100, 72, depth});
    for (int depth : {8, 24, 64, 200, 640}) check({gelu_slope, true, 100, 72, depth, false});
}

TEST_CASE("sm90: matmul: rows with gaps keep what lies between them") {
    check({plain, false, 140, 72, 72, true, 8});
    check({add, false, 140, 72, 72, true, 24});
    check({gelu, false, 140, 200, 72, true, 16});
    check({gelu_slope, true, 140, 200, 72, false, 8});
}

TEST_CASE("sm90: matmul: any number of blocks gives the same bits") {
    if (!on_sm90()) return;
    for (const HopperMatmulCase& c :
         {HopperMatmulCase{add, false, 600, 200, 200}, {plain, true, 600, 200, 200, false}}) {
        const HopperMatmulProblem problem(c);
        for (int width : hopper_matmul_widths) {
            const Doubles one = problem.out(width, 1);
            for (int blocks : {2, 3, 5, 100}) CHECK(problem.out(width, blocks) == one);
        }
    }
}
