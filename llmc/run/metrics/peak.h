// The peak speed that MFU divides by.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/arena.h"
#include "llmc/kernels/matmul/matmul.h"

struct PeakFlops {
    double per_second = 0;   // FLOP/s
    bool measured = false;   // on this machine; else from the data sheet
};

// Dense FLOP/s of a GPU by its name, from NVIDIA's data sheets: in bf16, or for fp32 in TF32 if `tf32`, else in fp32.
// None if the device is not in the table.
std::optional<double> data_sheet_flops(const std::string& device_name, DType type, bool tf32);

// Returns the achieved share of the peak, at most 1. If a device achieves more, raises the peak: a measured peak is an
// estimate.
double share_of_peak(PeakFlops& peak, double flops_per_second);

// Returns the data sheet's peak if the device is in the table, else measures a large matmul (about a tenth of a
// second).
PeakFlops peak_flops(const std::string& device_name, bool tf32, Matmul& matmul, cudaStream_t stream);
