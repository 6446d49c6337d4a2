// The speed that MFU is measured against.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/arena.h"
#include "llmc/kernels/matmul/matmul.h"

struct PeakFlops {
    double per_second = 0;   // floating point operations
    bool measured = false;   // on this machine, else from the data sheet
};

// Dense operations per second of a GPU by its name, from NVIDIA's data sheets: in bf16, or for fp32 in TF32 where that
// is allowed; none for a device that is not in the table.
std::optional<double> data_sheet_flops(const std::string& device_name, DType type, bool tf32);

// What a device reaches, as a share of its peak: at most 1. Where it reaches more, the peak is raised to that: one that
// was measured is an estimate.
double share_of_peak(PeakFlops& peak, double flops_per_second);

// From the data sheet where the device has one, else what a large matmul reaches here (about a tenth of a second).
PeakFlops peak_flops(const std::string& device_name, bool tf32, Matmul& matmul, cudaStream_t stream);
