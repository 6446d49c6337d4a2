#include "llmc/model/layer/operands.h"

#include "llmc/kernels/fp8/fp8_blocks.cuh"

const floatX* row_operand(const StageTools& tools, const floatX* values, int rows, int cols) {
    if (!tools.sizes.fp8) return values;
    ENSURE(std::int64_t{rows} * cols <= Fp8Scratch::most_rows(tools.sizes), rows, " x ", cols, " operands in fp8");
    floatX* const rounded = tools.workspace.layer.fp8.rows;
    round_rows_to_fp8<floatX>(rounded, values, rows, cols, tools.stream);
    return rounded;
}

const floatX* weight_operand(const StageTools& tools, const floatX* weights, int rows, int cols, int matrices) {
    if (!tools.sizes.fp8) return weights;
    ENSURE(std::int64_t{matrices} * rows * cols <= Fp8Scratch::most_weights(tools.sizes), matrices, " x ", rows, " x ",
           cols, " weights in fp8");
    floatX* const rounded = tools.workspace.layer.fp8.weights;
    round_tiles_to_fp8<floatX>(rounded, weights, matrices, rows, cols, tools.stream);
    return rounded;
}
