#include "llmc/base/stand_in.h"

// Defined in llmc/cuda_on_cpu/queue/runtime.cpp; null on a GPU.
extern "C" __attribute__((weak)) StandIn* stand_in_of_build();

StandIn* stand_in() { return stand_in_of_build ? stand_in_of_build() : nullptr; }
