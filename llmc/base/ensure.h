// Checks on what the program itself believes, for code that knows no device; check.h adds the checks of CUDA calls.
//
//   ENSURE(condition, "what is wrong: ", value)   an invariant of the program; failing is a bug (exit code 70)
//
// Never check data with it: a file or flag that is wrong throws an Error of its own kind with a hint.
#pragma once

#include "llmc/base/error.h"

#define ENSURE(condition, ...)                                                                 \
    do {                                                                                       \
        if (!(condition)) invariant_failed(#condition, __FILE__, __LINE__, text(__VA_ARGS__)); \
    } while (0)
