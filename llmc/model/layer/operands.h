// Operands of layers' matmuls as StageChoices::matmul_dtype has them: what is given, or a copy in scratch, rounded to
// fp8, that is valid until the next operand of its kind.
#pragma once

#include "llmc/model/layer/stage_tools.h"

// Return activations or gradients, (rows, cols), and weights, (matrices, rows, cols).
const floatX* row_operand(const StageTools& tools, const floatX* values, int rows, int cols);
const floatX* weight_operand(const StageTools& tools, const floatX* weights, int rows, int cols, int matrices = 1);
