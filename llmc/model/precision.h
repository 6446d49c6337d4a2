// The element type of parameters and activations, chosen when the program is built (make PRECISION=bf16|fp32).
//
// Only llmc/model, the folders below it (Makefile: MODEL_DIRS) and the programs include this. All else is templates on
// the element type or does not depend on it, and is compiled once.
#pragma once

#include "llmc/base/dtype.h"

#if defined(PRECISION_BF16)
using floatX = bf16;
constexpr const char* precision_name = "bf16";
#elif defined(PRECISION_FP32)
using floatX = float;
constexpr const char* precision_name = "fp32";
#else
#error "define PRECISION_BF16 or PRECISION_FP32 (the Makefile does, for the folders that may include this)"
#endif
