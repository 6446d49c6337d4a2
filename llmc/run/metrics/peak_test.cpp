#include "llmc/run/metrics/peak.h"

#include <doctest/doctest.h>

TEST_CASE("peak: devices are found by their name, the longer names first") {
    CHECK(data_sheet_flops("NVIDIA H200", DType::bf16, false) == 989.4e12);
    CHECK(data_sheet_flops("NVIDIA H100 80GB HBM3", DType::bf16, false) == 989.4e12);
    CHECK(data_sheet_flops("NVIDIA H100 PCIe", DType::bf16, false) == 756e12);
    CHECK(data_sheet_flops("NVIDIA A100-SXM4-80GB", DType::fp32, true) == 156e12);
    CHECK(data_sheet_flops("NVIDIA A100-SXM4-80GB", DType::fp32, false) == 19.5e12);
    CHECK(data_sheet_flops("NVIDIA L40S", DType::bf16, false) == 362e12);
    CHECK(data_sheet_flops("NVIDIA L4", DType::bf16, false) == 121e12);
    CHECK(data_sheet_flops("NVIDIA GeForce RTX 3090 Ti", DType::bf16, false) == 80e12);
    CHECK(!data_sheet_flops("CPU stand-in on something", DType::bf16, false));
}

TEST_CASE("peak: a share of it is at most 1; an estimate that was too low is raised") {
    PeakFlops peak{100, true};
    CHECK(share_of_peak(peak, 25) == 0.25);
    CHECK(share_of_peak(peak, 200) == 1);
    CHECK(peak.per_second == 200);
    CHECK(share_of_peak(peak, 50) == 0.25);
}
